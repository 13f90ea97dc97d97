// Updates of whole matrices distributed over ranks: no matrix is orthogonalized twice, ranks have equal work, they send
// what the plan says, and a part that is lost, late or misplaced changes the weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <set>

#include "perf/traffic.h"
#include "tests/comm/forwarding.h"
#include "tests/sanitized.h"
#include "tests/train/ranks_rig.h"

namespace athanor {
namespace {

using namespace ranks;

enum class Fault : uint8_t { none, lost, late, shifted };

// Watches the calls of all ranks that hold parts of the weights (ProcessMesh::weights()), and makes a mistake in one
// call.
struct Watch {
  Fault fault = Fault::none;
  int64_t at = -1;                              // index of the all_to_all with the mistake
  int64_t calls = 0;                            // number of all_to_all calls so far
  std::vector<std::vector<int64_t>> sent = {};  // bytes, by call and rank
  std::vector<int64_t> summed = {};             // bytes of each all_reduce
};

class Watched final : public Forwarding {
 public:
  // Whether it wraps the group itself, or the world from which the group is split.
  enum class Of : uint8_t { group, world };
  Watched(std::unique_ptr<Communicator> inner, Watch& watch, Of of)
      : Forwarding(std::move(inner)), watch_(watch), splits_(of == Of::world ? 0 : kAxes + 1) {}
  // After the axes, the mesh splits off the group of all data-parallel ranks.
  std::unique_ptr<Communicator> split(int color, int key) override {
    auto part = inner_->split(color, key);
    return splits_++ == kAxes ? std::make_unique<Watched>(std::move(part), watch_, Of::group) : std::move(part);
  }
  void all_reduce(Tensor x, Reduce how, Stream stream) override {
    watch_.summed.push_back(int64_t(x.bytes()));
    inner_->all_reduce(x, how, stream);
  }
  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream stream) override {
    auto& sent = watch_.sent.emplace_back();
    for (size_t r = 0; r < out.size(); ++r) sent.push_back(out[r] && int(r) != rank() ? int64_t(out[r].bytes()) : 0);
    std::vector<std::vector<std::byte>> before;
    for (const Tensor& t : in) {
      const auto* bytes = static_cast<const std::byte*>(t.data);
      before.emplace_back(bytes, bytes + (t ? t.bytes() : 0));
    }
    inner_->all_to_all(out, in, stream);
    if (watch_.calls++ == watch_.at) corrupt(in, before);
  }

 private:
  // Corrupts what came from other ranks: zeros, the previous content, or shifted by one element.
  void corrupt(std::span<const Tensor> in, const std::vector<std::vector<std::byte>>& before) {
    for (size_t r = 0; r < in.size(); ++r) {
      if (!in[r] || int(r) == rank()) continue;
      auto* bytes = static_cast<std::byte*>(in[r].data);
      const size_t size = in[r].bytes();
      if (watch_.fault == Fault::lost) std::memset(bytes, 0, size);
      if (watch_.fault == Fault::late) std::memcpy(bytes, before[r].data(), size);
      if (watch_.fault == Fault::shifted) std::rotate(bytes, bytes + size_of(in[r].dtype), bytes + size);
    }
  }
  Watch& watch_;
  int splits_;
};

struct Outcome {
  std::vector<float> masters;
  std::vector<double> losses;
  std::vector<Watch> watches;       // by rank, of the last step
  std::vector<double> gemm_flops;   // FLOPs of GEMMs in the update, by rank
  std::vector<UpdateSums> planned;  // by rank
  double traffic = 0;               // bytes in the plan of rank 0
};

// at_once: OptimizerOptions::muon_elements_at_once; 0: tensor after tensor, so that exchanges overlap.
Outcome run(const Setting& s, const Watch& fault = {}, int64_t steps = 2, int64_t at_once = 0) {
  Outcome run;
  const auto n = size_t(s.ranks());
  run.watches.resize(n), run.gemm_flops.resize(n), run.planned.resize(n);
  std::mutex mutex;
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    Watch watch = fault;
    const int rank = world->rank();
    const auto of = s.tensor > 1 ? Watched::Of::group : Watched::Of::world;
    ProcessMesh mesh(std::make_unique<Watched>(std::move(world), watch, of), s.mesh());
    EngineOptions of_engine = options(s);
    of_engine.optimizer.muon_elements_at_once = at_once;
    Engine engine(tiny(s), of_engine, {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    engine.init_weights();
    std::vector<double> losses;
    for (int64_t step = 0; step < steps; ++step) {
      accumulate(engine, step);
      watch.sent.clear(), watch.summed.clear();
      const StepState state = engine.finish_step();
      losses.push_back(state.loss / state.loss_targets);
    }
    const Watch seen = watch;
    auto masters = testing::all_masters(engine, *cpu.device);  // communicates, so `seen` is copied first
    const std::lock_guard lock(mutex);
    for (const Launch& launch : engine.update_launches())
      if (launch.multiplies()) run.gemm_flops[size_t(rank)] += launch.cost.flops;
    run.watches[size_t(rank)] = seen;
    run.planned[size_t(rank)] = engine.update_sums();
    if (rank != 0) return;
    run.masters = std::move(masters), run.losses = losses;
    run.traffic = step_traffic(engine, mesh, {1e9, 1e9, 8}).matrices.bytes;
  });
  return run;
}

std::vector<Setting> all_grids(RuleName rule) {
  std::vector<Setting> all;
  for (const auto& [replicas, shards, stage] :
       {std::array{1, 2, 0}, {1, 4, 0}, {1, 4, 1}, {2, 2, 1}, {2, 2, 2}, {1, 3, 3}, {2, 2, 3}, {4, 1, 1}})
    for (const ModelType type : {ModelType::llama, ModelType::gpt2})
      all.push_back({.type = type, .replicas = replicas, .shards = shards, .stage = stage, .rule = rule});
  for (const auto& [replicas, shards, stage, tensor] :
       {std::array{1, 1, 0, 2}, {1, 1, 0, 4}, {2, 1, 0, 2}, {1, 2, 1, 2}, {1, 3, 3, 2}, {2, 1, 1, 2}})
    for (const int64_t kv_heads : {4, 2})
      all.push_back({.type = kv_heads == 4 ? ModelType::gpt2 : ModelType::llama,
                     .replicas = replicas,
                     .shards = shards,
                     .stage = stage,
                     .rule = rule,
                     .tensor = tensor,
                     .kv_heads = kv_heads});
  return all;
}

TEST(MatrixOwners, EveryMatrixHasOneOwnerAndRankZeroTheLargestShare) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const double all = run({.type = type, .rule = RuleName::muon}, {}, 0).gemm_flops[0];
    ASSERT_GT(all, 0);
    for (const Setting& s : all_grids(RuleName::muon)) {
      if (s.type != type) continue;
      const std::vector<double> each = run(s, {}, 0).gemm_flops;
      EXPECT_EQ(std::accumulate(each.begin(), each.end(), 0.0), all) << s.name();
      EXPECT_EQ(*std::ranges::max_element(each), each[0]) << s.name();
      EXPECT_LT(each[0], 1.5 * all / double(each.size())) << s.name();
    }
  }
}

TEST(MatrixOwners, TrafficMatchesThePlan) {
  for (const RuleName rule : {RuleName::muon, RuleName::normuon})
    for (const Setting& s : all_grids(rule)) {
      const Outcome got = run(s);
      const auto& exchanges = got.planned[0].exchanges;
      double most = 0;  // bytes sent by the busiest rank of each call
      for (const MatrixExchange& exchange : exchanges) {
        std::vector<double> sent(size_t(s.ranks()));
        for (const auto& part : exchange.parts) sent[size_t(part.from)] += double(part.bytes);
        most += *std::ranges::max_element(sent);
      }
      // Compared as sets: the averages of the next round are sent before the updates of this one.
      for (size_t rank = 0; rank < got.watches.size(); ++rank) {
        std::multiset<std::vector<int64_t>> sent(got.watches[rank].sent.begin(), got.watches[rank].sent.end()), want;
        for (const MatrixExchange& exchange : exchanges) {
          std::vector<int64_t> row(size_t(s.ranks()));
          for (const auto& [from, to, bytes] : exchange.parts)
            if (from == int(rank)) row[size_t(to)] += bytes;
          want.insert(row);
        }
        EXPECT_EQ(sent, want) << s.name() << " rank " << rank;
        int64_t numbers = 0;
        for (const int64_t bytes : got.watches[rank].summed) numbers += bytes > 8 ? bytes : 0;  // loss, norm: 8
        if (s.tensor == 1) numbers -= int64_t(sizeof(double)) * (1 + kRequestSums);             // targets and requests
        EXPECT_EQ(numbers, got.planned[rank].numbers_bytes) << s.name();
      }
      EXPECT_EQ(got.traffic, most) << s.name();
      EXPECT_EQ(got.planned[0].numbers_bytes > 0, rule == RuleName::normuon);
    }
}

// Every rank keeps its part of everything, so lost or misplaced parts show in the weights.
TEST(MatrixOwners, BatchedExchangesMatchTensorByTensor) {
  for (const RuleName rule : {RuleName::muon, RuleName::normuon})
    for (const Setting& s : {Setting{.rule = rule}, Setting{.shards = 2, .stage = 1, .rule = rule}}) {
      const Outcome apart = run(s);
      for (const int64_t at_once : {3000, 1 << 20}) {
        const Outcome together = run(s, {}, 2, at_once);
        EXPECT_EQ(together.masters, apart.masters) << s.name() << ", " << at_once;
        EXPECT_EQ(together.traffic, apart.traffic) << s.name() << ", " << at_once;
      }
    }
}

TEST(MatrixOwners, DetectsExchangeMistakes) {
  for (const Setting& s : {Setting{.replicas = 2, .shards = 2, .stage = 1, .rule = RuleName::muon},
                           Setting{.shards = 2, .stage = 0, .rule = RuleName::normuon},
                           Setting{.shards = 2, .stage = 2, .rule = RuleName::normuon, .tensor = 2, .kv_heads = 1},
                           Setting{.type = ModelType::gpt2, .shards = 3, .stage = 3, .rule = RuleName::muon}}) {
    const Outcome right = run(s, {}, 1);
    const auto calls = int64_t(right.planned[0].exchanges.size());
    ASSERT_GT(calls, 2);
    EXPECT_EQ(run(s, {}, 1).masters, right.masters);
    for (const Fault fault : {Fault::lost, Fault::late, Fault::shifted})
      for (int64_t at = 0; at < calls; at += kSanitized ? 3 : 1)
        EXPECT_NE(run(s, {.fault = fault, .at = at}, 1).masters, right.masters)
            << s.name() << " fault " << int(fault) << " call " << at << " of " << calls;
  }
}

}  // namespace
}  // namespace athanor
