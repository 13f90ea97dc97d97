#include "cpu/isa.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace athanor {
namespace {

TEST(Isa, IsTheBestAvailableOrTheRequestedOne) {
  const Isa best = choose_isa(nullptr);
  for (const Isa each : kIsas) EXPECT_EQ(cpu_has(each), each <= best) << name_of(each);
  EXPECT_EQ(choose_isa(""), best);
  EXPECT_EQ(choose_isa("baseline"), Isa::baseline);
  EXPECT_THROW(choose_isa("mmx"), Error);
}

}  // namespace
}  // namespace athanor
