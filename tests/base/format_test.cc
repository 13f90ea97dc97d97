// Numbers for people, at the borders between units and for numbers that are none.
#include "base/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"

namespace athanor {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Format, FormatsBytesWithBinaryPrefixes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "0.98 KiB");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536ull << 20), "1.50 GiB");
  EXPECT_EQ(format_bytes(1023ull << 30), "1.00 TiB") << "never four digits";
  EXPECT_EQ(format_bytes(UINT64_MAX), "16.0 EiB");
}

TEST(Format, FormatsTextsOfAnyLengthAsPrintfDoes) {
  EXPECT_EQ(format_text("%s%%", ""), "%");
  EXPECT_EQ(format_text("%5d|%-4s|%.2f", 7, "ab", 0.125), "    7|ab  |0.12");
  EXPECT_EQ(format_text("%s.", std::string(1000, 'x').c_str()), std::string(1000, 'x') + ".");
}

TEST(Format, FormatsTimesAsDatesOrADash) {
  EXPECT_EQ(format_time(0, TimeZone::utc), "1970-01-01 00:00:00");
  EXPECT_EQ(format_time(0.9, TimeZone::utc), "1970-01-01 00:00:00");
  EXPECT_EQ(format_time(-0.5, TimeZone::utc), "1969-12-31 23:59:59");
  EXPECT_EQ(format_time(1.7e9, TimeZone::utc), "2023-11-14 22:13:20");
  for (const double none : {kNan, kInf, -kInf, 1e18, -1e18, 1e300}) {
    EXPECT_EQ(format_time(none, TimeZone::utc), "-") << none;
    EXPECT_EQ(format_time(none, TimeZone::local), "-") << none;
  }
}

TEST(Format, FormatsCountsWithSiPrefixes) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1.00k");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(999499), "999k");
  EXPECT_EQ(format_count(999500), "1.00M");
  EXPECT_EQ(format_count(124.4e6), "124M");
  EXPECT_EQ(format_count(1.27e12), "1.27T");
  EXPECT_EQ(format_count(999.4e18), "999E");
  EXPECT_EQ(format_count(1e21), "1.00e21");
  EXPECT_EQ(format_count(5.76e23), "5.76e23");
  EXPECT_EQ(format_count(0.5), "0.50");
  EXPECT_EQ(format_count(-2500), "-2.50k");
  EXPECT_EQ(format_count(kNan), "-");
  EXPECT_EQ(format_count(kInf), "-");
}

TEST(Format, FormatsDurationsWithTheLargestUnits) {
  EXPECT_EQ(format_duration(0), "0.00ms");
  EXPECT_EQ(format_duration(0.0123), "12.3ms");
  EXPECT_EQ(format_duration(0.9999), "1.0s");
  EXPECT_EQ(format_duration(45.31), "45.3s");
  EXPECT_EQ(format_duration(59.94), "59.9s");
  EXPECT_EQ(format_duration(59.96), "1m00s") << "never 60.0s";
  EXPECT_EQ(format_duration(185), "3m05s");
  EXPECT_EQ(format_duration(3599.6), "1h00m");
  EXPECT_EQ(format_duration(7860), "2h11m");
  EXPECT_EQ(format_duration(86400 * 3 + 3600 * 4), "3d04h");
  EXPECT_EQ(format_duration(-5), "-5.0s");
  EXPECT_EQ(format_duration(kNan), "-");
  EXPECT_EQ(format_duration(86400 * 365.25 * 1.83e6), "1.83My");
  EXPECT_EQ(format_duration(1e300), "3.17e292y");
}

TEST(Format, FormatsPercents) {
  EXPECT_EQ(format_percent(0.4123), "41.2%");
  EXPECT_EQ(format_percent(0), "0.0%");
  EXPECT_EQ(format_percent(1), "100.0%");
  EXPECT_EQ(format_percent(kNan), "-");
}

TEST(Format, NothingIsWiderThanTenCharacters) {
  for (uint64_t i = 0; i < 20000; ++i) {
    const double value = std::exp2(double(random_uniform(3, 1, i)) * 2000 - 1000);
    EXPECT_LE(format_count(value).size(), 10u) << value;
    EXPECT_LE(format_duration(value).size(), 10u) << value;
    EXPECT_LE(format_bytes(uint64_t(random_bits(3, 2, i)) << (i % 33)).size(), 10u);
  }
}

}  // namespace
}  // namespace athanor
