// Sequence parallelism: tensor-parallel ranks that also split the rows of the residual stream give the same run as one
// rank. They send what the table in docs/distributed.md says, plan less memory, and a gather, a reduce-scatter, or a
// sum of the norms' gradients that is missing, averaged or made twice is detected.
#include <gtest/gtest.h>

#include "tests/train/watched_group.h"

namespace athanor::ranks {
namespace {
using G = Recompute::Granularity;

Setting without(Setting s) {
  s.sequence = false;
  return s;
}

TEST(SequenceParallel, LossesAndNormsMatchOneRankAndUnshardedRows) {
  std::vector<Setting> all;
  for (const ModelType type : {ModelType::llama, ModelType::gpt2, ModelType::qwen3})
    for (const bool tied : {false, true})
      for (const int tensor : {2, 4})
        for (const auto& [shards, stage] : {std::pair{1, 0}, {2, 1}, {2, 2}, {2, 3}})
          for (const auto recompute : {G::none, G::selective, G::full})
            all.push_back({.type = type,
                           .tied = tied,
                           .shards = shards,
                           .stage = stage,
                           .accumulation = stage == 1 ? 2 : 1,
                           .recompute = recompute,
                           .masked = true,
                           .tensor = tensor,
                           .sequence = true,
                           .kv_heads = 4,
                           .vocab = 131,
                           .z_loss = 0.01});
  const auto every = size_t(testing::every_case(11));  // coprime to the numbers of choices
  std::map<std::string, Curve> one;
  for (size_t i = 0; i < all.size(); i += every) {
    const Setting& s = all[i];
    const std::string key = alone(s).name();
    if (!one.contains(key)) one[key] = train(alone(s), 6);
    const Curve got = train(s, 6);
    expect_same_curve(one[key], got, 1e-5, s.name());
    expect_same_curve(train(without(s), 6), got, 1e-5, s.name());
  }
}

// Each rank applies the scalars of the residual stream to its own rows, and the embedding's gradient is accumulated
// over all blocks.
TEST(SequenceParallel, AthanorOptionsMatchOneRank) {
  for (const auto recompute : {G::none, G::full}) {
    const Setting s{
        .type = ModelType::athanor, .shards = 2, .stage = 3, .recompute = recompute, .tensor = 2, .sequence = true};
    expect_same_curve(train(alone(s), 6), train(s, 6), 1e-5, s.name());
  }
}

TEST(SequenceParallel, EveryPrecisionMatchesOneRank) {
  for (const auto& [precision, master] : {std::pair{"bf16", DType::i16}, {"fp16", DType::f32}, {"tf32", DType::f32}}) {
    const Setting s{.type = ModelType::gpt2, .precision = precision, .master = master, .tensor = 2, .sequence = true};
    const Curve want = train(alone(s)), got = train(s);
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], 5e-3 * want.losses[i]) << s.name();
  }
}

TEST(SequenceParallel, ReducesMemoryOfEveryRank) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const auto activations = [&](bool sequence) {
      return planned_activations({.type = type, .tensor = 4, .sequence = sequence, .kv_heads = 4});
    };
    EXPECT_LT(double(activations(true)), 0.8 * double(activations(false))) << name_of(type);
  }
}

// Per block, forward has two all-gathers before GEMMs and two reduce-scatters after GEMMs; backward has two all-gathers
// of gradients, two of the inputs again, and two reduce-scatters; recomputed blocks repeat those of forward. The
// embedding ends in a reduce-scatter and its gradient is all-gathered; the head does the opposite. Rows exchanged in
// four pieces take four calls each.
TEST(SequenceParallel, TrafficMatchesTheDocumentedTable) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const int tensor : {2, 4})
      for (const auto& [recompute, pieces] :
           {std::pair{G::none, false}, {G::selective, false}, {G::full, false}, {G::none, true}, {G::full, true}}) {
        const Setting s{.type = type,
                        .precision = "bf16",
                        .recompute = recompute,
                        .tensor = tensor,
                        .sequence = true,
                        .pieces = pieces,
                        .kv_heads = 4};
        const WatchedCurve curve = train_watched(s, {}, 1);
        const int64_t rows = kSequences * kLength, calls = kLayers * (recompute == G::full ? 14 : 10) + 4;
        EXPECT_EQ(curve.sent.row_calls, (pieces ? 4 : 1) * calls) << s.name();
        EXPECT_EQ(curve.sent.row_bytes, calls * rows * kHidden * 2) << s.name();
        EXPECT_EQ(curve.sent.calls, 2) << s.name();  // calls of the loss
        EXPECT_EQ(curve.sent.bytes, 3 * rows * 4) << s.name();
        EXPECT_EQ(curve.planned.all().row_calls, curve.sent.row_calls) << s.name();
        EXPECT_EQ(curve.planned.all().row_bytes, curve.sent.row_bytes) << s.name();
        EXPECT_EQ(curve.planned.all().calls, curve.sent.calls) << s.name();
        EXPECT_EQ(curve.planned.all().bytes, curve.sent.bytes) << s.name();
        EXPECT_DOUBLE_EQ(curve.traffic,
                         double(tensor - 1) / tensor * double(curve.sent.row_bytes + 2 * curve.sent.bytes))
            << s.name();
      }
}

TEST(SequenceParallel, DetectsMistakes) {
  for (const bool beside : {false, true}) {
    const Setting s{.type = ModelType::gpt2, .tensor = 2, .sequence = true, .beside = beside};
    const Curve want = train(alone(s));
    int64_t wrong = 0;
    const auto noticed = [&](const Watch& fault) {
      const WatchedCurve got = train_watched(s, fault, 3);
      wrong += got.wrong;
      return differs(want, got.losses, got.norms);
    };
    EXPECT_FALSE(noticed({}));
    EXPECT_TRUE(noticed({.fault = Watch::Fault::bias_of_every_rank}));
    const int64_t calls = (beside ? 4 : 1) * (10 * kLayers + 4) + 2;
    for (int64_t at = 0; at < calls; ++at)
      EXPECT_TRUE(noticed({.fault = Watch::Fault::missing, .at = at})) << "call " << at << " beside " << beside;
    // An all-gather sums nothing, an in-place sum has no order, and a repeated max of equal numbers changes nothing.
    const int64_t largest = (beside ? 4 : 1) * (4 * kLayers + 2);
    for (const auto fault : {Watch::Fault::twice, Watch::Fault::reversed})
      for (int64_t at = 0; at < calls; at += beside ? 5 : 1) {
        if (at == largest && fault == Watch::Fault::twice) continue;
        const int64_t before = wrong;
        const bool shows = noticed({.fault = fault, .at = at});
        EXPECT_EQ(shows, wrong > before) << "call " << at << " fault " << int(fault) << " beside " << beside;
      }
    EXPECT_GT(wrong, calls + (beside ? 1 : 5) * kLayers) << beside;
  }
}

// Steps of SGD expose the gradients themselves: those of one norm hardly affect the loss or the global norm.
TEST(SequenceParallel, GradientsOfNormsAreSummedOnce) {
  using Fault = Watch::Fault;
  const Setting s{.type = ModelType::gpt2, .clip = 0, .lr = 1, .rule = RuleName::sgd, .tensor = 2, .sequence = true};
  const Curve want = train(alone(s), 1);
  const auto off = [&](const Watch& fault) { return furthest(want, train_watched(s, fault, 1)); };
  const float rounding = off({});
  EXPECT_LT(rounding, 1e-6);
  for (int64_t at = 0; at < 2 * (2 * kLayers + 1); ++at)  // weight and bias of every norm
    for (const Fault fault : {Fault::missing, Fault::averaged, Fault::twice})
      EXPECT_GT(off({.fault = fault, .part = Watch::Part::update, .at = at}), 20 * rounding)
          << "norm " << at << " " << int(fault);
}

// A run resumes with and without sequence parallelism, and on one rank.
TEST(SequenceParallel, CheckpointsAreIndependentOfIt) {
  const testing::TempDir dir;
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const Setting s{.type = type, .shards = 2, .stage = 1, .tensor = 2, .sequence = true}, one = alone(s);
    const auto root = [&](const char* run) { return cat(dir.path(), "/", name_of(type), run); };
    const auto whole = run_part(one, "", 0, 4, root("whole"));
    run_part(s, "", 0, 2, root("half"));
    const std::string half = cat(root("half"), "/", step_folder(2));
    for (const Setting& next : {one, without(s), s}) {
      const auto rest = run_part(next, half, 2, 4, root("rest"));
      for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(rest[i], whole[i + 2], 1e-5 * whole[i + 2]) << next.name();
      std::filesystem::remove_all(root("rest"));
    }
  }
}

}  // namespace
}  // namespace athanor::ranks
