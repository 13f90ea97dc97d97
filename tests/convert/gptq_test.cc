// GPTQ against rounding to nearest: the same where inputs are independent, better where they are not.
#include "convert/gptq.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "tensor/half.h"

namespace athanor::test {
namespace {

constexpr int64_t kOut = 24, kIn = 64;

float random(const char* stream, size_t i) { return random_uniform(11, stream_of(stream), i) - 0.5f; }

std::vector<float> weights() {
  std::vector<float> w(kOut * kIn);
  for (size_t i = 0; i < w.size(); ++i) w[i] = random("w", i);
  return w;
}

// Hessian X^T X of inputs that are mixtures of a few sources, hence strongly correlated.
std::vector<float> hessian() {
  constexpr size_t kTokens = 200, kSources = 12;
  std::vector<float> h(kIn * kIn, 0.0f);
  for (size_t t = 0; t < kTokens; ++t) {
    std::vector<double> x(kIn, 0.0);
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t s = 0; s < kSources; ++s)
        x[i] += double(random("source", t * kSources + s)) * double(random("mix", i * kSources + s));
      x[i] = (x[i] + 0.02 * double(random("noise", t * x.size() + i))) * (1 + double(i % 5));
    }
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j < x.size(); ++j) h[i * x.size() + j] += float(x[i] * x[j]);
  }
  return h;
}

std::vector<double> errors(const GptqMatrix& m, const std::vector<float>& w, int bits) {
  std::vector<double> e;
  for (size_t i = 0; i < w.size(); ++i) {
    const size_t row = i / kIn, column = i % kIn;
    const float scale = m.scales[size_t(m.group_of[column]) * kOut + row];
    e.push_back(double(w[i]) - double(scale) * (int(m.quantized[i]) - (1 << (bits - 1))));
  }
  return e;
}

// Sum over rows of e H e^T: the squared error of the layer's outputs on the text.
double output_error(const std::vector<double>& e, const std::vector<float>& h) {
  double sum = 0;
  for (size_t r = 0; r < kOut; ++r)
    for (size_t i = 0; i < kIn; ++i)
      for (size_t j = 0; j < kIn; ++j) sum += e[r * kIn + i] * double(h[i * kIn + j]) * e[r * kIn + j];
  return sum;
}

std::vector<float> identity() {
  std::vector<float> h(kIn * kIn, 0.0f);
  for (size_t i = 0; i < kIn; ++i) h[i * kIn + i] = 3;
  return h;
}

GptqMatrix quantized(std::vector<float> h, const GptqOptions& o, int threads = 1) {
  ThreadPool pool(threads);
  return quantize_gptq({.weight = weights(), .hessian = std::move(h), .out = kOut, .in = kIn, .what = "w"}, o, pool);
}

TEST(Gptq, RoundsToNearestForIndependentInputs) {
  const std::vector<float> w = weights();
  for (const int bits : {4, 8}) {
    const GptqMatrix m = quantized(identity(), {.bits = bits, .group = 16});
    for (size_t r = 0; r < kOut; ++r)
      for (size_t g = 0; g < kIn / 16; ++g) {
        float largest = 0;
        for (size_t i = 0; i < 16; ++i) largest = std::max(largest, std::fabs(w[r * kIn + g * 16 + i]));
        const float scale = to_float(from_float<f16>(2 * largest / float((1 << bits) - 1)));
        EXPECT_EQ(m.scales[g * kOut + r], scale);
        for (size_t i = r * kIn + g * 16; i < r * kIn + (g + 1) * 16; ++i)
          EXPECT_EQ(int(m.quantized[i]),
                    std::min<int>((1 << bits) - 1, int(std::nearbyint(w[i] / scale)) + (1 << (bits - 1))));
      }
  }
}

TEST(Gptq, OutputErrorIsBelowRoundToNearest) {
  const std::vector<float> w = weights(), h = hessian();
  const double nearest = output_error(errors(quantized(identity(), {.group = 16}), w, 4), h);
  const double in_order = output_error(errors(quantized(h, {.group = 16}), w, 4), h);
  const double act_order = output_error(errors(quantized(h, {.group = 16, .act_order = true}), w, 4), h);
  EXPECT_LT(in_order, 0.5 * nearest);
  EXPECT_LT(act_order, 0.5 * nearest);
  EXPECT_NE(in_order, act_order);
}

TEST(Gptq, ActOrderSortsColumnsByInputMagnitude) {
  const std::vector<float> h = hessian();
  const GptqMatrix m = quantized(h, {.group = 16, .act_order = true});
  double least_first = INFINITY, most_last = 0;
  for (size_t i = 0; i < kIn; ++i) {
    if (m.group_of[i] == 0) least_first = std::min(least_first, double(h[i * kIn + i]));
    if (m.group_of[i] == 3) most_last = std::max(most_last, double(h[i * kIn + i]));
  }
  EXPECT_GT(least_first, most_last);
}

TEST(Gptq, ColumnsOfDeadInputsBecomeZero) {
  std::vector<float> h = hessian();
  for (size_t i = 0; i < kIn; ++i) h[7 * kIn + i] = h[i * kIn + 7] = 0;
  const GptqMatrix m = quantized(h, {.group = 16});
  for (size_t r = 0; r < kOut; ++r) EXPECT_EQ(int(m.quantized[r * kIn + 7]), 8);
}

// Files hold zero - 1 in four bits, so that a zero point of 0 is 15.
TEST(Gptq, StoredZeroPointsAreReadModuloSixteen) {
  const GptqStored stored{.qweight = std::vector<int32_t>(8, 0x76543210),  // 0 ... 7 in each output
                          .qzeros = {0x7777777f},
                          .g_idx = std::vector<int32_t>(8, 0),
                          .scales = std::vector<float>(8, 0.5f),
                          .matrix = {8, 8},
                          .bits = 4};
  const std::vector<float> values = gptq_values(stored);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(values[i], 0.5f * float(i)) << "zero point 0";
    EXPECT_EQ(values[8 + i], 0.5f * (float(i) - 8)) << "zero point 8";
  }
}

TEST(Gptq, BytesDoNotDependOnThreads) {
  const GptqMatrix one = quantized(hessian(), {.group = 16}), three = quantized(hessian(), {.group = 16}, 3);
  EXPECT_EQ(one.quantized, three.quantized);
  EXPECT_EQ(one.scales, three.scales);
}

}  // namespace
}  // namespace athanor::test
