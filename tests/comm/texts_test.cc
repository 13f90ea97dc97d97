// Texts reach all ranks completely, for any sizes and bytes.
#include "comm/texts.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/threads.h"

namespace athanor {
namespace {

// Text of rank r: empty on rank 0, otherwise with a zero byte and a tail whose length depends on the rank.
std::string text_of(int rank) {
  return rank == 0 ? "" : cat("rank ", rank, std::string(1, '\0'), std::string(size_t(rank) * 1000, char(0xf0 + rank)));
}

TEST(Texts, AreGatheredInRankOrder) {
  for (const int ranks : {1, 2, 5})
    run_ranks(ranks, [&](std::unique_ptr<Communicator> c) {
      const auto texts = gather_texts(*c, text_of(c->rank()));
      ASSERT_EQ(int(texts.size()), ranks);
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(texts[size_t(r)], text_of(r)) << "rank " << r;
      EXPECT_EQ(gather_texts(*c, ""), std::vector<std::string>(size_t(ranks)));
    });
}

TEST(Texts, RankZeroTextIsBroadcast) {
  for (const int ranks : {1, 2, 5})
    run_ranks(ranks, [&](std::unique_ptr<Communicator> c) {
      for (const std::string& text : {text_of(3), std::string(), text_of(1)})
        EXPECT_EQ(share_text(*c, c->rank() == 0 ? text : text_of(c->rank())), text);
    });
}

}  // namespace
}  // namespace athanor
