// Muon and NorMuon with tensor parallelism: each matrix is assembled on its owner from the parts of the tensor-parallel
// ranks. Steps equal those of one rank, checkpoints resume between any meshes, and parts assembled in another order are
// detected.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>

#include "ops/muon.h"
#include "tests/comm/forwarding.h"
#include "tests/sanitized.h"
#include "tests/train/watched_group.h"

namespace athanor::ranks {
namespace {

constexpr int64_t kEvenLength = 8;  // divisible by context- and sequence-parallel ranks

struct Grid {
  int replicas, shards, stage, tensor;
  bool sequence = false;
  int context = 1;
  bool ring = false;
};

Setting on(Setting s, const Grid& g) {
  s.replicas = g.replicas, s.shards = g.shards, s.stage = g.stage, s.tensor = g.tensor, s.sequence = g.sequence;
  s.context = g.context, s.ring = g.ring;
  return s;
}

// Every stage, with and without sequence and context parallelism; ranks of a group share a KV head if there are fewer
// heads than ranks.
std::vector<Grid> all_grids() {
  return {{1, 1, 0, 2},
          {1, 1, 0, 4, true},
          {2, 1, 0, 2},
          {1, 2, 1, 2, true},
          {1, 2, 2, 4},
          {1, 3, 3, 2, true},
          {2, 2, 1, 2},
          {2, 2, 3, 2, true},
          {1, 1, 0, 2, false, 2},
          {1, 2, 2, 2, true, 2, true},
          {1, 1, 3, 2, true, 2, true},
          {2, 1, 1, 4}};
}

// Relative distance over all weights together.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK(a.size() == b.size(), a.size(), " weights and ", b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double(a[i]) - double(b[i]), 2);
    size += std::pow(double(a[i]), 2);
  }
  return std::sqrt(difference / size);
}

TEST(TensorMuon, StepsMatchOneRank) {
  const std::vector<Grid> grids = all_grids();
  size_t turn = 0;  // alternates, so that each mesh runs each rule with half of the models
  for (const auto& [type, tied, kv_heads] : {std::tuple{ModelType::llama, false, 1},
                                             {ModelType::llama, true, 2},
                                             {ModelType::gpt2, true, 4},
                                             {ModelType::qwen3, false, 4}}) {
    for (const RuleName rule : {RuleName::muon, RuleName::normuon}) {
      Setting s{.type = type, .tied = tied, .eps = 1e-5, .rule = rule, .kv_heads = kv_heads, .length = kEvenLength};
      if (rule == RuleName::normuon) s.groups = {{.match = "*.0.*mlp.*weight", .lr_factor = 0.5}};
      const Curve want = train(s, 4);
      for (size_t i = turn++ % 2; i < grids.size(); i += kSanitized ? 8 : 2) {
        const Setting many = on(s, grids[i]);
        expect_same(want, train(many, 4), 1e-5, cat(kRuleNames[size_t(rule)], " ", many.name()));
      }
    }
    ++turn;
  }
}

// Averages are rounded to bf16 before they are sent; master weights and moments are rounded stochastically.
TEST(TensorMuon, EveryPrecisionMatchesOneRank) {
  for (const auto& [precision, master, moments, gradients] : {std::tuple{"bf16", DType::f32, DType::f32, DType::f32},
                                                              {"bf16", DType::i16, DType::bf16, DType::bf16},
                                                              {"bf16", DType::bf16, DType::f32, DType::f32},
                                                              {"fp8_blockwise", DType::f32, DType::f32, DType::f32},
                                                              {"tf32", DType::f32, DType::f32, DType::f32}})
    for (const int stage : {0, 2}) {
      Setting s{.type = ModelType::gpt2,
                .precision = precision,
                .master = master,
                .moments = moments,
                .gradients = gradients,
                .rule = RuleName::normuon,
                .hidden = 64,
                .intermediate = 64,
                .length = kEvenLength};
      const Curve want = train(s, 3);
      s.shards = stage > 0 ? 2 : 1, s.stage = stage, s.tensor = 2, s.sequence = stage > 0;
      expect_same_curve(want, train(s, 3), precision == std::string("tf32") ? 1e-4 : 2e-2, s.name());
    }
}

// NorMuon's per-output values in a checkpoint, ordered by name.
std::vector<float> numbers_in(const std::map<std::string, std::vector<std::byte>>& files) {
  std::vector<float> all;
  for (const auto& [name, bytes] : files) {
    if (name.find(" v_neuron.") == std::string::npos) continue;
    const size_t before = all.size();
    all.resize(before + bytes.size() / sizeof(float));
    std::memcpy(&all[before], bytes.data(), bytes.size());
  }
  return all;
}

// Files hold whole tensors, including NorMuon's per-output values.
TEST(TensorMuon, CheckpointsAreIndependentOfGroups) {
  const testing::TempDir dir;
  const auto at = [&](const std::string& run, int64_t step) {
    return cat(dir.path(), "/", run, "/", step_folder(step));
  };
  for (const auto& [type, rule] : {std::pair{ModelType::llama, RuleName::normuon},
                                   {ModelType::gpt2, RuleName::normuon},
                                   {ModelType::llama, RuleName::muon}}) {
    const std::string p = cat(name_of(type), kRuleNames[size_t(rule)]);
    const Setting one{.type = type, .rule = rule, .kv_heads = type == ModelType::llama ? 1 : 0, .length = kEvenLength};
    const auto whole = run_part(one, "", 0, 4, cat(dir.path(), "/", p, "whole"));
    const std::vector<Grid> grids = {{1, 1, 0, 1}, {1, 1, 0, 2}, {1, 2, 1, 2, true},
                                     {1, 2, 3, 4}, {2, 2, 2, 1}, {1, 1, 3, 2, true, 2}};
    std::vector<float> numbers;  // those of the first mesh, one rank
    for (size_t i = 0; i < grids.size(); ++i) {
      if (kSanitized && i % 2 == 1) continue;
      const std::string half = cat(p, "half", i);
      const auto first = run_part(on(one, grids[i]), "", 0, 2, cat(dir.path(), "/", half));
      EXPECT_NEAR(first[1], whole[1], 1e-5 * whole[1]) << half;
      const auto saved = tensors_of(at(half, 2));
      EXPECT_EQ(saved.contains("optimizer v_neuron.model.layers.0.self_attn.k_proj.weight"),
                type == ModelType::llama && rule == RuleName::normuon);
      if (i == 0) numbers = numbers_in(saved);
      EXPECT_EQ(numbers.empty(), rule == RuleName::muon);
      if (!numbers.empty()) {
        EXPECT_LT(distance(numbers, numbers_in(saved)), 1e-3) << half;
      }
      const Setting next = on(one, grids[(i + 1) % grids.size()]);
      const auto rest = run_part(next, at(half, 2), 2, 4, cat(dir.path(), "/", half, "then"));
      for (size_t k = 0; k < 2; ++k) EXPECT_NEAR(rest[k], whole[k + 2], 1e-5 * whole[k + 2]) << half;
      run_part(next, at(half, 2), 2, 2, cat(dir.path(), "/", half, "copy"));
      EXPECT_EQ(tensors_of(at(half + "copy", 2)), saved) << half;
    }
  }
}

// Strips of tensors in reversed order: when averages are assembled, and when updates are split.
enum class Mistake : uint8_t { none, averages, updates };

class Careless final : public Decorated<Careless> {
 public:
  Careless(Ops& inner, Mistake mistake) : inner_(inner), mistake_(mistake) {}
  const Ops& inner() const { return inner_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, Combine>) {
      // No other op has a wider row stride on one side: this matches the tensor's rows, but not those of Q, K and V.
      const bool puts = op.y.stride() > op.a.stride(), cuts = op.y.stride() < op.a.stride();
      if (!op.b && op.y.rows() > 1 &&
          ((mistake_ == Mistake::averages && puts) || (mistake_ == Mistake::updates && cuts)))
        return in_reverse(op, scratch);
    }
    inner_.run(op, scratch);
  }

 private:
  void in_reverse(const Combine& op, void* scratch) {
    for (int64_t row = 0; row < op.y.rows(); ++row)
      inner_.run(Combine{.y = op.y.slice(row, row + 1), .a = op.a.slice(op.a.rows() - 1 - row, op.a.rows() - row)},
                 scratch);
  }
  Ops& inner_;
  Mistake mistake_;
};

// Swaps the data received from two ranks if they have the same size.
class Swapped final : public Forwarding {
 public:
  Swapped(std::unique_ptr<Communicator> inner, bool swaps) : Forwarding(std::move(inner)), swaps_(swaps) {}
  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream stream) override {
    std::vector<Tensor> transposed(in.begin(), in.end());
    Tensor* last = nullptr;
    for (Tensor& t : transposed) {
      if (!swaps_ || !t) continue;
      if (last && last->bytes() == t.bytes()) std::swap(*last, t), ++swapped;
      last = &t;
    }
    inner_->all_to_all(out, transposed, stream);
  }
  int swapped = 0;

 private:
  bool swaps_;
};

// The weights after one step.
std::vector<float> after_a_step(const Setting& s, Mistake mistake, bool swaps = false) {
  std::vector<float> masters;
  int swapped = 0;
  std::mutex mutex;
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    Careless ops(*cpu.ops, mistake);
    auto watched = std::make_unique<Swapped>(std::move(world), swaps);
    Swapped& all = *watched;
    ProcessMesh mesh(std::move(watched), s.mesh());
    Engine engine(tiny(s), options(s), {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    engine.init_weights();
    engine.set_ops(ops);
    accumulate(engine, 0);
    engine.finish_step();
    engine.set_ops(*cpu.ops);
    auto found = testing::all_masters(engine, *cpu.device);
    const std::lock_guard lock(mutex);
    swapped += all.swapped;
    if (mesh.world().rank() == 0) masters = std::move(found);
  });
  EXPECT_EQ(swapped > 0, swaps);
  return masters;
}

TEST(TensorMuon, MisorderedPartsAreDetected) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const Setting one{.type = type, .rule = RuleName::muon, .kv_heads = type == ModelType::llama ? 4 : 0};
    const std::vector<float> want = train(one, 1).masters;
    for (const Grid& grid : {Grid{1, 1, 0, 2}, {1, 2, 1, 2}}) {
      const Setting s = on(one, grid);
      const double rounding = distance(want, after_a_step(s, Mistake::none));
      EXPECT_LT(rounding, 1e-5) << s.name();
      for (const Mistake mistake : {Mistake::averages, Mistake::updates})
        EXPECT_GT(distance(want, after_a_step(s, mistake)), 100 * rounding) << s.name() << " mistake " << int(mistake);
      if (s.ranks() == 2) continue;  // each rank receives from only one other
      EXPECT_GT(distance(want, after_a_step(s, Mistake::none, true)), 100 * rounding) << s.name();
    }
  }
}

// An owner does not send its own part, and of ranks of a replica with the same part only one sends it; each rank of all
// replicas receives the update of its part.
TEST(TensorMuon, ReplicatedKvHeadsAreSentOnce) {
  for (const auto& [replicas, kv_heads, tensor] : {std::tuple{1, 1, 2}, {1, 2, 4}, {2, 1, 2}, {2, 2, 4}}) {
    const Setting s{.replicas = replicas, .rule = RuleName::muon, .tensor = tensor, .kv_heads = kv_heads};
    double heads = 0, rest = 0;  // bytes of the matrices of K and V heads, and of the others
    std::array<double, 2> sent = {};
    std::mutex mutex;
    on_ranks(s, [&](Engine& engine, ProcessMesh& mesh, const CpuBackend&) {
      if (mesh.world().rank() != 0) return;
      const ParamStore& params = engine.model().params();
      for (const auto& piece : params.pieces()) {
        if (params.specs()[size_t(piece.param)].role != Role::matrix) continue;
        const std::string& name = piece.slice->name;
        (name.find("k_proj") + 1 || name.find("v_proj") + 1 ? heads : rest) += 4 * double(piece.slice->shape.numel());
      }
      const auto& exchanges = engine.update_sums().exchanges;
      for (size_t i = 0; i < exchanges.size(); ++i)
        for (const auto& part : exchanges[i].parts) sent[i % 2] += double(part.bytes);
    });
    ASSERT_GT(heads, 0);
    EXPECT_EQ(sent[0], rest * (tensor - 1) / tensor + heads * (kv_heads - 1) / kv_heads);
    EXPECT_EQ(sent[1], rest * (s.ranks() - 1) / tensor + heads * (s.ranks() - 1) / kv_heads);
  }
}

// Nothing is copied if the parts in rank order are the matrix: Q, K, V, gate and up of llama.
TEST(TensorMuon, CopiesOnlyInterleavedParts) {
  const auto copies = [](ModelType type, int tensor) {
    const Setting s{.type = type, .rule = RuleName::muon, .tensor = tensor};
    int64_t combines = 0;
    std::mutex mutex;
    on_ranks(s, [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
      const std::lock_guard lock(mutex);
      for (const Launch& launch : engine.update_launches()) combines += launch.op == std::string(Combine::kName);
    });
    return combines;
  };
  // Copies per block, in both directions: o and down in two strips of columns. For GPT-2 the columns of two parts of
  // c_attn, in three strips each, and of c_fc; the rows of its output projections are in order.
  EXPECT_EQ(copies(ModelType::llama, 2) - copies(ModelType::llama, 1), kLayers * 2 * (2 + 2));
  EXPECT_EQ(copies(ModelType::gpt2, 2) - copies(ModelType::gpt2, 1), kLayers * 2 * (6 + 2));
}

}  // namespace
}  // namespace athanor::ranks
