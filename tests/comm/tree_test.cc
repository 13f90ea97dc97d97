// The tree of ranks: what goes through it is what direct exchange gives, a rank speaks with few others, and who dies or
// stops anywhere in it is named to all.
#include "comm/tree.h"

#include <algorithm>
#include <numeric>

#include "comm/tcp.h"
#include "comm/wire.h"
#include "tests/comm/collective_laws.h"
#include "tests/comm/rig.h"

namespace athanor {
namespace {

using namespace testing;

TEST(Tree, HasEveryRankOnceAndIsAsDeepAsItMustBe) {
  for (const auto& [ranks, fan_out, depth] :
       {std::tuple{1, 16, 0}, {17, 16, 1}, {18, 16, 2}, {1024, 16, 3}, {9, 2, 3}}) {
    const RankTree tree{.ranks = ranks, .fan_out = fan_out};
    std::vector<int> all = tree.subtree(0), expected(static_cast<size_t>(ranks));
    std::iota(expected.begin(), expected.end(), 0);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, expected);
    int deepest = 0;
    for (int r = 1; r < ranks; ++r) {
      int levels = 0;
      for (int above = r; above > 0; above = tree.parent(above)) ++levels;
      deepest = std::max(deepest, levels);
      const int above = tree.parent(r);
      EXPECT_TRUE(tree.first_child(above) <= r && r < tree.end_child(above)) << r;
      EXPECT_TRUE(tree.is_below(r, above) && !tree.is_below(above, r));
    }
    EXPECT_EQ(deepest, depth) << ranks;
    EXPECT_EQ(tree.is_flat(), depth < 2);
  }
}

TEST(Tree, KeepsEveryLawOfTransports) {
  expect_none(run({.ranks = 9, .fan_out = 2}, [](Rendezvous& r) { testing::every_law(*make_tcp(r, "")); }));
}

// A wire that has no peers: it counts what would be sent, and to whom.
class Counting final : public Wire {
 public:
  void run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) override {
    for (const auto* list : {&sends, &receives})
      for (const Transfer& t : *list) peers.push_back(t.peer);
    messages += int(sends.size());
  }
  std::vector<int> peers;
  int messages = 0;
};

// The decisions of a step are a sum of a few bytes of all ranks: with tensors' direct exchange 2 (ranks - 1) messages
// of each.
TEST(Tree, ADecisionTakesOneMessageUpAndOneDownPerRank) {
  const int ranks = 1024;
  int messages = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto wire = std::make_shared<Counting>();
    const auto world = make_direct(wire, rank, {.ranks = ranks});
    std::vector<int32_t> wishes(5);
    world->all_reduce(tensor_of(wishes), Reduce::max, Lane::compute);
    messages += wire->messages;
    std::sort(wire->peers.begin(), wire->peers.end());
    wire->peers.erase(std::unique(wire->peers.begin(), wire->peers.end()), wire->peers.end());
    EXPECT_LE(wire->peers.size(), size_t(kFanOut + 1)) << "of rank " << rank;
  }
  EXPECT_EQ(messages, 2 * (ranks - 1));
}

}  // namespace
}  // namespace athanor
