// The single law for several ranks: the loss curve equals that of one rank, whatever is sharded over how many ranks,
// with every micro-batching and recomputation; and each rank plans less memory. Ranks are threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include "base/file.h"
#include "base/rng.h"
#include "comm/threads.h"
#include "config/config.h"
#include "cpu/make_cpu.h"
#include "tests/train/watched_group.h"
#include "train/checkpointer.h"

namespace athanor::ranks {
namespace {

// All combinations of model, precision, ZeRO stage, ranks (also as two replicas of sharded ranks), accumulation and
// recomputation.
std::vector<Setting> all_shardings() {
  std::vector<Setting> all;
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const char* precision : {"fp32", "bf16"})
      for (const int stage : {0, 1, 2, 3})
        for (const int ranks : {1, 2, 3, 4, 6, 8})
          for (const int replicas : {1, 2})
            for (const int64_t accumulation : {1, 4})
              for (const auto recompute : {Recompute::Granularity::none, Recompute::Granularity::full})
                if (replicas == 1 || (stage > 0 && ranks >= 4 && ranks % 2 == 0))
                  all.push_back({.type = type,
                                 .tied = type == ModelType::gpt2,
                                 .precision = precision,
                                 .replicas = replicas,
                                 .shards = ranks / replicas,
                                 .stage = stage,
                                 .accumulation = accumulation,
                                 .recompute = recompute});
  return all;
}

// A sample of them; all with ATHANOR_FULL=1 (scripts/test.sh --all).
TEST(Ranks, LossesMatchOneRank) {
  const auto every = size_t(testing::every_case(7));  // coprime to the numbers of choices
  std::map<std::string, Curve> one;
  const auto all = all_shardings();
  for (size_t i = 0; i < all.size(); i += every) {
    const Setting& s = all[i];
    const Setting alone{.type = s.type, .tied = s.tied, .precision = s.precision};
    if (!one.contains(alone.name())) one[alone.name()] = train(alone, 10);
    expect_same(one[alone.name()], train(s, 10), s.precision == std::string("fp32") ? 1e-5 : 5e-3, s.name());
  }
}

TEST(Ranks, LossesOfFiftyStepsStayClose) {
  const Curve want = train({}, 50);
  for (const int stage : {0, 1, 2, 3}) {
    const Setting s{.shards = 4, .stage = stage, .accumulation = 2};
    expect_same(want, train(s, 50), 1e-4, s.name());
  }
}

TEST(Ranks, ReplicatedShardsAreBitExact) {
  const Curve want = train({});
  for (const auto& [replicas, shards] : {std::pair{2, 2}, {4, 1}, {2, 3}, {3, 2}})
    for (const int stage : {0, 1, 2, 3}) {
      const Setting s{.replicas = replicas, .shards = shards, .stage = stage};
      expect_same(want, train(s), 1e-5, s.name());
    }
}

TEST(Ranks, EveryPrecisionAndFamilyMatchesOneRank) {
  struct Case {
    ModelType type;
    const char* precision;
    DType master;
    double tolerance;
  };
  for (const Case& c :
       {Case{ModelType::qwen3, "bf16", DType::f32, 2e-3}, Case{ModelType::gpt2, "bf16", DType::bf16, 5e-3},
        Case{ModelType::qwen2, "fp16", DType::f32, 5e-4}, Case{ModelType::llama, "tf32", DType::f32, 2e-4},
        Case{ModelType::athanor, "fp32", DType::f32, 1e-5}})
    for (const int stage : {1, 2, 3}) {
      Setting s{.type = c.type, .tied = c.type == ModelType::gpt2, .precision = c.precision, .master = c.master};
      const Curve want = train(s);
      s.shards = 2, s.stage = stage;
      expect_same(want, train(s), c.tolerance, s.name());
    }
}

// Routers choose by logits that are bit-identical as long as the weights are; only sums over ranks differ.
TEST(Ranks, MixturesOfExpertsMatchOneRank) {
  for (const RuleName rule : {RuleName::adamw, RuleName::muon}) {
    const ModelType type = rule == RuleName::muon ? ModelType::qwen3_moe : ModelType::dots1;  // dots1 has a router bias
    const Curve want = train({.type = type, .rule = rule});
    for (const int stage : {0, 3}) {
      const Setting s{.type = type, .shards = 2, .stage = stage, .accumulation = 2, .rule = rule};
      expect_same(want, train(s), 1e-5, s.name());
    }
  }
}

// With every sharding, split master weights match f32 ones, and bf16 moments are rounded by their index in the unit.
TEST(Ranks, SplitMastersMatchF32Masters) {
  struct Case {
    int replicas, shards;
    RuleName rule = RuleName::adamw;
  };
  for (const Case& c : {Case{1, 1}, {1, 3}, {2, 2}, {1, 2, RuleName::lamb}, {1, 2, RuleName::adamw_8bit}})
    for (const int stage : {0, 1, 2, 3}) {
      Setting s{.precision = "bf16", .replicas = c.replicas, .shards = c.shards, .stage = stage, .rule = c.rule};
      const Curve whole = train(s);
      s.master = DType::i16;
      const Curve split = train(s);
      EXPECT_EQ(whole.losses, split.losses) << s.name();
      EXPECT_EQ(whole.norms, split.norms) << s.name();
      EXPECT_EQ(whole.masters, split.masters) << s.name();
      EXPECT_EQ(whole.evaluation, split.evaluation) << s.name();
      EXPECT_LT(split.weights, whole.weights) << s.name();
    }
}

// Equal gradients get equal random bits, wherever the moments of a weight are stored. All stages sum over ranks in the
// same order; only norms are summed in another order, and they clip nothing here.
TEST(Ranks, Bf16MomentsDoNotDependOnShards) {
  Setting s{.precision = "bf16", .master = DType::i16, .shards = 3, .stage = 1, .moments = DType::bf16, .clip = 0};
  const Curve want = train(s);
  for (const int stage : {0, 2, 3}) {
    s.stage = stage;
    const Curve got = train(s);
    EXPECT_EQ(want.losses, got.losses) << s.name();
    EXPECT_EQ(want.masters, got.masters) << s.name();
  }
  s.shards = 1;
  expect_same(want, train(s), 5e-3, s.name());
  s.moments = DType::f32;
  EXPECT_GT(train(s).optimizer, 1.9 * want.optimizer);
}

// Ranks send bf16, and the sum is rounded once; with one micro-batch, all stages give the same bits.
TEST(Ranks, Bf16GradientsMatchOneRank) {
  const Setting one{.precision = "bf16", .gradients = DType::bf16};
  const Curve want = train(one, 10);
  for (const auto& [replicas, shards] : {std::pair{1, 3}, {2, 2}})
    for (const int stage : {0, 1, 2, 3})
      for (const int64_t accumulation : {1, 4}) {
        Setting s = one;
        s.replicas = replicas, s.shards = shards, s.stage = stage, s.accumulation = accumulation;
        expect_same(want, train(s, 10), 5e-3, s.name());
      }
  Setting s{.precision = "bf16", .shards = 3, .clip = 0};
  const Curve full = train(s);
  s.gradients = DType::bf16;
  const Curve whole = train(s);
  EXPECT_NE(full.masters, whole.masters);
  EXPECT_NEAR(2.0 * double(whole.gradients) / double(full.gradients), 1, 0.02);  // except for padding
  for (const int stage : {1, 2, 3}) {
    s.stage = stage;
    const Curve got = train(s);
    EXPECT_EQ(whole.losses, got.losses) << s.name();
    EXPECT_EQ(whole.masters, got.masters) << s.name();
  }
  expect_equal(train(s), train(s), "twice");
  const testing::TempDir dir;
  const std::string whole_run = dir.path() + "/whole", half = dir.path() + "/half", rest = dir.path() + "/rest";
  const auto losses = run_part(s, "", 0, 4, whole_run), first = run_part(s, "", 0, 2, half);
  const auto last = run_part(s, cat(half, "/", step_folder(2)), 2, 4, rest);
  EXPECT_EQ(losses, (std::vector{first[0], first[1], last[0], last[1]}));
  EXPECT_EQ(tensors_of(cat(whole_run, "/", step_folder(4))), tensors_of(cat(rest, "/", step_folder(4))));
  // With tensor or context parallelism. With a tied head, some ranks count none of a unit's gradients.
  for (const bool tied : {false, true})
    for (const int context : {1, 2}) {
      Setting shared{.tied = tied, .precision = "bf16", .gradients = DType::bf16, .length = 8};
      const Curve alone = train(shared);
      shared.tensor = context == 1 ? 2 : 1, shared.context = context, shared.shards = 2, shared.stage = 1;
      expect_same(alone, train(shared), 5e-3, shared.name());
    }
}

// Traffic of sharded weights and gradients in the micro-batches of a step: units are all-gathered twice, but the last
// one once, since the head keeps it for backward; an embedding tied to the head is gathered three times, and its
// gradients are sent twice.
TEST(Ranks, TrafficMatchesTheDocumentedTable) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const bool tied : {false, true})
      for (const char* precision : {"fp32", "bf16"})
        for (const auto recompute : {Recompute::Granularity::none, Recompute::Granularity::full})
          for (const int stage : {2, 3}) {
            Setting s{.type = type, .tied = tied, .precision = precision, .shards = 3, .stage = stage};
            s.accumulation = 2, s.recompute = recompute;
            const WatchedCurve curve = train_watched(s, {.axis = Axis::dp_shard}, 1);
            const int64_t size = s.precision == std::string("fp32") ? 4 : 2, units = int64_t(curve.units.size());
            const int64_t all = std::accumulate(curve.units.begin(), curve.units.end(), int64_t{0});
            const int64_t again = tied ? curve.units.front() : 0;
            const int64_t gathered = stage == 3 ? 2 * all - curve.units.back() + again : 0;
            const int64_t gathers = stage == 3 ? 2 * units - 1 + tied : 0;
            EXPECT_EQ(curve.sent.row_calls, s.accumulation * (gathers + units + tied)) << s.name();
            EXPECT_EQ(curve.sent.row_bytes, s.accumulation * (gathered * size + (all + again) * 4)) << s.name();
            EXPECT_EQ(curve.sent.calls, 0) << s.name();
            EXPECT_DOUBLE_EQ(curve.traffic, 2.0 / 3 * double(curve.sent.row_bytes)) << s.name();
          }
}

// FP8/FP4 GEMMs accumulate into bf16 gradients, too.
TEST(Ranks, Bf16GradientsOfQuantizedWeightsMatchOneRank) {
  for (const char* precision : {"fp8_tensorwise", "fp8_blockwise", "nvfp4"}) {
    Setting s{.precision = precision, .accumulation = 2, .hidden = 32, .intermediate = 48};
    const Curve full = train(s);
    s.gradients = DType::bf16;
    const Curve got = train(s);
    EXPECT_NE(full.masters, got.masters) << precision;
    expect_same(full, got, 5e-3, precision);
  }
}

// All supporting rules: results are close to those with f32 gradients, and the same on any ranks except for the order
// of sums.
TEST(Ranks, OptimizersSupportBf16Gradients) {
  for (const RuleName rule : {RuleName::adam, RuleName::sgd, RuleName::lion, RuleName::muon, RuleName::normuon,
                              RuleName::adamw_8bit, RuleName::schedule_free_adamw}) {
    Setting s{.precision = "bf16", .lr = rule == RuleName::lion ? 1e-4 : 1e-3, .rule = rule};
    const Curve full = train(s, 6);
    s.gradients = DType::bf16;
    const Curve got = train(s, 6);
    EXPECT_NE(full.masters, got.masters) << kRuleNames[size_t(rule)];
    expect_same(full, got, 5e-3, std::string(kRuleNames[size_t(rule)]));
    s.shards = 2, s.stage = 3;
    expect_same(got, train(s, 6), 5e-3, std::string(kRuleNames[size_t(rule)]) + " on two ranks");
  }
}

TEST(Ranks, RecomputationIsBitExact) {
  for (const int stage : {0, 2, 3}) {
    Setting s{.shards = 2, .stage = stage};
    const Curve none = train(s);
    for (const auto recompute : {Recompute::Granularity::selective, Recompute::Granularity::full}) {
      s.recompute = recompute;
      const Curve again = train(s);
      EXPECT_EQ(none.losses, again.losses) << s.name();
      EXPECT_EQ(none.masters, again.masters) << s.name();
    }
  }
}

TEST(Ranks, RunsAreDeterministic) {
  for (const int stage : {0, 1, 2, 3}) {
    const Setting s{.shards = 3, .stage = stage, .accumulation = 4};
    const Curve a = train(s), b = train(s);
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.masters, b.masters);
  }
}

TEST(Ranks, RankInvariantSumsAreBitExactOnAnyRanks) {
  for (const char* precision : {"fp32", "bf16"})
    for (const int64_t leaves : {4, 8}) {
      Setting s{.type = ModelType::gpt2, .tied = true, .precision = precision, .masked = true, .leaves = leaves};
      const Curve want = train(s);
      expect_same(train({.type = s.type, .tied = true, .precision = precision, .masked = true}), want,
                  s.precision == std::string("fp32") ? 1e-5 : 2e-3, s.name());
      for (const auto& [replicas, shards] : {std::pair{1, 2}, {2, 1}, {1, 4}, {2, 2}, {4, 1}, {1, 8}, {2, 4}})
        for (const int stage : {0, 1, 2, 3}) {
          if (replicas * shards > leaves) continue;
          s.replicas = replicas, s.shards = shards, s.stage = stage;
          expect_equal(want, train(s), s.name());
        }
    }
}

// The reduction tree is over logical shards: another number of them gives other bits, or the test above could not fail.
TEST(Ranks, LogicalShardsChangeTheBits) {
  const Setting s{.leaves = 2}, t{.leaves = 8}, none{.accumulation = 24};
  EXPECT_NE(train(s).masters, train(t).masters);
  EXPECT_NE(train(none).masters, train(t).masters);
  const Setting sharded{.shards = 2, .stage = 1, .accumulation = 12}, other{.shards = 4, .stage = 1, .accumulation = 6};
  EXPECT_NE(train(sharded).masters, train(other).masters) << "in the order of the ranks";
}

TEST(Ranks, RankInvariantSumsSupportSkipsRecomputationAndFrozenWeights) {
  for (const int stage : {0, 3}) {
    Setting s{.type = ModelType::qwen2, .precision = "fp16", .frozen = {"mlp"}, .leaves = 8};
    const Curve want = train(s);
    s.shards = 4, s.stage = stage, s.recompute = Recompute::Granularity::full;
    expect_equal(want, train(s), s.name());
  }
}

// Levels of the tree within a rank hold whole gradients: log2(logical shards per rank) of them, all of them in the
// plan.
TEST(Ranks, RankInvariantSumsPlanTheirReductionTree) {
  Setting s{.leaves = 8};
  const auto one = train(s, 1).gradients;
  s.shards = 4, s.stage = 2;
  const auto four = train(s, 1).gradients;
  EXPECT_EQ(one, four * 4 / 2);  // gradients and three levels, compared with gradients and one level
}

TEST(Ranks, InitialWeightsDoNotDependOnShards) {
  Setting s{.type = ModelType::gpt2, .tied = true};
  const Curve want = train(s, 0);
  for (const int stage : {1, 2, 3}) {
    s.shards = 3, s.stage = stage;
    EXPECT_EQ(train(s, 0).masters, want.masters) << s.name();
  }
}

TEST(Ranks, FrozenParametersDoNotChangeOnAnyRank) {
  const Curve want = train({.frozen = {"mlp"}});
  for (const int stage : {0, 1, 2, 3}) {
    const Setting s{.shards = 2, .stage = stage, .frozen = {"mlp"}};
    expect_same(want, train(s), 1e-5, s.name());
  }
}

// Loss and gradients are means over the targets of all ranks, not means of the ranks' means.
TEST(Ranks, IgnoredTargetsAreExcludedOnEveryRank) {
  const Curve want = train({.masked = true});
  for (const int stage : {0, 1, 2, 3}) {
    const Setting s{.shards = 3, .stage = stage, .accumulation = 2, .masked = true};
    expect_same(want, train(s), 1e-5, s.name());
  }
}

TEST(Ranks, EveryZeroStagePlansLessMemory) {
  Setting s{.precision = "bf16", .shards = 4};
  std::vector<Curve> by_stage;
  for (s.stage = 0; s.stage < 4; ++s.stage) by_stage.push_back(train(s, 1));
  const Curve& whole = by_stage[0];
  for (int stage = 1; stage < 4; ++stage)
    EXPECT_NEAR(double(by_stage[size_t(stage)].optimizer), double(whole.optimizer) / 4, double(whole.optimizer) / 10);
  EXPECT_GE(by_stage[1].gradients, whole.gradients);  // unsharded, with padding to equal shards
  EXPECT_LT(by_stage[2].gradients, whole.gradients / 3);
  EXPECT_LT(by_stage[1].weights, whole.weights);
  EXPECT_LT(by_stage[3].weights, by_stage[2].weights);
}

// The padded vocabulary has no counterpart in files; a rank whose shard is all padding must still participate.
TEST(Ranks, SupportsMoreRanksThanParametersOfAUnit) {
  const Curve want = train({});
  const Setting s{.shards = 16, .stage = 3};
  expect_same(want, train(s, 3), 1e-5, s.name());
}

// A checkpoint holds the same tensors whichever ranks wrote it; any other ranks and ZeRO stage resume from it with the
// next samples.
TEST(Ranks, CheckpointsAreIndependentOfRanks) {
  const testing::TempDir dir;
  const auto steps = [&](const Setting& s, const std::string& load, int64_t from, int64_t to, const std::string& save) {
    return run_part(s, load, from, to, dir.path() + "/" + save);
  };
  const auto content = [&](const std::string& run, int64_t step) {
    return tensors_of(cat(dir.path(), "/", run, "/", step_folder(step)));
  };
  for (const auto& [precision, rule] : {std::pair{"fp32", RuleName::adamw},
                                        {"bf16", RuleName::adamw},
                                        {"fp32", RuleName::normuon},
                                        {"fp32", RuleName::adafactor},
                                        {"bf16", RuleName::adamw_8bit}}) {
    const std::string p = cat(precision, kRuleNames[size_t(rule)]);
    const Setting one{.precision = precision, .rule = rule};
    const Setting two{.precision = precision, .shards = 2, .stage = 3, .rule = rule};
    const auto whole = steps(one, "", 0, 4, p + "whole");
    steps(one, "", 0, 0, p + "start-of-one");
    steps(two, "", 0, 0, p + "start-of-two");
    EXPECT_EQ(content(p + "start-of-one", 0), content(p + "start-of-two", 0));
    steps(two, "", 0, 2, p + "half");
    for (const auto& [ranks, stage] : {std::pair{1, 0}, {2, 3}, {3, 1}, {2, 2}, {4, 3}, {2, 0}}) {
      const Setting s{.precision = precision, .shards = ranks, .stage = stage, .rule = rule};
      const std::string name = cat(p, "from-", ranks, "-", stage);
      const auto rest = steps(s, cat(dir.path(), "/", p, "half/", step_folder(2)), 2, 4, name);
      for (size_t i = 0; i < 2; ++i)
        EXPECT_NEAR(rest[i], whole[i + 2], (p.starts_with("fp32") ? 1e-5 : 2e-3) * whole[i + 2]) << name;
      steps(s, cat(dir.path(), "/", p, "half/", step_folder(2)), 2, 2,
            name + "-copy");  // what is loaded is saved unchanged
      EXPECT_EQ(content(p + "half", 2), content(name + "-copy", 2)) << name;
    }
  }
}

TEST(Ranks, FailedRankEndsTheRunOfAll) {
  std::mutex mutex;
  int lost = 0;
  const auto body = [&](Engine& engine, ProcessMesh& mesh, const CpuBackend&) {
    accumulate(engine, 0);
    if (mesh.world().rank() == 1) throw Error("no more data");
    try {
      engine.finish_step();
      accumulate(engine, 1);
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()), "rank 1 failed: no more data");
      EXPECT_EQ(e.code(), Exit::peer_lost);
      const std::lock_guard lock(mutex);
      ++lost;
      throw;
    }
  };
  EXPECT_THROW(on_ranks(Setting{.shards = 3, .stage = 3}, body), Error);
  EXPECT_EQ(lost, 2);
}

}  // namespace
}  // namespace athanor::ranks
