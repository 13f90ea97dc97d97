// Tensor parallelism: ranks that split the heads and the MLP columns of every block, and the rows of embedding and
// head, give the same run as one rank: bit-identical initial weights, losses and gradient norms within rounding,
// checkpoints that any other ranks resume. All-reduces are those counted by the plan. An all-reduce that is missing or
// made twice, a bias added on every rank, and mishandled tokens of other ranks are detected.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <mutex>

#include "tests/sanitized.h"
#include "tests/train/watched_group.h"

namespace athanor::ranks {
namespace {
using G = Recompute::Granularity;

std::vector<Setting> all_groups() {
  std::vector<Setting> all;
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const bool tied : {false, true})
      for (const int tensor : {2, 4})
        for (const auto& [shards, stage] : {std::pair{1, 0}, {2, 0}, {2, 1}, {2, 2}, {2, 3}})
          for (const auto recompute : {G::none, G::selective, G::full})
            all.push_back({.type = type,
                           .tied = tied,
                           .shards = shards,
                           .stage = stage,
                           .accumulation = stage == 1 ? 2 : 1,
                           .recompute = recompute,
                           .tensor = tensor,
                           .kv_heads = type == ModelType::llama && tensor == 4 ? 4 : 0});
  return all;
}

// A sample of all groups; all of them with ATHANOR_FULL=1 (scripts/test.sh --all).
TEST(TensorParallel, LossesAndNormsMatchOneRank) {
  const auto every = size_t(testing::every_case(7));  // coprime to the numbers of choices
  std::map<std::string, Curve> one;
  const auto all = all_groups();
  for (size_t i = 0; i < all.size(); i += every) {
    const Setting& s = all[i];
    const std::string key = cat(alone(s).name(), s.kv_heads);
    if (!one.contains(key)) one[key] = train(alone(s), 10);
    expect_same_curve(one[key], train(s, 10), 1e-5, s.name());
  }
}

// Fewer KV heads than ranks: some ranks have the same head, and sum their parts of its gradient. It counts once in the
// norm, and the copies stay equal, also for biases and with QK norms.
TEST(TensorParallel, ReplicatedKvHeadsMatchOneRank) {
  for (const ModelType type : {ModelType::llama, ModelType::qwen2, ModelType::qwen3})
    for (const auto& [kv_heads, tensor] : {std::pair{1, 2}, {1, 4}, {2, 4}}) {
      Setting s{.type = type, .kv_heads = kv_heads};
      const Curve want = train(s, 10), initial = train(s, 0);
      s.tensor = tensor;
      for (const auto& [shards, stage] : {std::pair{1, 0}, {2, 1}, {2, 3}}) {
        if (kSanitized && stage != 3) continue;
        s.shards = shards, s.stage = stage, s.sequence = stage == 1 && kLength % tensor == 0;
        s.recompute = stage == 3 ? G::full : G::none;
        EXPECT_EQ(train(s, 0).masters, initial.masters) << s.name();
        expect_same_curve(want, train(s, 10), 1e-5, cat(s.name(), " key heads ", kv_heads));
      }
    }
}

TEST(TensorParallel, EveryFamilyMatchesOneRank) {
  for (const ModelType type : {ModelType::qwen2, ModelType::qwen3, ModelType::mistral, ModelType::athanor})
    for (const int stage : {0, 1, 3}) {
      const Setting s{.type = type, .shards = stage > 0 ? 2 : 1, .stage = stage, .tensor = 2};
      expect_same_curve(train(alone(s), 10), train(s, 10), 1e-5, s.name());
    }
}

// Vocabularies that do not divide evenly, ignored targets, the z-loss, the soft-cap, logits in one chunk and in
// several.
TEST(TensorParallel, ShardedVocabularyMatchesOneRank) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const bool tied : {false, true}) {
      Setting s{.type = type, .tied = tied, .masked = true, .kv_heads = 4, .vocab = 131, .z_loss = 0.1};
      s.softcap = tied ? 0.5 : 0;  // for logits around 0.2
      const Curve want = train(s, 5);
      for (const int tensor : {2, 4}) {
        s.tensor = tensor;
        expect_same_curve(want, train(s, 5), 1e-5, s.name());
      }
    }
}

// All ranks get the same losses from the same sums, and each token's loss equals that of one rank.
TEST(TensorParallel, TokenLossesMatchOneRank) {
  for (const char* precision : {"fp32", "bf16"})
    for (const bool tied : {false, true}) {
      std::vector<float> want;
      double want_sum = 0;
      for (const int tensor : {1, 2, 4})
        for (const int64_t chunk : {0, 100}) {
          const Setting s{
              .type = ModelType::gpt2, .tied = tied, .precision = precision, .tensor = tensor, .vocab = 131};
          std::mutex mutex;
          std::vector<std::vector<float>> of_ranks;
          double sum = 0;
          EngineOptions o = options(s);
          o.loss_chunk_rows = chunk;
          on_ranks(s, o, [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
            std::vector<int32_t> tokens, targets;
            for (int64_t row = 0; row < kSequences; ++row) append_sample(row, tokens, targets, true, s.vocab);
            const double found = engine.evaluate(tokens, targets);
            const std::lock_guard lock(mutex);
            sum = found;
            of_ranks.push_back(engine.losses());
          });
          if (want.empty()) want = of_ranks[0], want_sum = sum;
          const double tolerance = precision == std::string("fp32") ? 2e-6 : 1e-2;
          EXPECT_NEAR(sum, want_sum, tolerance * want_sum) << s.name() << " chunk " << chunk;
          for (const auto& losses : of_ranks) EXPECT_EQ(losses, of_ranks[0]) << s.name();
          for (size_t i = 0; i < want.size(); ++i)
            ASSERT_NEAR(of_ranks[0][i], want[i], tolerance * 5) << s.name() << " chunk " << chunk << " token " << i;
        }
    }
}

TEST(TensorParallel, EveryPrecisionMatchesOneRank) {
  for (const auto& [precision, master, moments] : {std::tuple{"bf16", DType::f32, DType::f32},
                                                   {"bf16", DType::i16, DType::bf16},
                                                   {"bf16", DType::bf16, DType::f32},
                                                   {"fp16", DType::f32, DType::f32},
                                                   {"tf32", DType::f32, DType::f32}})
    for (const int stage : {0, 2}) {
      const Setting s{.type = ModelType::gpt2,
                      .precision = precision,
                      .master = master,
                      .shards = stage > 0 ? 2 : 1,
                      .stage = stage,
                      .moments = moments,
                      .tensor = 2};
      const Curve want = train(alone(s)), got = train(s);
      for (size_t i = 0; i < want.losses.size(); ++i)
        EXPECT_NEAR(got.losses[i], want.losses[i], 5e-3 * want.losses[i]) << s.name();
    }
}

// Evaluations use the averages of each rank's parts; afterwards the weights are restored.
TEST(TensorParallel, AveragesMatchOneRank) {
  for (const char* average : {"ema", "tail", "schedule-free"})
    for (const auto& [tensor, shards, stage] : {std::tuple{2, 1, 0}, {4, 1, 0}, {2, 2, 1}, {2, 2, 3}}) {
      Setting one{.accumulation = shards, .lr = 0.05, .kv_heads = 4};  // evaluates equally many rows
      const Curve plain = train(one, 5);
      if (average[0] == 'e') one.ema = 0.7;
      if (average[0] == 't') one.tail = 2;
      if (average[0] == 's') one.rule = RuleName::schedule_free_adamw;
      Setting s = one;
      s.accumulation = 1, s.shards = shards, s.stage = stage, s.tensor = tensor;
      const Curve want = train(one, 5), got = train(s, 5);
      EXPECT_GT(std::abs(plain.evaluation / want.evaluation - 1), 1e-4) << "averages are others";
      EXPECT_NEAR(got.evaluation, want.evaluation, 1e-5 * want.evaluation) << s.name() << " " << average;
      expect_same_curve(want, got, 1e-5, s.name());
    }
}

TEST(TensorParallel, InitialWeightsMatchOneRank) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2, ModelType::qwen3})
    for (const auto& [precision, master] : {std::pair{"fp32", DType::f32}, {"bf16", DType::i16}}) {
      Setting s{.type = type, .precision = precision, .master = master, .kv_heads = 4};
      const Curve want = train(s, 0);
      for (const int tensor : {2, 4})
        for (const auto& [shards, stage] : {std::pair{1, 0}, {2, 1}, {3, 3}}) {
          s.tensor = tensor, s.shards = shards, s.stage = stage;
          EXPECT_EQ(train(s, 0).masters, want.masters) << s.name();
        }
    }
}

TEST(TensorParallel, RecomputationAndRepetitionAreBitExact) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const bool sequence : {false, true})
      expect_repetition_and_recomputation_change_no_bit(
          {.type = type, .shards = 2, .stage = 3, .tensor = 2, .sequence = sequence});
}

// As on devices that communicate and compute concurrently. The all-reduce of half the rows is a separate call.
TEST(TensorParallel, OverlappedAllReducesAreBitExact) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const bool sequence : {false, true})
      for (const auto recompute : {G::none, G::selective, G::full}) {
        Setting s{.type = type, .recompute = recompute, .tensor = 2, .sequence = sequence, .pieces = sequence};
        const WatchedCurve want = train_watched(s, {}, 3);
        s.beside = true;
        const WatchedCurve got = train_watched(s, {}, 3);
        EXPECT_EQ(got.losses, want.losses) << s.name();
        EXPECT_EQ(got.norms, want.norms) << s.name();
        EXPECT_EQ(got.masters, want.masters) << s.name();
        EXPECT_EQ(got.sent.bytes, want.sent.bytes) << s.name();
        EXPECT_EQ(got.sent.row_bytes, want.sent.row_bytes) << s.name();
        EXPECT_EQ(got.planned.all().calls, got.sent.calls) << s.name();
        EXPECT_EQ(got.planned.all().row_calls, got.sent.row_calls) << s.name();
        EXPECT_TRUE(want.planned.overlaps.empty()) << s.name();
        const int64_t forward = recompute == G::full ? 8 : 4;  // halves of the outputs of attention and MLP
        EXPECT_EQ(got.sent.calls, want.sent.calls + (sequence ? 0 : kLayers * forward / 2)) << s.name();
        // Backward: the gradients of two inputs; with sequence parallelism also these inputs and the gradients of two
        // outputs, all in four pieces, as are inputs and outputs in forward.
        EXPECT_EQ(std::ssize(got.planned.overlaps), kLayers * (sequence ? 4 * forward + 24 : forward + 2)) << s.name();
      }
}

// A plan counts only what overlapped launches leave exposed: with a slow GPU, only the communication that overlaps
// nothing.
TEST(TensorParallel, PlanCountsExposedAllReduces) {
  for (const auto& [beside, sequence] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
    const Setting s{.type = ModelType::llama, .tensor = 2, .sequence = sequence, .beside = beside, .pieces = true};
    on_ranks(s, [&](Engine& engine, ProcessMesh& mesh, const CpuBackend&) {
      const Network network{1e9, 1e9, 8};
      const Roofline slow{.most = {1e3, 1e3}}, fast{.most = {1e30, 1e30}};
      const StepTraffic counted = step_traffic(engine, mesh, network, &slow);
      EXPECT_EQ(step_traffic(engine, mesh, network).tensor.waits, counted.tensor.seconds);
      EXPECT_NEAR(step_traffic(engine, mesh, network, &fast).tensor.waits / counted.tensor.seconds, 1, 1e-9);
      // Of 4 all-reduces per block and 4 of embedding, loss and head, two overlap the weight gradients, and the halves
      // of two overlap halves and residuals. With sequence parallelism, of 40 pieces per block and 18 of embedding,
      // loss and head, all but the first ones of four gathers overlap GEMMs.
      if (beside)
        EXPECT_LT(counted.tensor.waits, 0.4 * counted.tensor.seconds);
      else
        EXPECT_EQ(counted.tensor.waits, counted.tensor.seconds);
    });
  }
}

// Replicated weights get the same gradients and updates on all ranks of a group.
TEST(TensorParallel, ReplicatedWeightsStayEqual) {
  for (const auto& [type, sequence, kv_heads] : {std::tuple{ModelType::gpt2, false, 4},
                                                 {ModelType::gpt2, true, 4},
                                                 {ModelType::qwen3, false, 1},  // both ranks have the one KV head
                                                 {ModelType::qwen3, true, 2}}) {
    const Setting s{.type = type,
                    .precision = "bf16",
                    .master = DType::bf16,
                    .moments = DType::bf16,
                    .tensor = 2,
                    .sequence = sequence,
                    .kv_heads = kv_heads};
    std::mutex mutex;
    std::map<std::string, std::vector<std::vector<std::byte>>> found;  // by name, for each rank
    on_ranks(s, [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
      for (int64_t step = 0; step < 5; ++step) {
        accumulate(engine, step);
        engine.finish_step();
      }
      const ParamStore& params = engine.model().params();
      const std::lock_guard lock(mutex);
      for (const auto& piece : params.pieces()) {
        const Placement& p = params.placement({piece.param});
        const bool repeated = p.repeats > 1 && piece.offset >= params.offset({piece.param}) + p.repeated_from;
        if (p.cuts.has(Axis::tp) && !repeated) continue;
        const Tensor part =
            params.units()[size_t(piece.unit)]->master.slice(piece.offset, piece.offset + piece.part->numel);
        const auto* bytes = static_cast<const std::byte*>(part.data);
        found[piece.slice->name].emplace_back(bytes, bytes + part.bytes());
      }
    });
    EXPECT_GT(found.size(), size_t(2 * kLayers)) << "norms and positions";
    EXPECT_EQ(found.contains("model.layers.0.self_attn.k_proj.weight"), kv_heads == 1);
    for (const auto& [name, copies] : found) EXPECT_EQ(copies.at(0), copies.at(1)) << name;
  }
}

// The memory of logits (in one chunk) and of the rows of embedding and head is divided among ranks.
TEST(TensorParallel, LogitsAndEmbeddingsAreSharded) {
  constexpr int64_t kVocabulary = 1024;
  const auto bytes = [](int tensor, MemoryKind kind) {
    const Setting s{.type = ModelType::gpt2, .tensor = tensor, .vocab = kVocabulary};
    size_t found = 0;
    std::mutex mutex;
    on_ranks(s, [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
      const std::lock_guard lock(mutex);
      found = engine.memory().total(kind);
    });
    return int64_t(found);
  };
  const int64_t rows = kSequences * kLength;
  EXPECT_LT(bytes(4, MemoryKind::activations),
            bytes(1, MemoryKind::activations) - rows * kVocabulary * 4 / 2);  // a quarter of f32 logits, and less else
  EXPECT_LT(bytes(4, MemoryKind::gradients), bytes(1, MemoryKind::gradients) - 2 * kVocabulary * kHidden * 4 / 2);
}

TEST(TensorParallel, ReducesMemoryOfEveryRank) {
  for (const int stage : {0, 3}) {
    Setting s{.type = ModelType::gpt2, .shards = 2, .stage = stage};
    const Curve one = train(s, 0);
    s.tensor = 4;
    const Curve four = train(s, 0);
    EXPECT_LT(four.weights, one.weights) << s.name();
    EXPECT_LT(four.optimizer, one.optimizer) << s.name();
    for (size_t i = 1; i < four.planned.size(); ++i) EXPECT_EQ(four.planned[i], four.planned[0]) << s.name();
  }
}

// Checkpoints hold whole tensors: any other mesh, also without tensor parallelism, resumes from them and saves what it
// has loaded.
TEST(TensorParallel, CheckpointsAreIndependentOfGroups) {
  const testing::TempDir dir;
  const auto at = [&](const std::string& run, int64_t step) {
    return cat(dir.path(), "/", run, "/", step_folder(step));
  };
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const auto& [precision, master, moments] :
         {std::tuple{"fp32", DType::f32, DType::f32}, {"bf16", DType::i16, DType::bf16}}) {
      const std::string p = cat(name_of(type), precision);
      const Setting one{.type = type,
                        .tied = type == ModelType::gpt2,
                        .precision = precision,
                        .master = master,
                        .moments = moments,
                        .vocab = 131};
      Setting two = one;
      two.tensor = 2;
      run_part(one, "", 0, 0, cat(dir.path(), "/", p, "start1"));
      run_part(two, "", 0, 0, cat(dir.path(), "/", p, "start2"));
      EXPECT_EQ(tensors_of(at(p + "start1", 0)), tensors_of(at(p + "start2", 0))) << p;
      const auto whole = run_part(one, "", 0, 4, cat(dir.path(), "/", p, "whole"));
      run_part(two, "", 0, 2, cat(dir.path(), "/", p, "half"));
      for (const auto& [shards, tensor, stage] : {std::tuple{1, 1, 0}, {2, 2, 1}, {2, 2, 3}, {1, 2, 0}, {4, 1, 2}}) {
        Setting s = one;
        s.shards = shards, s.tensor = tensor, s.stage = stage;
        const std::string name = cat(p, shards, "x", tensor, "-", stage);
        const auto rest = run_part(s, at(p + "half", 2), 2, 4, cat(dir.path(), "/", name));
        for (size_t i = 0; i < 2; ++i)
          EXPECT_NEAR(rest[i], whole[i + 2], (precision == std::string("fp32") ? 1e-5 : 5e-3) * whole[i + 2]) << name;
        run_part(s, at(p + "half", 2), 2, 2, cat(dir.path(), "/", name, "copy"));
        EXPECT_EQ(tensors_of(at(p + "half", 2)), tensors_of(at(name + "copy", 2))) << name;
      }
    }
}

// Bytes read by this process so far.
int64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string word;
  int64_t bytes = -1;
  while (io >> word)
    if (word == "rchar:") io >> bytes;
  return bytes;
}

// A rank reads only its rows or columns of a matrix, and its shard of these.
TEST(TensorParallel, LoadsOnlyItsShard) {
  const testing::TempDir dir;
  // The table is larger than one ModelFolder::kBlockBytes.
  const Setting one{.type = ModelType::gpt2, .kv_heads = 4, .vocab = 17000, .hidden = 64, .intermediate = 128};
  run_part(one, "", 0, 1, cat(dir.path(), "/one"));
  const std::string folder = cat(dir.path(), "/one/", step_folder(1));
  int64_t files = 0, weights = 0;
  for (const auto& [name, bytes] : tensors_of(folder)) {
    files += int64_t(bytes.size());
    if (name.starts_with("model ")) weights += int64_t(bytes.size());
  }
  for (const auto& [tensor, shards, stage] : {std::tuple{1, 1, 0}, {4, 1, 0}, {2, 2, 1}, {1, 4, 3}}) {
    Setting s = one;
    s.tensor = tensor, s.shards = shards, s.stage = stage;
    int64_t read = 0, read_of_weights = 0;
    on_ranks(s, [&](Engine& engine, ProcessMesh& mesh, const CpuBackend& cpu) {
      mesh.world().barrier();
      if (mesh.world().rank() == 0) read = -bytes_read();
      mesh.world().barrier();
      load_checkpoint(engine, *cpu.device, folder);
      mesh.world().barrier();
      if (mesh.world().rank() == 0) read += bytes_read(), read_of_weights = -bytes_read();
      mesh.world().barrier();
      engine.init_weights();
      load_weights(engine, *cpu.device, ModelFolder(VerifiedModel{folder, true}));  // init_from
      mesh.world().barrier();
      if (mesh.world().rank() == 0) read_of_weights += bytes_read();
      const std::vector<float> masters = testing::all_masters(engine, *cpu.device);
      load_checkpoint(engine, *cpu.device, folder);
      EXPECT_EQ(testing::all_masters(engine, *cpu.device), masters) << s.name();
    });
    // Up to stage 2, every shard reads the weights, a third of the file.
    const double times = stage == 1 ? 4.0 / 3 : 1;
    EXPECT_NEAR(double(read) / double(files), times, 0.2) << s.name();
    EXPECT_NEAR(double(read_of_weights) / double(weights), stage == 1 ? 2 : 1, 0.3) << s.name();
  }
}

TEST(TensorParallel, WeightsFromAModelAreSharded) {
  for (const char* name : {"llama", "qwen2"}) {
    const std::string folder = cat("tests/golden/", name);
    std::vector<float> want;
    for (const auto& [shards, tensor, stage] :
         {std::tuple{1, 1, 0}, {2, 1, 0}, {3, 1, 1}, {2, 1, 2}, {3, 1, 3}, {1, 2, 0}, {3, 2, 3}}) {
      std::mutex mutex;
      const Setting s{.shards = shards, .stage = stage, .tensor = tensor};
      run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
        const CpuBackend cpu = make_cpu({.threads = 1});
        ProcessMesh mesh(std::move(world), s.mesh());
        Engine engine(load_model_config(folder + "/config.json"), options(s), {*cpu.device, *cpu.ops, mesh});
        engine.commit();
        load_weights(engine, *cpu.device, ModelFolder(folder));
        const auto masters = testing::all_masters(engine, *cpu.device);
        const std::lock_guard lock(mutex);
        if (want.empty()) want = masters;
        EXPECT_EQ(masters, want) << name << " " << s.name();
      });
    }
  }
}

// One all-reduce for attention and one for the MLP in each direction; recomputed blocks repeat those of forward. One of
// the embeddings, one of the gradient of the head's input; the max of the logits, and the sums of exponentials together
// with the targets' logits: 4 T and 8 T bytes in one chunk.
TEST(TensorParallel, TrafficMatchesTheDocumentedTable) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const int tensor : {2, 4})
      for (const char* precision : {"fp32", "bf16"})
        for (const auto recompute : {G::none, G::selective, G::full}) {
          const Setting s{
              .type = type, .precision = precision, .recompute = recompute, .tensor = tensor, .kv_heads = 4};
          const WatchedCurve curve = train_watched(s, {}, 1);
          const int64_t activations = kLayers * (recompute == G::full ? 6 : 4) + 2;
          const int64_t rows = kSequences * kLength, size = s.precision == std::string("fp32") ? 4 : 2;
          EXPECT_EQ(curve.sent.calls, activations + 2) << s.name();
          EXPECT_EQ(curve.sent.bytes, activations * rows * kHidden * size + 3 * rows * 4) << s.name();
          EXPECT_EQ(curve.planned.all().calls, curve.sent.calls) << s.name();
          EXPECT_EQ(curve.planned.all().bytes, curve.sent.bytes) << s.name();
          EXPECT_DOUBLE_EQ(curve.traffic, 2.0 * (tensor - 1) / tensor * double(curve.sent.bytes)) << s.name();
        }
}

// Ops that mishandle tokens of other ranks as a careless implementation would.
enum class Mistake : uint8_t { none, target_on_every_rank, row_of_another, gradient_twice, losses_count_twice };

class Careless final : public Decorated<Careless> {
 public:
  Careless(Ops& inner, Mistake mistake) : inner_(inner), mistake_(mistake) {}
  const Ops& inner() const { return inner_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    inner_.run(op, scratch);
    if constexpr (std::is_same_v<Op, LogitSums>) {
      if (mistake_ == Mistake::target_on_every_rank) add_first_column(op);
    } else if constexpr (std::is_same_v<Op, EmbeddingFwd>) {
      if (mistake_ == Mistake::row_of_another) add_first_row(op);
    } else if constexpr (std::is_same_v<Op, EmbeddingBwd>) {
      if (mistake_ == Mistake::gradient_twice) inner_.run(Add{.y = op.dwte, .a = op.dwte, .b = op.dwte}, nullptr);
    } else if constexpr (std::is_same_v<Op, ReduceSum>) {
      if (mistake_ == Mistake::losses_count_twice && op.x.numel() > 1) inner_.run(op, scratch);
    }
  }

 private:
  static void add_first_column(const LogitSums& op) {
    const int64_t n = op.logits.rows();
    for (int64_t i = 0; i < n; ++i)
      if (op.part.row(op.targets.as<int32_t>()[i]) < 0)
        op.sums.as<float>()[n + i] += op.logits.slice(i, i + 1).as<float>()[0] - op.max.as<float>()[i];
  }
  static void add_first_row(const EmbeddingFwd& op) {
    for (int64_t i = 0; i < op.y.rows(); ++i)
      for (int64_t c = 0; op.part.row(op.tokens.as<int32_t>()[i]) < 0 && c < op.y.cols(); ++c)
        op.y.slice(i, i + 1).as<float>()[c] += op.wte.as<float>()[c];
  }
  Ops& inner_;
  Mistake mistake_;
};

TEST(TensorParallel, DetectsMistakes) {
  const Setting s{.type = ModelType::gpt2, .tensor = 2};
  const Curve want = train(alone(s));
  const auto noticed = [&](const Watch& fault) {
    const WatchedCurve got = train_watched(s, fault, 3);
    return differs(want, got.losses, got.norms);
  };
  EXPECT_FALSE(noticed({}));
  // The embedding, forward of all blocks, the max of the logits, their sums, the gradient of the head's input, and
  // those of all blocks' inputs.
  const int64_t largest = 1 + 2 * kLayers;
  for (int64_t at = 0; at < 4 * kLayers + 4; ++at)
    for (const auto fault : {Watch::Fault::missing, Watch::Fault::twice}) {
      if (at == largest && fault == Watch::Fault::twice) continue;  // a repeated max of equal numbers
      EXPECT_TRUE(noticed({.fault = fault, .at = at})) << "sum " << at << " fault " << int(fault);
    }
  EXPECT_TRUE(noticed({.fault = Watch::Fault::bias_of_every_rank}));
}

// A step of SGD exposes the gradients themselves. Gradients that only some ranks have: with fewer KV heads than ranks,
// the weights and biases of qkv, in order of name, and those of the QK norms.
TEST(TensorParallel, GradientsOfReplicatedHeadsAreSummedOnce) {
  using Fault = Watch::Fault;
  struct Case {
    ModelType type;
    int64_t kv_heads;
    int tensor;
    int64_t sums;  // per block
  };
  for (const auto& [type, kv_heads, tensor, sums] :
       {Case{ModelType::llama, 1, 2, 1}, {ModelType::qwen2, 2, 4, 2}, {ModelType::qwen3, 4, 2, 2}}) {
    const Setting s{.type = type, .clip = 0, .lr = 1, .rule = RuleName::sgd, .tensor = tensor, .kv_heads = kv_heads};
    const Curve want = train(alone(s), 1);
    const auto off = [&](const Watch& fault) { return furthest(want, train_watched(s, fault, 1)); };
    const float rounding = off({});
    EXPECT_LT(rounding, 1e-6) << name_of(type);
    for (int64_t at = 0; at < sums * kLayers; ++at)
      for (const Fault fault : {Fault::missing, Fault::averaged, Fault::twice})
        EXPECT_GT(off({.fault = fault, .part = Watch::Part::update, .at = at}), 20 * rounding)
            << name_of(type) << " sum " << at << " " << int(fault);
  }
}

TEST(TensorParallel, DetectsTokensCountedOnTheWrongRank) {
  const Setting s{.type = ModelType::llama, .tied = true, .tensor = 2};
  const Curve want = train(alone(s));
  for (const Mistake mistake : {Mistake::none, Mistake::target_on_every_rank, Mistake::row_of_another,
                                Mistake::gradient_twice, Mistake::losses_count_twice}) {
    EXPECT_EQ(shows_with<Careless>(s, want, mistake), mistake != Mistake::none) << int(mistake);
  }
}

// A rank without data invalidates the step of all, though the other ranks of its group have the same samples.
TEST(TensorParallel, InvalidStepOfOneRankIsSkippedByAll) {
  const Setting s{.shards = 2, .stage = 1, .tensor = 2};
  std::mutex mutex;
  std::vector<int> skips;
  on_ranks(s, [&](Engine& engine, ProcessMesh& mesh, const CpuBackend&) {
    accumulate(engine, 0);
    if (mesh.world().rank() == 3) engine.poison_step();
    const StepState state = engine.finish_step();
    const std::lock_guard lock(mutex);
    skips.push_back(state.skip);
    EXPECT_FALSE(std::isfinite(state.loss));
  });
  EXPECT_EQ(skips, std::vector<int>(4, 1));
}

}  // namespace
}  // namespace athanor::ranks
