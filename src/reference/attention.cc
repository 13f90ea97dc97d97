// Attention by its definition, one query row at a time, and rotary position embedding.
#include <cmath>
#include <limits>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

// Calls fn(span, head, query row) for each query of each span, after checking that the span is inside the tensors.
template <class Fn>
void each_query(const Tensor& spans, int64_t heads, int64_t queries, int64_t keys, Fn&& fn) {
  for (int64_t s = 0; s < spans.rows(); ++s) {
    const int32_t* row = spans.as<int32_t>() + s * spans.stride();
    const Span span{row[0], row[1], row[2], row[3], row[4], row[5]};
    CHECK(span.q_begin >= 0 && span.q_len >= 0 && span.q_begin + int64_t(span.q_len) <= queries,
          "attention.spans: row ", s, " has queries ", span.q_begin, " + ", span.q_len, " of ", queries);
    CHECK(span.k_begin >= 0 && span.k_len >= 0 && span.k_begin + int64_t(span.k_len) <= keys, "attention.spans: row ",
          s, " has keys ", span.k_begin, " + ", span.k_len, " of ", keys);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < span.q_len; ++i) fn(span, h, i);
  }
}

// True if key j of the span is visible to its query i.
bool visible(const Span& s, int64_t i, int64_t j, const AttentionShape& shape) {
  const int64_t query = s.q_pos + i, key = s.k_pos + j;
  return key <= query && query < unseen_from(shape, key);
}

double dot(const Values& a, int64_t a_row, int64_t a_col, const Values& b, int64_t b_row, int64_t b_col, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += a(a_row, a_col + c) * b(b_row, b_col + c);
  return sum;
}

// Score of q·k, and its derivative by q·k.
struct Score {
  double y, slope;
};
Score score_of(double qk, const AttentionShape& a) {
  const double x = double(a.scale) * qk;
  if (a.softcap == 0) return {x, double(a.scale)};
  const double t = std::tanh(x / double(a.softcap));
  return {double(a.softcap) * t, double(a.scale) * (1 - t * t)};
}

}  // namespace

// y_i = sum_j p_ij v_j,  p_ij = exp(s_ij - lse_i),  lse_i = log sum_j exp(s_ij),  s_ij = cap(scale q_i·k_j)
// over the visible j. [Vaswani et al. 2017, eq. 1]
void ReferenceOps::run(const AttentionFwd& op, void*) {
  const AttentionShape& a = op.shape;
  const int64_t dim = a.head_dim, group = a.heads / a.kv_heads;
  const Values q = load(op.q), k = load(op.k), v = load(op.v);
  Values y = zeros_like(op.y), lse = zeros_like(op.lse);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  for (double& l : lse.v) l = kNone;
  Values top = op.top ? load(op.top) : Values(1, a.heads);  // [H]
  each_query(op.spans, a.heads, q.rows, k.rows, [&](const Span& s, int64_t h, int64_t i) {
    const int64_t row = s.q_begin + i, qc = h * dim, kc = h / group * dim;
    std::vector<double> score(size_t(s.k_len), kNone);
    double most = kNone, sum = 0;
    for (int64_t j = 0; j < s.k_len; ++j)
      if (visible(s, i, j, a)) {
        score[size_t(j)] = score_of(dot(q, row, qc, k, s.k_begin + j, kc, dim), a).y;
        most = std::max(most, score[size_t(j)]);
      }
    if (most == kNone) return;
    top[h] = std::max(top[h], most);
    for (double x : score) sum += std::exp(x - most);
    lse(row, h) = most + std::log(sum);
    for (int64_t j = 0; j < s.k_len; ++j)
      for (int64_t c = 0; c < dim; ++c)
        y(row, qc + c) += std::exp(score[size_t(j)] - lse(row, h)) * v(s.k_begin + j, kc + c);
  });
  store(op.y, y);
  store(op.lse, lse);
  if (op.top) store(op.top, top);
  store_amax(op.amax, op.y);
}

// dv_j = sum_i p_ij dy_i,  ds_ij = p_ij (dy_i·v_j - dy_i·y_i),  dq_i = sum_j c_ij ds_ij k_j,
// dk_j = sum_i c_ij ds_ij q_i, with c the derivative of the score by q·k, and p from the stored lse. [Dao et al. 2022,
// app. B.4]
void ReferenceOps::run(const AttentionBwd& op, void*) {
  if (op.cos_sin) return in_parts(op, [&](const auto& part) { run(part, nullptr); });
  const AttentionShape& a = op.shape;
  const int64_t dim = a.head_dim, group = a.heads / a.kv_heads;
  const Values dy = load(op.dy), y = load(op.y), lse = load(op.lse), q = load(op.q), k = load(op.k), v = load(op.v);
  Values dq = zeros_like(op.dq), dk = zeros_like(op.dk), dv = zeros_like(op.dv);
  each_query(op.spans, a.heads, q.rows, k.rows, [&](const Span& s, int64_t h, int64_t i) {
    const int64_t row = s.q_begin + i, qc = h * dim, kc = h / group * dim;
    const double dyy = dot(dy, row, qc, y, row, qc, dim);
    for (int64_t j = 0; j < s.k_len; ++j) {
      if (!visible(s, i, j, a)) continue;
      const int64_t key = s.k_begin + j;
      const Score score = score_of(dot(q, row, qc, k, key, kc, dim), a);
      const double p = std::exp(score.y - lse(row, h));
      const double ds = score.slope * p * (dot(dy, row, qc, v, key, kc, dim) - dyy);
      for (int64_t c = 0; c < dim; ++c) {
        dv(key, kc + c) += p * dy(row, qc + c);
        dq(row, qc + c) += ds * k(key, kc + c);
        dk(key, kc + c) += ds * q(row, qc + c);
      }
    }
  });
  store(op.dq, dq);
  store(op.dk, dk);
  store(op.dv, dv);
}

void ReferenceOps::run(const MergeAttention& op, void*) {
  const Values part = load(op.part), part_lse = load(op.part_lse);
  Values y = load(op.y), lse = load(op.lse);
  const int64_t heads = lse.cols, dim = y.cols / heads;
  for (int64_t i = 0; i < y.rows; ++i)
    for (int64_t h = 0; h < heads; ++h) {
      const double most = std::max(lse(i, h), part_lse(i, h));
      if (most == -std::numeric_limits<double>::infinity()) continue;
      const double both = most + std::log(std::exp(lse(i, h) - most) + std::exp(part_lse(i, h) - most));
      for (int64_t c = h * dim; c < (h + 1) * dim; ++c)
        y(i, c) = y(i, c) * std::exp(lse(i, h) - both) + part(i, c) * std::exp(part_lse(i, h) - both);
      lse(i, h) = both;
    }
  store(op.y, y);
  store(op.lse, lse);
}

void ReferenceOps::run(const AttentionSinks& op, void*) {
  const Values sinks = load(op.sinks);
  Values y = load(op.y), lse = load(op.lse);
  const int64_t heads = lse.cols, dim = y.cols / heads;
  for (int64_t i = 0; i < y.rows; ++i)
    for (int64_t h = 0; h < heads; ++h) {
      const double most = std::max(lse(i, h), sinks[h]);
      const double both = most + std::log(std::exp(lse(i, h) - most) + std::exp(sinks[h] - most));
      for (int64_t c = h * dim; c < (h + 1) * dim; ++c) y(i, c) *= std::exp(lse(i, h) - both);
      lse(i, h) = both;
    }
  store(op.y, y);
  store(op.lse, lse);
}

void ReferenceOps::run(const AttentionSinksBwd& op, void*) {
  const Values dy = load(op.dy), y = load(op.y), lse = load(op.lse), sinks = load(op.sinks);
  Values dsinks = load(op.dsinks);
  const int64_t heads = lse.cols, dim = y.cols / heads;
  for (int64_t i = 0; i < y.rows; ++i)
    for (int64_t h = 0; h < heads; ++h)
      dsinks[h] -= std::exp(sinks[h] - lse(i, h)) * dot(dy, i, h * dim, y, i, h * dim, dim);
  store(op.dsinks, dsinks);
}

void ReferenceOps::run(const Rope& op, void*) {
  const int64_t half = op.head_dim / 2, table_rows = op.cos_sin.rows();
  const float* cos_sin = op.cos_sin.as<float>();
  Values x = load(op.x);
  for (int64_t i = 0; i < x.rows; ++i) {
    const int32_t p = op.positions.as<int32_t>()[i];
    CHECK(p >= 0 && p < table_rows, "rope.positions: position ", p, " of a table of ", table_rows);
    for (int64_t h = 0; h < op.heads; ++h)
      for (int64_t c = 0; c < half; ++c) {
        const double cosine = cos_sin[p * op.head_dim + c];
        const double sine = cos_sin[p * op.head_dim + half + c] * (op.inverse ? -1.0 : 1.0);
        double &a = x(i, h * op.head_dim + c), &b = x(i, h * op.head_dim + half + c);
        const double rotated = a * cosine - b * sine;
        b = b * cosine + a * sine;
        a = rotated;
      }
  }
  store(op.x, x);
}

}  // namespace athanor
