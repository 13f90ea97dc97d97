// One law for every mesh: all meshes of replicas, shards, context and tensor parallelism with up to 8 ranks, with every
// ZeRO stage, recomputation, precision, family and kind of batch, give the same run as one rank: bit-identical initial
// weights, losses and gradient norms of ten steps within rounding, and checkpoints that any other mesh resumes.
#include <gtest/gtest.h>

#include <bit>
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

// All meshes, each with a model and a batch that its ranks can divide.
std::vector<Setting> all_grids() {
  std::vector<Setting> all;
  for (int tensor = 1; tensor <= kMostRanks; ++tensor)
    for (int context = 1; context * tensor <= kMostRanks; ++context)
      for (int shards = 1; shards * context * tensor <= kMostRanks; ++shards)
        for (int replicas = 1; replicas * shards * context * tensor <= kMostRanks; ++replicas) {
          Setting s{.replicas = replicas, .shards = shards, .tensor = tensor, .context = context};
          s.heads = tensor * ((3 + tensor) / tensor);  // at least 4
          s.hidden = 4 * s.heads, s.intermediate = 6 * s.heads;
          if (s.sequences % (replicas * shards) != 0) s.step = s.sequences = 70;
          all.push_back(s);
        }
  return all;
}

enum class Batch : uint8_t { plain, documents, window, tied };
constexpr size_t kKinds = 4;  // number of kinds of batches

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

// Larger than the rounding residue of gradients that cancel: with 1e-8, changing only the micro-batches changes norms
// of AdamW's runs by 1e-4.
constexpr double kEps = 1e-5;

// The mesh `s` with a choice: two chunks of a sequence per context-parallel rank; ring attention, sequence parallelism,
// overlapped all-reduces, updates of whole matrices, bf16 gradients and numbers of KV heads alternate, and each `turn`
// occurs with every kind of batch.
Setting with(Setting s, const Choice& c, size_t turn) {
  s.stage = s.shards * s.context > 1 ? c.stage : 0;
  s.recompute = c.recompute, s.type = c.type, s.eps = kEps;
  if (c.bf16) s.precision = "bf16";
  s.tied = c.batch == Batch::tied, s.documents = c.batch == Batch::documents;
  s.window = c.batch == Batch::window ? 5 : 0;
  s.length = 2 * s.context * (std::has_single_bit(unsigned(s.tensor)) ? 1 : s.tensor);
  while (s.length < 10) s.length *= 2;
  std::vector<int64_t> kv_heads;  // includes fewer KV heads than ranks, which then share a head
  for (int64_t n = 1; n <= s.heads; ++n)
    if (s.heads % n == 0 && (n % s.tensor == 0 || s.tensor % n == 0)) kv_heads.push_back(n);
  s.kv_heads = c.type == ModelType::llama ? kv_heads[turn % kv_heads.size()] : s.heads;
  s.ring = turn % 2 == 1 && s.context > 1;
  s.sequence = turn / 2 % 2 == 1 && s.tensor > 1;
  s.beside = turn / 4 % 2 == 1 && s.tensor > 1;
  if (c.bf16 && turn % 3 == 1) s.gradients = DType::bf16;
  if (turn / 8 % 2 == 1) s.rule = turn % 2 == 1 ? RuleName::normuon : RuleName::muon;
  return s;
}

struct Law {
  std::map<std::string, Curve> of_one;
  std::map<std::string, std::vector<float>> initial;

  static std::string key_of(const Setting& s) {
    return cat(alone(s).name(), " heads ", s.heads, " ", s.kv_heads, " sequences ", s.sequences, " ",
               kRuleNames[size_t(s.rule)]);
  }
  const Curve& one(const Setting& s) {
    const std::string key = key_of(s);
    if (!of_one.contains(key)) {
      initial[key] = train(alone(s), 0).masters;
      of_one[key] = train(alone(s), kSteps);
    }
    return of_one.at(key);
  }
  void holds_of(const Setting& s) {
    const Curve& want = one(s);
    EXPECT_EQ(train(s, 0).masters, initial.at(key_of(s))) << s.name();
    expect_same_curve(want, train(s, kSteps), s.precision == std::string("fp32") ? 1e-5 : 1e-2, s.name());
  }
};

// Every mesh with one choice, so that values of neighbouring options are combined; with ATHANOR_FULL=1 (scripts/test.sh
// --all) every mesh with all choices.
std::vector<Setting> all_meshes() {
  const std::vector<Setting> grids = all_grids();
  const std::vector<Choice> choices = all_choices();
  const bool all = testing::every_case(2) == 1;
  std::vector<Setting> meshes;
  std::set<std::string> seen;
  constexpr size_t kStride = 37;  // coprime to the numbers of choices
  for (size_t i = 0; i < grids.size(); i += kSanitized ? 9 : 1)
    for (size_t c = 0; c < (all ? choices.size() : 1); ++c) {
      const Setting s = with(grids[i], choices[(i * kStride + c) % choices.size()], i / kKinds + c / kKinds);
      if (s.ranks() > 1 && seen.insert(s.name()).second) meshes.push_back(s);
    }
  return meshes;
}

// Part i has the meshes i, i + kParts, ... All of them take about an hour on two cores; GoogleTest's sharding divides
// them among machines, or over several runs: GTEST_TOTAL_SHARDS=5 GTEST_SHARD_INDEX=0, 1, ... 4.
constexpr int kParts = kSanitized ? 5 : 20;

class EveryGrid : public ::testing::TestWithParam<int> {
 protected:
  inline static Law law;  // shared, so that parts reuse single-rank runs
};

TEST_P(EveryGrid, MatchesOneRank) {
  const std::vector<Setting> meshes = all_meshes();
  ASSERT_GT(meshes.size(), kSanitized ? 5U : 40U);
  for (size_t i = size_t(GetParam()); i < meshes.size(); i += kParts) law.holds_of(meshes[i]);
}
INSTANTIATE_TEST_SUITE_P(MeshMatrix, EveryGrid, ::testing::Range(0, kParts));

// Single-rank results for a model and a batch.
struct Reference {
  std::vector<double> losses, then;  // losses of the first two steps, and of two more
  size_t tensors;                    // number of tensors in files
};

TEST(MeshMatrix, CheckpointsOfEveryMeshResumeOnOthers) {
  constexpr int64_t kTokens = 48;  // per sequence; most groups can divide it
  const std::vector<Setting> grids = all_grids();
  const Choice choice{3, G::none, false, ModelType::llama, Batch::documents};
  // Mesh i with the model and the batch of mesh `like`.
  const auto of = [&](size_t i, size_t like) {
    const Setting model = with(grids[like], choice, like / 2);
    Setting s = with(grids[i], choice, i / 2);
    s.rule = model.rule;
    s.heads = model.heads, s.hidden = model.hidden, s.intermediate = model.intermediate;
    s.kv_heads = s.heads % 4 == 0 ? 2 : s.heads;
    s.step = s.sequences = model.sequences;
    s.length = kTokens % (2 * model.context) == 0 ? kTokens : model.length;
    s.stage = s.shards * s.context > 1 ? int(1 + i % 3) : 0;
    s.sequence = false;
    return s;
  };
  const auto fits = [](const Setting& s) {
    return s.heads % s.tensor == 0 && s.length % (2 * s.context) == 0 && s.sequences % (s.replicas * s.shards) == 0;
  };
  const testing::TempDir dir;
  std::map<std::string, Reference> references;
  const auto reference = [&](const Setting& one) {
    const std::string key = Law::key_of(one), folder = cat(dir.path(), "/one", references.size());
    if (references.contains(key)) return references.at(key);
    Reference& r = references[key];
    r.losses = run_part(one, "", 0, 2, folder);
    r.then = run_part(one, cat(folder, "/", step_folder(2)), 2, 4, folder + "-then");
    r.tensors = tensors_of(cat(folder, "/", step_folder(2))).size();
    return r;
  };
  const size_t every = kSanitized ? 13 : size_t(testing::every_case(2));
  for (size_t i = 1; i < grids.size(); i += every) {
    const std::string folder = cat(dir.path(), "/", i);
    const Setting s = of(i, i);
    const Reference want = reference(alone(s));
    const std::vector<double> got = run_part(s, "", 0, 2, folder);
    for (size_t k = 0; k < want.losses.size(); ++k)
      EXPECT_NEAR(got[k], want.losses[k], 1e-5 * want.losses[k]) << s.name();
    EXPECT_EQ(tensors_of(cat(folder, "/", step_folder(2))).size(), want.tensors) << s.name();
    std::vector<Setting> others;
    for (size_t other = 0; other < grids.size(); ++other)
      if (other != i && fits(of(other, i))) others.push_back(of(other, i));
    ASSERT_GE(others.size(), 3U) << s.name();
    const size_t n = others.size();
    for (const size_t pick : {i, i + n / 3, i + 2 * n / 3}) {
      const Setting& other = others[pick % n];
      const std::vector<double> on = run_part(other, cat(folder, "/", step_folder(2)), 2, 4, cat(folder, "-", pick));
      for (size_t k = 0; k < 2; ++k)  // the first loss depends only on the weights, the next also on optimizer states
        EXPECT_NEAR(on[k], want.then[k], 1e-5 * want.then[k]) << s.name() << " goes on as " << other.name();
    }
  }
}

}  // namespace
}  // namespace athanor
