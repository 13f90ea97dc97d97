// One law for every mesh: all grids of copies, shards, sequences and heads of up to 8 ranks, with every stage of
// sharding, recomputation, precision, family and kind of batch, are the run of one rank. The same initial weights to
// the bit, losses and gradient norms of ten steps within rounding, and checkpoints that any other grid goes on from.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/file.h"
#include "tests/sanitized.h"
#include "tests/train/watched_group.h"

namespace athanor {
namespace {

using namespace ranks;
using G = Recompute::Granularity;

constexpr int kMostRanks = 8;
constexpr int64_t kSteps = 10;

// Those of a batch of 96 sequences and a model of 4 heads.
std::vector<Setting> all_grids() {
  std::vector<Setting> all;
  for (const int tensor : {1, 2, 4})
    for (int context = 1; context * tensor <= kMostRanks; ++context)
      for (int shards = 1; shards * context * tensor <= kMostRanks; ++shards)
        for (int replicas = 1; replicas * shards * context * tensor <= kMostRanks; ++replicas)
          if (kSequences % (replicas * shards) == 0)
            all.push_back({.replicas = replicas, .shards = shards, .tensor = tensor, .context = context});
  return all;
}

enum class Batch : uint8_t { plain, documents, window, tied };

struct Choice {
  int stage;
  G recompute;
  bool bf16;
  ModelType type;
  Batch batch;
};
std::vector<Choice> all_choices() {
  std::vector<Choice> all;
  for (const int stage : {0, 1, 2, 3})
    for (const G recompute : {G::none, G::selective, G::full})
      for (const bool bf16 : {false, true})
        for (const ModelType type : {ModelType::llama, ModelType::gpt2})
          for (const Batch batch : {Batch::plain, Batch::documents, Batch::window, Batch::tied})
            all.push_back({stage, recompute, bf16, type, batch});
  return all;
}

// Of the grid `s`. Two pieces of a sequence for each of its ranks; rings, sequence parallelism and sums beside products
// take turns.
Setting with(Setting s, const Choice& c, size_t turn) {
  s.stage = s.shards > 1 ? c.stage : 0;
  s.recompute = c.recompute, s.type = c.type;
  if (c.bf16) s.precision = "bf16";
  s.tied = c.batch == Batch::tied, s.documents = c.batch == Batch::documents;
  s.window = c.batch == Batch::window ? 5 : 0;
  s.length = 2 * s.context;
  while (s.length < 10) s.length *= 2;
  s.kv_heads = c.type == ModelType::llama ? int64_t(1) << turn % 3 : 4;  // ranks may have the same one
  s.ring = turn % 2 == 1 && s.context > 1;
  s.sequence = turn / 2 % 2 == 1 && s.tensor > 1;
  s.beside = turn / 4 % 2 == 1 && s.tensor > 1;
  return s;
}

struct Law {
  std::map<std::string, Curve> of_one;
  std::map<std::string, std::vector<float>> initial;

  const Curve& one(const Setting& s) {
    const std::string key = cat(alone(s).name(), " heads ", s.kv_heads);
    if (!of_one.contains(key)) {
      initial[key] = train(alone(s), 0).masters;
      of_one[key] = train(alone(s), kSteps);
    }
    return of_one.at(key);
  }
  void holds_of(const Setting& s) {
    const Curve& want = one(s);
    EXPECT_EQ(train(s, 0).masters, initial.at(cat(alone(s).name(), " heads ", s.kv_heads))) << s.name();
    expect_same_curve(want, train(s, kSteps), s.precision == std::string("fp32") ? 1e-5 : 1e-2, s.name());
  }
};

// Each grid with one choice, so that neighbours of a factor's values meet; with ATHANOR_FULL=1 (scripts/test.sh --all)
// with all of them.
TEST(MeshMatrix, EveryGridIsTheRunOfOneRank) {
  const std::vector<Setting> grids = all_grids();
  const std::vector<Choice> choices = all_choices();
  const bool all = testing::every_case(2) == 1;
  Law law;
  std::set<std::string> seen;
  constexpr size_t kStride = 37;  // divides none of the numbers of choices
  for (size_t i = 0; i < grids.size(); i += kSanitized ? 9 : 1)
    for (size_t c = 0; c < (all ? choices.size() : 1); ++c) {
      const Setting s = with(grids[i], choices[(i * kStride + c) % choices.size()], i + c);
      if (s.ranks() > 1 && seen.insert(s.name()).second) law.holds_of(s);
    }
  EXPECT_GT(seen.size(), kSanitized ? 3U : 40U);
}

TEST(MeshMatrix, CheckpointsOfEveryGridGoOnOnOthers) {
  constexpr int64_t kTokens = 48;
  std::vector<Setting> grids = all_grids();
  std::erase_if(grids, [](const Setting& s) { return kTokens % (2 * s.context) != 0; });
  const Choice choice{3, G::none, false, ModelType::llama, Batch::documents};
  const auto of = [&](size_t i) {
    Setting s = with(grids[i % grids.size()], choice, i);
    s.length = kTokens, s.kv_heads = 2;
    s.stage = s.shards > 1 ? int(1 + i % 3) : 0;
    s.sequence = false;
    return s;
  };
  const testing::TempDir dir;
  const std::vector<double> want = run_part(alone(of(0)), "", 0, 2, cat(dir.path(), "/one"));
  const std::vector<double> then =
      run_part(alone(of(0)), cat(dir.path(), "/one/", step_folder(2)), 2, 3, cat(dir.path(), "/then"));
  const auto files = tensors_of(cat(dir.path(), "/one/", step_folder(2)));
  const size_t every = kSanitized ? 13 : size_t(testing::every_case(2));
  for (size_t i = 1; i < grids.size(); i += every) {
    const std::string folder = cat(dir.path(), "/", i);
    const Setting s = of(i);
    const std::vector<double> got = run_part(s, "", 0, 2, folder);
    for (size_t k = 0; k < want.size(); ++k) EXPECT_NEAR(got[k], want[k], 1e-5 * want[k]) << s.name();
    EXPECT_EQ(tensors_of(cat(folder, "/", step_folder(2))).size(), files.size()) << s.name();
    for (const size_t other : {i + 7, i + 19, i + 31}) {
      const std::vector<double> on =
          run_part(of(other), cat(folder, "/", step_folder(2)), 2, 3, cat(folder, "-", other));
      EXPECT_NEAR(on[0], then[0], 1e-5 * then[0]) << s.name() << " goes on as " << of(other).name();
    }
  }
}

}  // namespace
}  // namespace athanor
