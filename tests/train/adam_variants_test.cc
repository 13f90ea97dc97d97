// LAMB, Adam-mini, AdamW with clipped updates and AdamW with moments of 8 bits: 20 steps are those of their papers in
// double, and mistakes show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "tests/train/optimizer_rig.h"

namespace athanor::optimizers {
namespace {

// Two tensors of one parameter, as queries and keys are, which no boundary of memory divides; and another one.
const std::vector<size_t> kSizes{45, 25, 77};

// The largest difference to `want` after 20 steps with gradients gradient_at(element, step, tensor).
template <class Gradient>
double most_off_after_20_steps(const OptimizerOptions& o, Gradient&& gradient_at,
                               const std::vector<std::vector<double>>& want) {
  ParamSpec two{.name = "two", .shape = {14, 5}, .role = Role::matrix};
  two.slices = {{"first", {9, 5}, 0}, {"second", {5, 5}, 45}};
  Trained t({two, matrix("third", {7, 11})}, o);
  const auto numbers = [](size_t p, const auto& of) {
    std::vector<float> x(kSizes[p]);
    for (size_t i = 0; i < x.size(); ++i) x[i] = float(of(int64_t(i)));
    return x;
  };
  for (size_t p = 0; p < kSizes.size(); ++p)
    t.set(t.master(p), numbers(p, [&](int64_t i) { return double(p + 1) * start(i); }));
  for (int step = 0; step < 20; ++step) {
    for (size_t p = 0; p < kSizes.size(); ++p)
      t.set(t.grad(p), numbers(p, [&](int64_t i) { return gradient_at(i, step, p); }));
    t.step();
  }
  double most = 0;
  for (size_t p = 0; p < kSizes.size(); ++p) {
    const std::vector<float> got = t.weights(p);
    for (size_t i = 0; i < got.size(); ++i) most = std::max(most, std::abs(double(got[i]) - want[p][i]));
  }
  return most;
}

// Gradients that change their sign, that stay what they are, and that grow: m / sqrt(v) differs from tensor to tensor.
double mixed(int64_t i, int step, size_t tensor) {
  return tensor == 0 ? gradient(i, step) : gradient(i, 0) * std::pow(tensor == 1 ? 1 : 1.3, step);
}

// [You et al. 2020, "Large Batch Optimization for Deep Learning", alg. 2] in double, of three tensors; mistakes that a
// test has to see.
enum class Trust { right, cautious, none, of_all, decay_apart };
std::vector<std::vector<double>> lamb_in_double(const std::vector<size_t>& sizes, Trust how) {
  const auto norm = [](const std::vector<double>& x) {
    double sum = 0;
    for (const double e : x) sum += e * e;
    return std::sqrt(sum);
  };
  std::vector<std::vector<double>> w, m, v;
  for (const size_t n : sizes) {
    w.emplace_back(n), m.emplace_back(n), v.emplace_back(n);
    for (size_t i = 0; i < n; ++i) w.back()[i] = float(double(w.size()) * start(int64_t(i)));
  }
  for (int step = 0; step < 20; ++step) {
    const double c1 = 1 - std::pow(0.9, step + 1), c2 = 1 - std::pow(0.95, step + 1);
    std::vector<std::vector<double>> all;
    std::vector<double> ratios;
    double of_w = 0, of_r = 0;
    for (size_t t = 0; t < w.size(); ++t) {
      std::vector<double>& r = all.emplace_back(w[t].size());
      for (size_t i = 0; i < r.size(); ++i) {
        const double g = float(gradient(int64_t(i), step));
        m[t][i] = 0.9 * m[t][i] + 0.1 * g, v[t][i] = 0.95 * v[t][i] + 0.05 * g * g;
        r[i] = m[t][i] / c1 / (std::sqrt(v[t][i] / c2) + 1e-8);
        if (how != Trust::decay_apart && !(how == Trust::cautious && w[t][i] * r[i] < 0)) r[i] += kDecay * w[t][i];
      }
      ratios.push_back(how == Trust::none ? 1 : norm(w[t]) / norm(r));
      of_w += std::pow(norm(w[t]), 2), of_r += std::pow(norm(r), 2);
    }
    for (size_t t = 0; t < w.size(); ++t)
      for (size_t i = 0; i < w[t].size(); ++i) {
        if (how == Trust::decay_apart) w[t][i] *= 1 - kRate * kDecay;
        w[t][i] -= kRate * (how == Trust::of_all ? std::sqrt(of_w / of_r) : ratios[t]) * all[t][i];
      }
  }
  return w;
}

TEST(Lamb, EachTensorHasItsTrustRatioAndMistakesShow) {
  const auto most_off = [&](bool cautious, Trust how) {
    OptimizerOptions o = with(RuleName::lamb);
    o.cautious_weight_decay = cautious;
    const auto same = [](int64_t i, int step, size_t) { return gradient(i, step); };
    return most_off_after_20_steps(o, same, lamb_in_double(kSizes, how));
  };
  EXPECT_LT(most_off(false, Trust::right), 1e-5);
  EXPECT_LT(most_off(true, Trust::cautious), 1e-5);
  for (const Trust mistake : {Trust::cautious, Trust::none, Trust::of_all, Trust::decay_apart})
    EXPECT_GT(most_off(false, mistake), 1e-3) << int(mistake);
}

// AdamW's steps, each tensor's clipped as Adafactor's are, in double; mistakes that a test has to see.
enum class Clipped { right, cautious, none, together, with_decay, after_average };
std::vector<std::vector<double>> clipped_adamw_in_double(const std::vector<size_t>& sizes, double limit, Clipped how) {
  std::vector<std::vector<double>> w, m, v;
  for (const size_t n : sizes) {
    w.emplace_back(n), m.emplace_back(n), v.emplace_back(n);
    for (size_t i = 0; i < n; ++i) w.back()[i] = float(double(w.size()) * start(int64_t(i)));
  }
  for (int step = 0; step < 20; ++step) {
    const double c1 = 1 - std::pow(0.9, step + 1), c2 = 1 - std::pow(0.95, step + 1);
    std::vector<std::vector<double>> all;
    std::vector<double> squares;
    double sum = 0, count = 0;
    for (size_t t = 0; t < w.size(); ++t) {
      std::vector<double>& u = all.emplace_back(w[t].size());
      double& square = squares.emplace_back(0);
      for (size_t i = 0; i < u.size(); ++i) {
        const double g = float(mixed(int64_t(i), step, t));
        m[t][i] = 0.9 * m[t][i] + 0.1 * g, v[t][i] = 0.95 * v[t][i] + 0.05 * g * g;
        u[i] = m[t][i] / c1 / (std::sqrt(v[t][i] / c2) + 1e-8);
        if (how == Clipped::with_decay) u[i] += kDecay * w[t][i];
        const double measured = how == Clipped::after_average ? g / (std::sqrt(v[t][i] / c2) + 1e-8) : u[i];
        square += measured * measured;
      }
      sum += square, count += double(u.size());
    }
    for (size_t t = 0; t < w.size(); ++t) {
      const double rms = std::sqrt(how == Clipped::together ? sum / count : squares[t] / double(sizes[t]));
      const double by = how == Clipped::none ? 1 : std::max(1.0, rms / limit);
      for (size_t i = 0; i < w[t].size(); ++i) {
        const double u = all[t][i] / by;
        if (how != Clipped::with_decay && (how != Clipped::cautious || w[t][i] * u >= 0)) w[t][i] *= 1 - kRate * kDecay;
        w[t][i] -= kRate * u;
      }
    }
  }
  return w;
}

TEST(AdamW, EachTensorsUpdateIsClippedAndMistakesShow) {
  const auto most_off = [&](double limit, bool cautious, Clipped how) {
    OptimizerOptions o = with(RuleName::adamw);
    o.cautious_weight_decay = cautious;
    o.update_clip_threshold = limit;
    return most_off_after_20_steps(o, mixed, clipped_adamw_in_double(kSizes, limit, how));
  };
  EXPECT_LT(most_off(0.6, false, Clipped::right), 1e-5);
  EXPECT_LT(most_off(0.6, true, Clipped::cautious), 1e-5);
  EXPECT_LT(most_off(1e3, false, Clipped::none), 1e-5);
  EXPECT_LT(most_off(0, false, Clipped::none), 1e-5);
  for (const Clipped mistake :
       {Clipped::cautious, Clipped::none, Clipped::together, Clipped::with_decay, Clipped::after_average})
    EXPECT_GT(most_off(0.6, false, mistake), 1e-3) << int(mistake);
}

// [Zhang et al. 2024, "Adam-mini", alg. 1] in double, of an [11, 5] matrix: block[o] is that of output o.
std::vector<double> adam_mini_in_double(const std::vector<size_t>& block) {
  const size_t inputs = 5, n = block.size() * inputs;
  std::vector<double> w(n), m(n), v(n);
  for (size_t i = 0; i < n; ++i) w[i] = float(start(int64_t(i)));
  for (int step = 0; step < 20; ++step) {
    const double c1 = 1 - std::pow(0.9, step + 1), c2 = 1 - std::pow(0.95, step + 1);
    std::vector<double> sum(n), count(n);
    for (size_t i = 0; i < n; ++i) {
      const double g = float(gradient(int64_t(i), step));
      m[i] = 0.9 * m[i] + 0.1 * g;
      sum[block[i / inputs]] += g * g, ++count[block[i / inputs]];
    }
    for (size_t b = 0; b < n; ++b)
      if (count[b] > 0) v[b] = 0.95 * v[b] + 0.05 * sum[b] / count[b];
    for (size_t i = 0; i < n; ++i)
      w[i] = w[i] * (1 - kRate * kDecay) - kRate * m[i] / c1 / (std::sqrt(v[block[i / inputs]] / c2) + 1e-8);
  }
  return w;
}

// Queries and keys have a second moment for each head, values and other matrices one for each output, in Llama's order
// and in GPT-2's.
TEST(AdamMini, BlocksAreHeadsAndOutputsAndMistakesShow) {
  const int64_t outputs = 11, inputs = 5;
  ParamSpec rows{.name = "qkv", .shape = {outputs, inputs}, .role = Role::matrix};
  rows.slices = {{"q", {4, inputs}, 0}, {"k", {4, inputs}, 4 * inputs}, {"v", {3, inputs}, 8 * inputs}};
  rows.cut = {.axis = 0, .parts = {4, 4, 3}, .whole = 2};
  ParamSpec columns = matrix("c_attn", {inputs, outputs}, true);
  columns.cut = {.axis = 1, .parts = {4, 4, 3}, .whole = 2};
  const std::vector<size_t> heads{0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6}, each{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const auto trained = [&](ParamSpec spec) {
    const bool in_out = spec.in_out;
    Trained t({std::move(spec)}, with(RuleName::adam_mini));
    const ParamStore::Unit& unit = *t.params.units()[0];
    const auto all = [&](const Tensor& flat) { return flat.slice(0, outputs * inputs); };
    t.set(all(unit.master), values(start, outputs, inputs, in_out));
    for (int step = 0; step < 20; ++step) {
      t.set(all(unit.grad), values([&](int64_t i) { return gradient(i, step); }, outputs, inputs, in_out));
      t.step();
    }
    const auto w = t.rig.read<float>(all(unit.master));
    std::vector<float> out = w;
    for (int64_t o = 0; o < outputs && in_out; ++o)
      for (int64_t i = 0; i < inputs; ++i) out[size_t(o * inputs + i)] = w[size_t(i * outputs + o)];
    return out;
  };
  ParamSpec plain = rows;
  plain.cut = {};
  expect_near(trained(rows), adam_mini_in_double(heads), 1e-6, "queries, keys and values in rows");
  expect_near(trained(columns), adam_mini_in_double(heads), 1e-6, "in columns");
  expect_near(trained(plain), adam_mini_in_double(each), 1e-6, "another matrix");
  const auto got = trained(rows);
  for (const std::vector<size_t>& wrong : {each, std::vector<size_t>(11), {0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5}}) {
    const auto want = adam_mini_in_double(wrong);
    double most = 0;
    for (size_t i = 0; i < got.size(); ++i) most = std::max(most, std::abs(double(got[i]) - want[i]));
    EXPECT_GT(most, 1e-3);
  }
}

// AdamW whose moments are rounded by rounded(moment, 0 for m and 1 for v, step) after each step, or already for it.
template <class Rounded>
std::vector<double> coded_adamw_in_double(int64_t n, bool steps_by_codes, const Rounded& rounded) {
  std::vector<double> w, m(static_cast<size_t>(n)), v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) w.push_back(float(start(i)));
  for (int step = 0; step < 20; ++step) {
    const double c1 = 1 - std::pow(0.9, step + 1), c2 = 1 - std::pow(0.95, step + 1);
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = float(gradient(int64_t(i), step));
      m[i] = 0.9 * m[i] + 0.1 * g, v[i] = 0.95 * v[i] + 0.05 * g * g;
    }
    auto kept_m = m, kept_v = v;
    rounded(kept_m, 0, step), rounded(kept_v, 1, step);
    if (steps_by_codes) m = kept_m, v = kept_v;
    for (size_t i = 0; i < w.size(); ++i)
      w[i] = w[i] * (1 - kRate * kDecay) - kRate * (m[i] / c1) / (std::sqrt(v[i] / c2) + 1e-8);
    m = kept_m, v = kept_v;
  }
  return w;
}

// fn(element, largest absolute value of its block)
template <class Fn>
void in_blocks(std::vector<double>& x, size_t block, const Fn& fn) {
  for (size_t begin = 0; begin < x.size(); begin += block) {
    double most = 0;
    for (size_t i = begin; i < begin + block; ++i) most = std::max(most, std::abs(x[i]));
    for (size_t i = begin; i < begin + block; ++i) fn(i, most);
  }
}

// [Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"] with its own codes; mistakes that a test has
// to see.
enum class Coded { right, other_map, one_scale, shorter_blocks, steps_by_codes };
std::vector<double> adamw_8bit_in_double(int64_t n, Coded mistake) {
  std::vector<double> maps[2];  // of m and of v
  for (int k = 0; k < 2; ++k) {
    maps[k] = {0, 1};
    const bool sign = k == 0 || mistake == Coded::other_map;
    for (int i = 0; i < 7; ++i)
      for (int parts = 1 << (sign ? i : i + 1), j = 0; j < parts; ++j) {
        maps[k].push_back(std::pow(10, i - 6) * (0.1 + 0.9 * (j + 0.5) / parts));
        if (sign) maps[k].push_back(-maps[k].back());
      }
    std::ranges::sort(maps[k]);
  }
  const auto block = size_t(mistake == Coded::one_scale ? n : mistake == Coded::shorter_blocks ? 128 : 256);
  return coded_adamw_in_double(n, mistake == Coded::steps_by_codes, [&](std::vector<double>& x, int which, int) {
    const std::vector<double>& map = maps[which];
    in_blocks(x, block, [&](size_t i, double most) {
      const auto above = std::ranges::lower_bound(map, x[i] / most);
      const bool below = above == map.end() || (above != map.begin() && x[i] / most - above[-1] < *above - x[i] / most);
      x[i] = most * (below ? above[-1] : *above);
    });
  });
}

// The same with FP8 rounded by random bits; mistakes that a test has to see.
enum class Fp8 { right, to_nearest, v_in_e4m3, m_in_e5m2, one_scale, same_bits, steps_by_codes };
std::vector<double> adamw_fp8_in_double(int64_t n, Fp8 mistake) {
  const uint64_t stream = stream_of("stochastic rounding of the moments of unit 0");
  const auto block = size_t(mistake == Fp8::one_scale ? n : 256);
  return coded_adamw_in_double(n, mistake == Fp8::steps_by_codes, [&](std::vector<double>& x, int which, int step) {
    const bool e5m2 = which == 0 ? mistake == Fp8::m_in_e5m2 : mistake != Fp8::v_in_e4m3;
    const double largest = e5m2 ? 57344 : 448;
    in_blocks(x, block, [&](size_t i, double most) {
      const double number = std::abs(x[i]) / most * largest;
      const int exponent = number > 0 ? std::max(std::ilogb(number), e5m2 ? -14 : -6) : 0;
      const double gap = std::ldexp(1, exponent - (e5m2 ? 2 : 3));
      const uint32_t bits = random_bits(0, stream, (uint64_t(step + 1) << 40) + i);
      const uint32_t random16 = which == 0 || mistake == Fp8::same_bits ? bits >> 16 : bits & 0xffff;
      const double up = mistake == Fp8::to_nearest ? 0.5 : random16 / 65536.0;
      x[i] = std::copysign(std::floor(number / gap + up) * gap / largest * most, x[i]);
    });
  });
}

std::vector<float> after_20_steps_of(const OptimizerOptions& o, const Shape& shape) {
  Trained t({matrix("w", shape)}, o);
  t.set(t.master(), values(start, shape[0], shape[1], false));
  for (int step = 0; step < 20; ++step) {
    t.set(t.grad(), values([&](int64_t i) { return gradient(i, step); }, shape[0], shape[1], false));
    t.step();
  }
  return t.weights();
}

// How many weights differ: where f32 and double lie on two sides of a bound, one code is another.
int64_t differing(const std::vector<float>& got, const std::vector<double>& want) {
  int64_t count = 0;
  for (size_t i = 0; i < got.size(); ++i) count += std::abs(double(got[i]) - want[i]) > 1e-5 ? 1 : 0;
  return count;
}

// The distance from AdamW's weights, relative to theirs from the start.
double off_adamw(const std::vector<float>& got, const Shape& shape) {
  const std::vector<float> exact = after_20_steps_of(with(RuleName::adamw), shape);
  double off = 0, moved = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    off += std::pow(double(got[i]) - double(exact[i]), 2);
    moved += std::pow(double(exact[i]) - start(int64_t(i)), 2);
  }
  return std::sqrt(off / moved);
}

TEST(AdamW8bit, IsThatOfThePaperAndMistakesShow) {
  const Shape shape{64, 68};
  const int64_t n = shape.numel();
  const std::vector<float> got = after_20_steps_of(with(RuleName::adamw_8bit), shape);
  EXPECT_LT(differing(got, adamw_8bit_in_double(n, Coded::right)), n / 200);
  for (const Coded mistake : {Coded::other_map, Coded::one_scale, Coded::shorter_blocks, Coded::steps_by_codes})
    EXPECT_GT(differing(got, adamw_8bit_in_double(n, mistake)), n / 10) << int(mistake);
  EXPECT_LT(off_adamw(got, shape), 0.05);
}

TEST(AdamWFp8, MomentsAreRoundedByTheirRandomBitsAndMistakesShow) {
  const Shape shape{64, 68};
  const int64_t n = shape.numel();
  const std::vector<float> got = after_20_steps_of(with(RuleName::adamw_fp8), shape);
  EXPECT_LT(differing(got, adamw_fp8_in_double(n, Fp8::right)), n / 200);
  for (const Fp8 mistake :
       {Fp8::to_nearest, Fp8::v_in_e4m3, Fp8::m_in_e5m2, Fp8::one_scale, Fp8::same_bits, Fp8::steps_by_codes})
    EXPECT_GT(differing(got, adamw_fp8_in_double(n, mistake)), n / 10) << int(mistake);
  EXPECT_LT(off_adamw(got, shape), 0.1);
}

// Beside gradients of 1, squares of 1e-6 are no code: rounded to 0, the next step would be divided by eps.
TEST(AdamWFp8, SecondMomentsBelowTheSmallestCodeMakeNoLargeSteps) {
  Trained t({matrix("w", {64, 64})}, with(RuleName::adamw_fp8));
  t.set(t.master(), std::vector<float>(64 * 64));
  for (int step = 0; step < 20; ++step) {
    std::vector<float> g(64 * 64);
    for (size_t i = 0; i < g.size(); ++i) g[i] = i % 256 == 0 ? 1 : float(1e-6 * (1 + i % 7) * (i % 2 ? 1 : -1));
    t.set(t.grad(), g);
    t.step();
  }
  for (const float w : t.weights()) EXPECT_LT(std::abs(w), 20 * kRate * 1.5);
}

// Codes are kept of matrices that are large enough and whole blocks, and of nothing else; the rest is AdamW to the bit.
class CodedMoments : public ::testing::TestWithParam<RuleName> {};
TEST_P(CodedMoments, OtherWeightsHaveTheMomentsOfAdamW) {
  const RuleName rule_name = GetParam();
  std::vector<ParamSpec> specs{matrix("large", {64, 64}), matrix("small", {63, 64}), matrix("ragged", {65, 65})};
  ParamSpec parts{
      .name = "parts", .shape = {128, 65}, .role = Role::matrix};  // 65 x 64 elements each end within a block
  parts.slices = {{"first", {64, 65}, 0}, {"second", {64, 65}, 64 * 65}};
  specs.push_back(parts);
  specs.push_back({.name = "table", .shape = {64, 64}, .role = Role::embedding, .slices = {{"table", {64, 64}, 0}}});
  specs.push_back({.name = "norm", .shape = {5}, .role = Role::vector, .slices = {{"norm", {5}, 0}}});
  const auto trained = [&](RuleName rule) {
    auto t = std::make_unique<Trained>(specs, with(rule));
    for (int step = 0; step < 3; ++step) {
      for (size_t p = 0; p < t->params.pieces().size(); ++p) {
        std::vector<float> g(size_t(t->grad(p).numel()));
        for (size_t i = 0; i < g.size(); ++i) g[i] = float(gradient(int64_t(i), step));
        t->set(t->grad(p), g);
      }
      t->step();
    }
    return t;
  };
  const auto coded = trained(rule_name), plain = trained(RuleName::adamw);
  const auto& specs_of_states = coded->params.state_specs();
  ASSERT_EQ(specs_of_states.size(), 6U);
  const size_t bytes[] = {4096, 4096, 64, 64};  // codes, and scales of 16 blocks
  for (size_t s = 0, codes = 0; s < 6; ++s) {
    const bool of_codes = specs_of_states[s].name.find('_') != std::string::npos;
    for (size_t p = 0; p < 7; ++p) EXPECT_EQ(coded->params.keeps(s, p), (p == 0) == of_codes) << s << " " << p;
    if (!of_codes) continue;
    EXPECT_EQ(coded->params.units()[0]->states[s].t.bytes(), bytes[codes++]);
  }
  const std::string line = describe_groups(with(rule_name), coded->params)[0];
  EXPECT_TRUE(line.starts_with(cat("no group: ", kRuleNames[size_t(rule_name)],
                                   ", learning rate x 1, weight decay 0.3, 24769 parameters (4096 with moments of 8 "
                                   "bits): large")))
      << line;
  for (size_t p = 1; p < 7; ++p) EXPECT_EQ(coded->weights(p), plain->weights(p)) << p;
  EXPECT_NE(coded->weights(0), plain->weights(0));
}
INSTANTIATE_TEST_SUITE_P(Rules, CodedMoments, ::testing::Values(RuleName::adamw_8bit, RuleName::adamw_fp8),
                         [](const auto& which) { return kRuleNames[size_t(which.param)]; });

}  // namespace
}  // namespace athanor::optimizers
