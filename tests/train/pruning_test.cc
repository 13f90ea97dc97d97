// Pruning in whole steps: which weights become zero, that they stay zero, and that results do not depend on the ranks.
#include <gtest/gtest.h>

#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

// Master weights of a tensor on a single-rank engine, and whether it is pruned.
struct Matrix {
  std::string name;
  bool pruned;
  int64_t columns;
  std::vector<float> values;
};

std::vector<Matrix> matrices(Engine& engine) {
  std::vector<Matrix> all;
  const ParamStore& params = engine.model().params();
  for (const auto& piece : params.pieces()) {
    const Tensor& master = params.units()[size_t(piece.unit)]->master;
    const float* first = master.as<float>() + piece.offset;
    all.push_back({piece.slice->name,
                   params.spec({piece.param}).role == Role::matrix,
                   piece.slice->shape[int(piece.slice->shape.rank) - 1],
                   {first, first + piece.slice->shape.numel()}});
  }
  return all;
}

int64_t zeros(const std::vector<float>& x) { return std::ranges::count(x, 0.0f); }

template <class Fn>
void with_engine(const Setting& s, const PruningOptions& pruning, const Fn& fn) {
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), s.mesh());
    EngineOptions o = options(s);
    o.pruning = pruning;
    Engine engine(tiny(s), o, {*cpu.device, *cpu.ops, mesh, nullptr, &mesh.world()});
    engine.commit();
    engine.init_weights();
    fn(engine, cpu);
  });
}

TEST(Pruning, SmallestWeightsPerMatrixAreZeroAndStayZero) {
  const Setting s{.type = ModelType::llama, .lr = 0.1};
  with_engine(s, {.exclude = {"*down_proj*"}}, [](Engine& engine, const CpuBackend&) {
    const std::vector<Matrix> before = matrices(engine);
    engine.prune(0.3);
    for (int64_t step = 0; step < 3; ++step) {
      const std::vector<Matrix> now = matrices(engine);
      for (size_t i = 0; i < now.size(); ++i) {
        const bool pruned = now[i].pruned && now[i].name.find("down_proj") == std::string::npos;
        EXPECT_EQ(zeros(now[i].values), pruned ? std::llround(0.3 * double(now[i].values.size())) : 0)
            << now[i].name << " after step " << step;
        if (!pruned || step > 0) continue;
        float largest_gone = 0, smallest_left = 1e9f;
        for (size_t k = 0; k < now[i].values.size(); ++k) {
          const float was = std::abs(before[i].values[k]);
          if (now[i].values[k] == 0) largest_gone = std::max(largest_gone, was);
          if (now[i].values[k] != 0) smallest_left = std::min(smallest_left, was);
        }
        EXPECT_LE(largest_gone, smallest_left) << now[i].name;
      }
      accumulate(engine, step);
      EXPECT_GT(engine.finish_step().grad_norm, 0);
    }
    engine.prune(0.5);
    for (const Matrix& m : matrices(engine)) {
      if (!m.pruned || m.name.find("down_proj") != std::string::npos) continue;
      EXPECT_EQ(zeros(m.values), int64_t(m.values.size()) / 2) << m.name;
    }
  });
}

TEST(Pruning, GlobalScopeRanksWeightsOfAllMatrices) {
  with_engine({.type = ModelType::gpt2}, {.scope = PruneScope::global}, [](Engine& engine, const CpuBackend&) {
    engine.prune(0.25);
    int64_t all = 0, zero = 0;
    std::map<int64_t, int> shares;
    for (const Matrix& m : matrices(engine)) {
      if (!m.pruned) continue;
      all += int64_t(m.values.size()), zero += zeros(m.values);
      ++shares[zeros(m.values) * 100 / int64_t(m.values.size())];
    }
    EXPECT_EQ(zero, std::llround(0.25 * double(all)));
    EXPECT_GT(shares.size(), 1U) << "output projections begin smaller, and lose more";
  });
}

TEST(Pruning, TwoOfFourPatternHoldsPerOutput) {
  with_engine({.type = ModelType::llama, .lr = 0.1}, {.pattern = PrunePattern::two_of_four},
              [](Engine& engine, const CpuBackend&) {
                engine.prune(0.5);
                accumulate(engine, 0);
                engine.finish_step();
                for (const Matrix& m : matrices(engine)) {
                  if (!m.pruned) continue;
                  ASSERT_EQ(m.columns % 4, 0);
                  for (size_t at = 0; at < m.values.size(); at += 4)
                    EXPECT_EQ(std::count(m.values.begin() + int64_t(at), m.values.begin() + int64_t(at) + 4, 0.0f), 2)
                        << m.name << " " << at;
                }
              });
}

// `equal`: all weights have the same magnitude, so that every choice is a tie.
TEST(Pruning, AnyRanksPruneTheSameWeights) {
  for (const bool equal : {false, true}) {
    std::vector<float> want;
    for (const auto& [stage, replicas, shards, context] :
         {std::array{0, 1, 1, 1}, {0, 1, 2, 1}, {0, 1, 1, 2}, {1, 1, 2, 1}, {2, 1, 2, 2}, {3, 2, 2, 1}}) {
      Setting s{.type = ModelType::llama, .lr = 0, .length = 8};
      s.stage = stage, s.shards = shards, s.replicas = replicas, s.context = context;
      std::mutex mutex;
      with_engine(s, {}, [&](Engine& engine, const CpuBackend& cpu) {
        if (equal) {
          for (const auto& unit : engine.model().params().units())
            cpu.ops->run(Fill{.x = unit->master, .value = 0.5f}, nullptr);
          engine.refresh_values();
        }
        engine.prune(0.37);
        accumulate(engine, 0);
        engine.finish_step();
        const auto masters = testing::all_masters(engine, *cpu.device);
        const std::lock_guard lock(mutex);
        if (want.empty()) want = masters;
        EXPECT_EQ(masters, want) << s.name();
      });
    }
  }
}

TEST(Pruning, SplitMastersArePrunedByTheirFp32Value) {
  Setting fp32{.type = ModelType::llama, .precision = "bf16", .lr = 0}, split = fp32;
  split.master = DType::i16;
  std::vector<float> want;
  for (const Setting& s : {fp32, split})
    with_engine(s, {}, [&](Engine& engine, const CpuBackend& cpu) {
      engine.prune(0.5);
      const auto masters = testing::all_masters(engine, *cpu.device);
      if (want.empty()) want = masters;
      ASSERT_EQ(masters.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(masters[i] == 0, want[i] == 0) << i;
    });
}

// Averages that began before the pruning are those of evaluations and exports.
TEST(Pruning, AveragesOfPrunedWeightsAreZero) {
  for (const Setting& s : {Setting{.type = ModelType::llama, .lr = 0.1, .ema = 0.9},
                           {.type = ModelType::llama, .lr = 0.1, .tail = 1},
                           {.type = ModelType::llama, .lr = 0.1, .rule = RuleName::schedule_free_adamw},
                           {.type = ModelType::llama, .lr = 0.1, .ema = 0.9, .offload = 64}})
    with_engine(s, {}, [](Engine& engine, const CpuBackend&) {
      for (int64_t step = 0; step < 4; ++step) {
        accumulate(engine, step);
        engine.finish_step();
        if (step == 1) engine.prune(0.5);
        if (step < 1) continue;
        engine.use_averages();
        int64_t pruned = 0, zero = 0;
        for (const PrunedMatrix& m : engine.pruned_matrices()) pruned += m.zeros;
        for (const Matrix& m : matrices(engine)) zero += m.pruned ? zeros(m.values) : 0;
        EXPECT_EQ(zero, pruned) << "after step " << step;
        engine.use_weights();
      }
    });
}

TEST(Pruning, UnsupportedMatricesAreRefused) {
  const auto refusal = [](ModelType type, const PruningOptions& pruning) -> std::string {
    try {
      with_engine({.type = type}, pruning, [](Engine&, const CpuBackend&) {});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refusal(ModelType::gpt2, {.pattern = PrunePattern::two_of_four}).find("model_type gpt2"),
            std::string::npos);
  EXPECT_NE(refusal(ModelType::llama, {.exclude = {"nothing"}}).find("\"nothing\" matches no matrix"),
            std::string::npos);
  EXPECT_NE(refusal(ModelType::llama, {.exclude = {"*"}}).find("leaves no matrix"), std::string::npos);
}

}  // namespace
}  // namespace athanor::ranks
