// Errors, checks, integer helpers and UniqueFn: what they say, what they keep, what they refuse.
#include "base/error.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>

#include "base/int.h"
#include "base/unique_fn.h"
#include "tests/expect_error.h"

namespace athanor {
namespace {

TEST(Errors, CarryAnExitCode) {
  EXPECT_EQ(Error("x").code(), Exit::error);
  EXPECT_EQ(Error("x", Exit::usage).code(), Exit::usage);
  EXPECT_EQ(int(Exit::requeue), 85);  // Slurm's RequeueExit
}

TEST(Errors, CatJoinsWhatStreamsPrint) {
  EXPECT_EQ(cat("a", 1, ' ', 2.5, std::string("b")), "a1 2.5b");
  EXPECT_EQ(cat(), "");
}

TEST(Check, MessageHasPlaceConditionAndArguments) {
  const int x = 3;
  const std::string text = error_of([&] { CHECK(x == 4, "x is ", x); });
  EXPECT_TRUE(has(text, "error_test.cc:")) << text;
  EXPECT_TRUE(has(text, "x == 4: x is 3")) << text;
  EXPECT_TRUE(has(error_of([&] { CHECK(x == 4); }), "x == 4"));
  EXPECT_EQ(error_of([&] { CHECK(x == 3, "fine"); }), "no error");
}

TEST(Check, EvaluatesItsArgumentsOnlyOnFailure) {
  int built = 0;
  const auto part = [&] { return ++built; };
  CHECK(true, part());
  EXPECT_EQ(built, 0);
  EXPECT_THROW(CHECK(false, part()), Error);
  EXPECT_EQ(built, 1);
}

TEST(WithContext, PrependsContextAndKeepsTheExitCode) {
  try {
    with_context("run", [] { with_context("loading shard 3", [] { throw Error("short read", Exit::usage); }); });
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "run: loading shard 3: short read");
    EXPECT_EQ(e.code(), Exit::usage);
  }
}

TEST(WithContext, ReturnsValuesAndLeavesOtherExceptionsAlone) {
  int x = 5;
  int& same = with_context("ref", [&]() -> int& { return x; });
  EXPECT_EQ(&same, &x);
  EXPECT_EQ(*with_context("move", [] { return std::make_unique<int>(7); }), 7);
  EXPECT_THROW(with_context("other", [] { throw std::out_of_range("r"); }), std::out_of_range);
}

TEST(Narrow, RefusesWhatDoesNotFit) {
  EXPECT_EQ(narrow<int32_t>(int64_t{-5}), -5);
  EXPECT_EQ(narrow<uint8_t>(255), 255);
  constexpr int64_t big = int64_t{1} << 40;
  EXPECT_TRUE(has(error_of([] { narrow<int32_t>(big); }), "value 1099511627776 does not fit its type"));
  EXPECT_THROW(narrow<uint8_t>(256), Error);
  EXPECT_THROW(narrow<uint32_t>(-1), Error);
  EXPECT_THROW(narrow<uint64_t>(int64_t{-1}), Error);  // the same bits, another value
  EXPECT_THROW(narrow<int64_t>(std::numeric_limits<uint64_t>::max()), Error);
  EXPECT_THROW(narrow<int8_t>(128), Error);
}

TEST(RoundUp, ReachesTheNextMultiple) {
  for (int a = 0; a < 40; ++a)
    for (int b = 1; b < 9; ++b) {
      EXPECT_EQ(div_ceil(a, b), (a + b - 1) / b);
      EXPECT_EQ(round_up(a, b) % b, 0);
      EXPECT_TRUE(round_up(a, b) >= a && round_up(a, b) < a + b);
    }
}

TEST(UniqueFn, OwnsMoveOnlyCaptures) {
  UniqueFn<int(int)> f = [p = std::make_unique<int>(10)](int x) { return *p + x; };
  EXPECT_TRUE(f);
  EXPECT_EQ(f(5), 15);
  UniqueFn<int(int)> g = std::move(f);
  EXPECT_FALSE(f);
  EXPECT_EQ(g(1), 11);
  EXPECT_FALSE(UniqueFn<void()>());
}

TEST(UniqueFn, ForwardsMoveOnlyArgumentsAndReferences) {
  UniqueFn<std::unique_ptr<int>(std::unique_ptr<int>, int&)> f = [](std::unique_ptr<int> p, int& out) {
    out = *p;
    return p;
  };
  int seen = 0;
  EXPECT_EQ(*f(std::make_unique<int>(4), seen), 4);
  EXPECT_EQ(seen, 4);
}

TEST(UniqueFn, ReleasesItsCaptureOnDestructionAndAssignment) {
  auto token = std::make_shared<int>();
  UniqueFn<void()> f = [token] {};
  EXPECT_EQ(token.use_count(), 2);
  f = UniqueFn<void()>([] {});
  EXPECT_EQ(token.use_count(), 1);
}

}  // namespace
}  // namespace athanor
