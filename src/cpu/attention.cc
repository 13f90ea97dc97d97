// Causal attention over spans: forward and backward.
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

bool visible(const AttentionShape& s, const Span& span, int64_t i, int64_t j) {
  const int64_t distance = (span.q_pos + i) - (span.k_pos + j);
  return distance >= 0 && (s.window == 0 || distance < s.window);
}

template <class T>
void zero_rows(const Tensor& t) {
  for (int64_t r = 0; r < t.rows(); ++r)
    for (int64_t c = 0; c < t.cols(); ++c) t.as<T>()[r * t.stride() + c] = from_float<T>(0);
}

}  // namespace

size_t CpuOps::scratch(const AttentionFwd&) const { return 0; }

void CpuOps::run(const AttentionFwd& op, void*) {
  const AttentionShape s = op.shape;
  const Span* spans = static_cast<const Span*>(op.spans.data);
  by_float(op.q.dtype, [&]<class T>() {
    zero_rows<T>(op.y);
    float* lse = op.lse.as<float>();
    for (int64_t i = 0; i < op.lse.numel(); ++i) lse[i] = -std::numeric_limits<float>::infinity();
    pool_.parallel_for(op.spans.rows() * s.heads, [&](int64_t chunk) {
      const Span span = spans[chunk / s.heads];
      const int64_t h = chunk % s.heads, g = h / (s.heads / s.kv_heads), D = s.head_dim;
      std::vector<float> score(size_t(span.k_len)), y(static_cast<size_t>(D));
      for (int64_t i = 0; i < span.q_len; ++i) {
        const int64_t qi = span.q_begin + i;
        const T* q = op.q.as<T>() + qi * op.q.stride() + h * D;
        float top = -std::numeric_limits<float>::infinity(), sum = 0;
        for (int64_t j = 0; j < span.k_len; ++j) {
          if (!visible(s, span, i, j)) continue;
          const T* k = op.k.as<T>() + (span.k_begin + j) * op.k.stride() + g * D;
          float dot = 0;
          for (int64_t d = 0; d < D; ++d) dot += to_float(q[d]) * to_float(k[d]);
          score[size_t(j)] = dot * s.scale;
          top = std::max(top, score[size_t(j)]);
        }
        y.assign(size_t(D), 0);
        for (int64_t j = 0; j < span.k_len; ++j) {
          if (!visible(s, span, i, j)) continue;
          const float p = std::exp(score[size_t(j)] - top);
          const T* v = op.v.as<T>() + (span.k_begin + j) * op.v.stride() + g * D;
          sum += p;
          for (int64_t d = 0; d < D; ++d) y[size_t(d)] += p * to_float(v[d]);
        }
        if (sum == 0) continue;
        lse[qi * s.heads + h] = top + std::log(sum);
        for (int64_t d = 0; d < D; ++d)
          op.y.as<T>()[qi * op.y.stride() + h * D + d] = from_float<T>(y[size_t(d)] / sum);
      }
    });
  });
}

size_t CpuOps::scratch(const AttentionBwd&) const { return 0; }

void CpuOps::run(const AttentionBwd& op, void*) {
  const AttentionShape s = op.shape;
  const Span* spans = static_cast<const Span*>(op.spans.data);
  const int64_t D = s.head_dim, group = s.heads / s.kv_heads;
  by_float(op.q.dtype, [&]<class T>() {
    zero_rows<T>(op.dq);
    zero_rows<T>(op.dk);
    zero_rows<T>(op.dv);
    const auto row = [&](const Tensor& t, int64_t r, int64_t head) { return t.as<T>() + r * t.stride() + head * D; };
    pool_.parallel_for(op.spans.rows() * s.kv_heads, [&](int64_t chunk) {
      const Span span = spans[chunk / s.kv_heads];
      const int64_t g = chunk % s.kv_heads;
      std::vector<float> dq(size_t(span.q_len * D)), dk(size_t(span.k_len * D)), dv(size_t(span.k_len * D));
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        dq.assign(dq.size(), 0);
        for (int64_t i = 0; i < span.q_len; ++i) {
          const int64_t qi = span.q_begin + i;
          const T *q = row(op.q, qi, h), *y = row(op.y, qi, h), *dy = row(op.dy, qi, h);
          float delta = 0;
          for (int64_t d = 0; d < D; ++d) delta += to_float(y[d]) * to_float(dy[d]);
          for (int64_t j = 0; j < span.k_len; ++j) {
            if (!visible(s, span, i, j)) continue;
            const T *k = row(op.k, span.k_begin + j, g), *v = row(op.v, span.k_begin + j, g);
            float dot = 0, dp = 0;
            for (int64_t d = 0; d < D; ++d) {
              dot += to_float(q[d]) * to_float(k[d]);
              dp += to_float(dy[d]) * to_float(v[d]);
            }
            const float p = std::exp(dot * s.scale - op.lse.as<float>()[qi * s.heads + h]);
            const float ds = p * (dp - delta) * s.scale;
            for (int64_t d = 0; d < D; ++d) {
              dv[size_t(j * D + d)] += p * to_float(dy[d]);
              dk[size_t(j * D + d)] += ds * to_float(q[d]);
              dq[size_t(i * D + d)] += ds * to_float(k[d]);
            }
          }
        }
        for (int64_t i = 0; i < span.q_len; ++i)
          for (int64_t d = 0; d < D; ++d) row(op.dq, span.q_begin + i, h)[d] = from_float<T>(dq[size_t(i * D + d)]);
      }
      for (int64_t j = 0; j < span.k_len; ++j)
        for (int64_t d = 0; d < D; ++d) {
          row(op.dk, span.k_begin + j, g)[d] = from_float<T>(dk[size_t(j * D + d)]);
          row(op.dv, span.k_begin + j, g)[d] = from_float<T>(dv[size_t(j * D + d)]);
        }
    });
  });
}

}  // namespace athanor
