// LAMB, AdamW with clipped updates and AdamW with 8-bit moments: 20 steps match their papers in double, and planted
// mistakes are detected.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "tests/larger_error.h"
#include "tests/train/optimizer_rig.h"

namespace athanor::optimizers {
namespace {

// Two tensors of one parameter, like Q and K, whose boundary is not aligned in memory; and another one.
const std::vector<size_t> kSizes{45, 25, 77};

// Maximum difference to `want` after 20 steps with gradients gradient_at(element, step, tensor).
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
    for (size_t i = 0; i < got.size(); ++i) most = testing::larger_error(most, std::abs(double(got[i]) - want[p][i]));
  }
  return most;
}

// Gradients that change sign, that stay constant, and that grow: m / sqrt(v) differs from tensor to tensor.
double mixed(int64_t i, int step, size_t tensor) {
  return tensor == 0 ? gradient(i, step) : gradient(i, 0) * std::pow(tensor == 1 ? 1 : 1.3, step);
}

struct StateInDouble {
  std::vector<std::vector<double>> w, m, v;
};
// Initial weights and zero averages for tensors of these sizes.
StateInDouble initial_state(const std::vector<size_t>& sizes) {
  StateInDouble s;
  for (const size_t n : sizes) {
    s.w.emplace_back(n), s.m.emplace_back(n), s.v.emplace_back(n);
    for (size_t i = 0; i < n; ++i) s.w.back()[i] = float(double(s.w.size()) * start(int64_t(i)));
  }
  return s;
}

// [You et al. 2020, "Large Batch Optimization for Deep Learning", alg. 2] in double, for three tensors; and mistakes
// that a test must detect.
enum class Trust { right, cautious, none, of_all, decay_apart };
std::vector<std::vector<double>> lamb_in_double(const std::vector<size_t>& sizes, Trust how) {
  const auto norm = [](const std::vector<double>& x) {
    double sum = 0;
    for (const double e : x) sum += e * e;
    return std::sqrt(sum);
  };
  auto [w, m, v] = initial_state(sizes);
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

TEST(Lamb, AppliesATrustRatioPerTensorAndDetectsMistakes) {
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

// AdamW steps in double, with each tensor's update clipped as in Adafactor; and mistakes that a test must detect.
enum class Clipped { right, cautious, none, together, with_decay, after_average };
std::vector<std::vector<double>> clipped_adamw_in_double(const std::vector<size_t>& sizes, double limit, Clipped how) {
  auto [w, m, v] = initial_state(sizes);
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

TEST(AdamW, ClipsTheUpdateOfEachTensorAndDetectsMistakes) {
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

// AdamW whose moments are rounded by rounded(moment, 0 for m and 1 for v) after each step, or before it if
// steps_by_quantized.
template <class Rounded>
std::vector<double> quantized_adamw_in_double(int64_t n, bool steps_by_quantized, const Rounded& rounded) {
  std::vector<double> w, m(static_cast<size_t>(n)), v(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) w.push_back(float(start(i)));
  for (int step = 0; step < 20; ++step) {
    const double c1 = 1 - std::pow(0.9, step + 1), c2 = 1 - std::pow(0.95, step + 1);
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = float(gradient(int64_t(i), step));
      m[i] = 0.9 * m[i] + 0.1 * g, v[i] = 0.95 * v[i] + 0.05 * g * g;
    }
    auto kept_m = m, kept_v = v;
    rounded(kept_m, 0), rounded(kept_v, 1);
    if (steps_by_quantized) m = kept_m, v = kept_v;
    for (size_t i = 0; i < w.size(); ++i)
      w[i] = w[i] * (1 - kRate * kDecay) - kRate * (m[i] / c1) / (std::sqrt(v[i] / c2) + 1e-8);
    m = kept_m, v = kept_v;
  }
  return w;
}

// Calls fn(element, amax of its block).
template <class Fn>
void in_blocks(std::vector<double>& x, size_t block, const Fn& fn) {
  for (size_t begin = 0; begin < x.size(); begin += block) {
    double most = 0;
    for (size_t i = begin; i < begin + block; ++i) most = std::max(most, std::abs(x[i]));
    for (size_t i = begin; i < begin + block; ++i) fn(i, most);
  }
}

// [Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization"] with its own quantization map; and mistakes
// that a test must detect.
enum class Variant8bit { right, other_map, one_scale, shorter_blocks, steps_by_quantized };
std::vector<double> adamw_8bit_in_double(int64_t n, Variant8bit mistake) {
  std::vector<double> maps[2];  // quantization maps of m and of v
  for (int k = 0; k < 2; ++k) {
    maps[k] = {0, 1};
    const bool sign = k == 0 || mistake == Variant8bit::other_map;
    for (int i = 0; i < 7; ++i)
      for (int parts = 1 << (sign ? i : i + 1), j = 0; j < parts; ++j) {
        maps[k].push_back(std::pow(10, i - 6) * (0.1 + 0.9 * (j + 0.5) / parts));
        if (sign) maps[k].push_back(-maps[k].back());
      }
    std::ranges::sort(maps[k]);
  }
  const auto block = size_t(mistake == Variant8bit::one_scale ? n : mistake == Variant8bit::shorter_blocks ? 128 : 256);
  return quantized_adamw_in_double(
      n, mistake == Variant8bit::steps_by_quantized, [&](std::vector<double>& x, int which) {
        const std::vector<double>& map = maps[which];
        in_blocks(x, block, [&](size_t i, double most) {
          const auto above = std::ranges::lower_bound(map, x[i] / most);
          const bool below =
              above == map.end() || (above != map.begin() && x[i] / most - above[-1] < *above - x[i] / most);
          x[i] = most * (below ? above[-1] : *above);
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

// Number of weights that differ: if f32 and double fall on two sides of a rounding boundary, the quantized values
// differ.
int64_t differing(const std::vector<float>& got, const std::vector<double>& want) {
  int64_t count = 0;
  for (size_t i = 0; i < got.size(); ++i) count += std::abs(double(got[i]) - want[i]) > 1e-5 ? 1 : 0;
  return count;
}

// Distance from AdamW's weights, relative to how far those moved from the start.
double off_adamw(const std::vector<float>& got, const Shape& shape) {
  const std::vector<float> exact = after_20_steps_of(with(RuleName::adamw), shape);
  double off = 0, moved = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    off += std::pow(double(got[i]) - double(exact[i]), 2);
    moved += std::pow(double(exact[i]) - start(int64_t(i)), 2);
  }
  return std::sqrt(off / moved);
}

TEST(AdamW8bit, MatchesPaperReference) {
  const Shape shape{64, 68};
  const int64_t n = shape.numel();
  const std::vector<float> got = after_20_steps_of(with(RuleName::adamw_8bit), shape);
  EXPECT_LT(differing(got, adamw_8bit_in_double(n, Variant8bit::right)), n / 200);
  for (const Variant8bit mistake :
       {Variant8bit::other_map, Variant8bit::one_scale, Variant8bit::shorter_blocks, Variant8bit::steps_by_quantized})
    EXPECT_GT(differing(got, adamw_8bit_in_double(n, mistake)), n / 10) << int(mistake);
  EXPECT_LT(off_adamw(got, shape), 0.05);
}

// 8-bit moments are used only for matrices that are large enough and consist of whole blocks; all other weights match
// AdamW bit for bit.
TEST(AdamW8bit, SmallOrOddWeightsMatchAdamWBitExactly) {
  std::vector<ParamSpec> specs{matrix("large", {64, 64}), matrix("small", {63, 64}), matrix("ragged", {65, 65})};
  ParamSpec parts{
      .name = "parts", .shape = {128, 65}, .role = Role::matrix};  // tensors of 65 x 64 elements end within a block
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
  const auto coded = trained(RuleName::adamw_8bit), plain = trained(RuleName::adamw);
  const auto& specs_of_states = coded->params.state_specs();
  ASSERT_EQ(specs_of_states.size(), 6U);
  const size_t bytes[] = {4096, 4096, 64, 64};  // 8-bit moments, and scales of 16 blocks
  for (size_t s = 0, quantized = 0; s < 6; ++s) {
    const bool of_quantized = specs_of_states[s].name.find('_') != std::string::npos;
    for (size_t p = 0; p < 7; ++p) EXPECT_EQ(coded->params.keeps(s, p), (p == 0) == of_quantized) << s << " " << p;
    if (!of_quantized) continue;
    EXPECT_EQ(coded->params.units()[0]->states[s].t.bytes(), bytes[quantized++]);
  }
  const std::string line = describe_groups(with(RuleName::adamw_8bit), coded->params)[0];
  EXPECT_TRUE(
      line.starts_with("no group: adamw_8bit, learning rate x 1, weight decay 0.3, 24769 parameters (4096 with "
                       "moments of 8 bits): large"))
      << line;
  for (size_t p = 1; p < 7; ++p) EXPECT_EQ(coded->weights(p), plain->weights(p)) << p;
  EXPECT_NE(coded->weights(0), plain->weights(0));
}

}  // namespace
}  // namespace athanor::optimizers
