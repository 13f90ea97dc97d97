// Windows of an evaluation: the same every time, spread over the whole set, each once.
#include "data/held_out.h"

#include <set>

#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

struct HeldOutTest : ::testing::Test {
  TempDir dir;
  HeldOutTest() {
    write_bytes(dir / "a.bin", llmc(counting(1001)));  // 100 windows
    write_bytes(dir / "b.bin", llmc(counting(301)));   // 30
  }
  Dataset open_a() const { return Dataset::open({{dir / "a.bin"}}, 10, 0); }
  Dataset open_ab() const { return Dataset::open({{dir / "a.bin", 1}, {dir / "b.bin", 3}}, 10, 0); }
};

std::vector<int64_t> windows_of(const HeldOut& chosen, int64_t source) {
  std::vector<int64_t> windows;
  for (const auto& [s, window] : chosen.windows)
    if (s == source) windows.push_back(window);
  return windows;
}

TEST_F(HeldOutTest, SmallSetsAreEvaluatedCompletelyInOrder) {
  const Dataset data = open_ab();
  for (const int64_t most : {0, 130, 500}) {
    const HeldOut chosen = held_out(data, most);
    EXPECT_EQ(chosen.all, 130);
    ASSERT_EQ(chosen.windows.size(), 130u) << most;
    for (int64_t i = 0; i < 130; ++i) {
      EXPECT_EQ(chosen.windows[size_t(i)].source, i < 100 ? 0 : 1);
      EXPECT_EQ(chosen.windows[size_t(i)].window, i < 100 ? i : i - 100);
    }
  }
}

TEST_F(HeldOutTest, SampleHasOneWindowOfEveryEqualPart) {
  const Dataset data = open_a();
  EXPECT_EQ(windows_of(held_out(data, 1), 0), std::vector<int64_t>{50});
  EXPECT_EQ(windows_of(held_out(data, 4), 0), (std::vector<int64_t>{12, 37, 62, 87}));
  for (int64_t most = 1; most <= 100; ++most) {
    const auto windows = windows_of(held_out(data, most), 0);
    ASSERT_EQ(int64_t(windows.size()), most);
    for (int64_t i = 0; i < most; ++i) EXPECT_EQ(windows[size_t(i)], 100 * (2 * i + 1) / (2 * most));
  }
}

TEST_F(HeldOutTest, SampleIsSplitByWeightWithoutDuplicates) {
  const Dataset data = open_ab();
  const HeldOut chosen = held_out(data, 20);
  EXPECT_EQ(windows_of(chosen, 0).size(), 5u);
  EXPECT_EQ(windows_of(chosen, 1).size(), 15u);
  const auto most = windows_of(held_out(data, 80), 1);  // its share of the sample is 60, but it has 30 windows
  EXPECT_EQ(most.size(), 30u);
  EXPECT_EQ(std::set<int64_t>(most.begin(), most.end()).size(), 30u);
}

}  // namespace
}  // namespace athanor
