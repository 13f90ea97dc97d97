#include "convert/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "convert/hessian.h"
#include "tensor/half.h"

namespace athanor {
namespace {

Square permuted(const Square& h, const std::vector<int64_t>& order) {
  Square out{std::vector<float>(h.values.size()), h.size};
  for (int64_t i = 0; i < h.size; ++i)
    for (int64_t j = 0; j < h.size; ++j) out.at(i, j) = h.at(order[size_t(i)], order[size_t(j)]);
  return out;
}

float scale_of(const float* w, int64_t count, int bits) {
  float amax = 0;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(w[i]));
  const float scale = to_float(from_float<f16>((amax > 0 ? 2 * amax : 2.0f) / float((1 << bits) - 1)));
  return scale > 0 ? scale : 0x1p-24f;  // smallest positive f16
}

}  // namespace

GptqMatrix quantize_gptq(GptqProblem p, const GptqOptions& o, ThreadPool& pool) {
  const int64_t in = p.in, out = p.out, group = o.group > 0 ? o.group : in, groups = in / group;
  CHECK(in % group == 0 && int64_t(p.weight.size()) == out * in && int64_t(p.hessian.size()) == in * in, p.what);
  Square h{std::move(p.hessian), in};
  const std::vector<int64_t> dead = dead_inputs(h);  // irrelevant inputs: their columns become 0
  std::vector<int64_t> order(static_cast<size_t>(in));
  std::iota(order.begin(), order.end(), 0);
  if (o.act_order) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return h.at(a, a) > h.at(b, b); });
    h = permuted(h, order);
  }
  const Square u = inverse_factor(h, o.damping, p.what, pool);
  GptqMatrix result{.quantized = std::vector<uint8_t>(p.weight.size()),
                    .scales = std::vector<float>(static_cast<size_t>(groups * out)),
                    .group_of = std::vector<int32_t>(static_cast<size_t>(in))};
  for (int64_t i = 0; i < in; ++i) result.group_of[size_t(order[size_t(i)])] = int32_t(i / group);
  const int half = 1 << (o.bits - 1);
  pool.parallel_ranges(out, kRowsTogether, [&](int64_t begin, int64_t end) {
    std::vector<float> rows(static_cast<size_t>((end - begin) * in));  // columns in the order of rounding
    for (int64_t r = begin; r < end; ++r) {
      float* const original = p.weight.data() + r * in;
      for (const int64_t i : dead) original[i] = 0;
      for (int64_t i = 0; i < in; ++i) rows[size_t((r - begin) * in + i)] = original[order[size_t(i)]];
    }
    for (int64_t i = 0; i < in; ++i) {
      const float* const moves = u.row(i);
      for (int64_t r = begin; r < end; ++r) {
        float* const w = rows.data() + (r - begin) * in;
        float& scale = result.scales[size_t(i / group * out + r)];
        if (i % group == 0) scale = scale_of(w + i, group, o.bits);
        const float code = std::clamp(std::nearbyint(w[i] / scale), -float(half), float(half - 1));
        result.quantized[size_t(r * in + order[size_t(i)])] = uint8_t(int(code) + half);
        const float error = (w[i] - code * scale) / moves[i];
        for (int64_t j = i + 1; j < in; ++j) w[j] -= error * moves[j];
      }
    }
  });
  return result;
}

}  // namespace athanor
