// CheckOps: a sound backend passes, a bug is reported under its op and tensor, and the run keeps the worker's values.
#include "ops/check_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ops/compare.h"
#include "reference/reference_ops.h"
#include "tests/ops/cases.h"
#include "tests/ops/host_device.h"
#include "tests/ops/sabotage.h"

namespace athanor {
namespace {

Tensor of(std::vector<float>& x, Shape s) { return {x.data(), DType::f32, s}; }

TEST(Compare, ErrorIsRelativeToTheExpectedRms) {
  std::vector<float> want{3, -3, 3, -3}, got{3, -3, 3.5f, -3};
  const Difference d = compare(of(got, {4}), of(want, {4}));
  EXPECT_DOUBLE_EQ(d.nmse, 0.25 / 36);
  EXPECT_NEAR(d.peak, 0.5 / 3, 1e-6);
  EXPECT_EQ(d.at, 2);
  EXPECT_EQ(d.got, 3.5);
  EXPECT_EQ(d.want, 3);
}

TEST(Compare, EqualInfinitiesAndNansMatchAndOthersAreInfinitelyFar) {
  const float inf = INFINITY;
  std::vector<float> want{1, inf, -inf, NAN};
  EXPECT_EQ(compare(of(want, {4}), of(want, {4})).peak, 0);
  for (size_t i = 0; i < 4; ++i)
    for (float other : {2.0f, inf, -inf, float(NAN)}) {
      std::vector<float> got = want;
      got[i] = other;
      const bool same = got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]));
      const Difference d = compare(of(got, {4}), of(want, {4}));
      EXPECT_EQ(d.within(tolerance_of(DType::f32)), same) << i << " " << other;
      EXPECT_EQ(d.peak > 0.5, !same) << i << " " << other;
    }
}

// One element far above the others, as in Adam's v: its rounding error is large compared with the rms of all elements.
TEST(Compare, RoundingErrorIsRelativeToTheElement) {
  std::vector<float> want(1 << 16, 1e-6f);
  want[5] = 1;
  std::vector<float> got = want;
  got[5] = 1 - 4 * 0x1p-24f;
  EXPECT_TRUE(compare(of(got, {1 << 16}), of(want, {1 << 16})).within(tolerance_of(DType::f32)));
  got[5] = 1 - 0x1p-15f;  // relative error of 3e-5: no rounding
  EXPECT_FALSE(compare(of(got, {1 << 16}), of(want, {1 << 16})).within(tolerance_of(DType::f32)));
  got = want;
  got[6] = 0.5f;  // an error elsewhere has no excuse
  const Difference d = compare(of(got, {1 << 16}), of(want, {1 << 16}));
  EXPECT_FALSE(d.within(tolerance_of(DType::f32)));
  EXPECT_EQ(d.at, 6);
}

TEST(Compare, ZerosMatchOnlyZeros) {
  std::vector<float> want(3, 0.0f), got{0, -0.0f, 0};
  EXPECT_TRUE(compare(of(got, {3}), of(want, {3})).within(tolerance_of(DType::f32)));
  got[1] = 1e-30f;
  EXPECT_FALSE(compare(of(got, {3}), of(want, {3})).within(tolerance_of(DType::f32)));
}

TEST(Compare, HonoursRowStridesAndRefusesOtherShapes) {
  std::vector<float> want{1, 2, 3, 4}, got{1, 2, 99, 3, 4};
  Tensor strided = of(got, {2, 2});
  strided.row_stride = 3;
  EXPECT_EQ(compare(strided, of(want, {2, 2})).peak, 0);
  got[4] = 5;
  EXPECT_EQ(compare(strided, of(want, {2, 2})).at, 3);
  EXPECT_THROW(compare(of(got, {4}), of(want, {2, 2})), std::exception);
}

// Runs the cases of all families through CheckOps.
std::shared_ptr<CheckOps> checked(Ops& work, Ops& reference) {
  static HostDevice host;
  auto check = std::make_shared<CheckOps>(work, host, reference);
  Examiner examine(
      [&](int) {
        return TestBackend{std::make_shared<HostDevice>(), check};
      },
      {.threads = {1}, .every = 10, .gradients = false, .reference = std::shared_ptr<Ops>(&reference, [](Ops*) {})});
  for (const Family& family : kFamilies) family.run(examine);
  return check;
}

TEST(CheckOps, PassesACorrectBackendInPlaceAndStrided) {
  ReferenceOps work, reference;
  const auto check = checked(work, reference);
  EXPECT_TRUE(check->passed()) << check->report();
  for (const CheckOps::Worst& w : check->worst()) {
    EXPECT_EQ(w.peak.peak, 0) << w.op << "." << w.tensor;
    EXPECT_GT(w.launches, 0);
  }
  EXPECT_GT(check->worst().size(), 60u);  // outputs of all ops, some in several dtypes
}

TEST(CheckOps, ReportsOnlyPlantedBugs) {
  const std::set<std::pair<std::string, std::string>> bugs{
      {"qk_norm_bwd", "dx"}, {"attention_bwd", "dk"}, {"gemm", "d"}, {"adamw", "m"}, {"step_control", "state"}};
  std::unique_ptr<Ops> work = make_reference();
  for (const auto& [op, tensor] : bugs)
    work = std::make_unique<Sabotage>(std::move(work), Sabotage::Plan{op, tensor, Fault::wrong_value});
  ReferenceOps reference;
  const auto check = checked(*work, reference);
  EXPECT_FALSE(check->passed());
  for (const CheckOps::Worst& w : check->worst())
    EXPECT_EQ(w.failures > 0, bugs.count({w.op, w.tensor}) > 0) << w.op << "." << w.tensor;
  EXPECT_NE(check->report().find("FAILED"), std::string::npos);
}

TEST(CheckOps, NamesLaunchElementAndValues) {
  Sabotage work(make_reference(), {"add", "y", Fault::wrong_value});
  ReferenceOps reference;
  HostDevice host;
  CheckOps check(work, host, reference);
  std::vector<float> a{1, 2, 3}, b{1, 1, 1}, y(3);
  const Tensor ta = of(a, {3}), tb = of(b, {3}), ty = of(y, {3});
  check.run(Fill{.x = ty, .value = 5}, nullptr);
  check.run(Add{.y = ty, .a = ta, .b = tb}, nullptr);
  EXPECT_EQ(y[0], 2);
  EXPECT_NE(y[2], 4);  // the worker's value stays
  const CheckOps::Worst& w = check.worst().at(1);
  EXPECT_EQ(w.op, "add");
  EXPECT_EQ(w.tensor, "y");
  EXPECT_EQ(w.launches, 1);
  EXPECT_EQ(w.peak_launch, 2);
  EXPECT_EQ(w.peak.at, 2);
  EXPECT_EQ(w.peak.want, 4);
  EXPECT_NE(check.report().find("launch 2 [3] element 2: "), std::string::npos) << check.report();
  EXPECT_NE(check.report().find(", reference 4"), std::string::npos) << check.report();
}

// A backend that runs nothing and wants scratch memory.
struct Greedy final : Decorated<Greedy> {
  template <class Op>
  void on(const Op&, void*) {}
  const Ops& inner() const { return *this; }
  using Decorated<Greedy>::scratch;
  size_t scratch(const Add&) const override { return 77; }
};

TEST(CheckOps, UsesTheScratchSizeOfTheTestedBackend) {
  Greedy greedy;
  ReferenceOps reference;
  HostDevice host;
  const CheckOps check(greedy, host, reference);
  EXPECT_EQ(check.scratch(Add{}), 77u);
}

}  // namespace
}  // namespace athanor
