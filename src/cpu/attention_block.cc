// Spans, masks and block GEMMs of attention.
#include "cpu/attention_block.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "cpu/simd.h"
#include "cpu/vec.h"

namespace athanor {
namespace {

constexpr int64_t kZeroGrain = 64;  // rows per chunk of work

RowRange rows_of(const Span& s, SpanSide side) {
  return side == SpanSide::queries ? RowRange{s.q_begin, s.q_len} : RowRange{s.k_begin, s.k_len};
}

// Row ranges of the spans on one side, without empty spans; q_len = 0 makes a span empty on both sides.
std::vector<RowRange> ranges(const Tensor& spans, SpanSide side) {
  std::vector<RowRange> all;
  const Span* table = static_cast<const Span*>(spans.data);
  for (int64_t s = 0; s < spans.rows(); ++s)
    if (table[s].q_len > 0 && rows_of(table[s], side).size > 0) all.push_back(rows_of(table[s], side));
  std::sort(all.begin(), all.end(), [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  return all;
}

void check_disjoint(const char* op, const std::vector<RowRange>& sorted, const char* side) {
  for (size_t i = 1; i < sorted.size(); ++i)
    CHECK(sorted[i - 1].begin + sorted[i - 1].size <= sorted[i].begin, op, ": spans share ", side, " row ",
          sorted[i].begin);
}

struct CapScores {
  template <int L>
  static ATHANOR_INLINE void run(float* s, float* slope, int64_t n, float scale, float cap) {
    const float factor = scale / cap;
    for (int64_t c = 0; c < n; c += L) {
      const size_t bytes = size_t(n - c < L ? n - c : L) * sizeof(float);
      simd::Float<L> x{}, value, derivative;
      std::memcpy(&x, s + c, bytes);
      simd::tanh<L>(x * factor, value, derivative);
      value *= cap, derivative *= scale;
      std::memcpy(s + c, &value, bytes);
      if (slope) std::memcpy(slope + c, &derivative, bytes);
    }
  }
};

}  // namespace

void cap_scores(float* s, float* slope, int64_t rows, int64_t cols, int64_t stride, const AttentionShape& shape) {
  for (int64_t r = 0; r < rows; ++r)
    simd::dispatch<CapScores>(s + r * stride, slope ? slope + r * stride : nullptr, cols, shape.scale, shape.softcap);
}

void mask_scores(float* scores, int64_t stride, const Span& s, const AttentionShape& shape, int64_t q, int64_t lanes,
                 KeyRange keys) {
  constexpr float kHidden = -std::numeric_limits<float>::infinity();
  const int64_t lane = int64_t(s.q_pos) + q;  // position of lane 0
  const auto row = [&](int64_t key) { return scores + (key - keys.first) * stride; };
  // A key is visible from the lane at its own position on, up to unseen_from().
  for (int64_t key = std::max(keys.first, lane + 1 - s.k_pos); key < keys.last; ++key)
    std::fill_n(row(key), std::min(int64_t(s.k_pos) + key - lane, lanes), kHidden);
  if (shape.window == 0 && shape.sparse.group == 0) return;
  for (int64_t key = keys.first; key < keys.last; ++key)
    for (int64_t i = std::max<int64_t>(unseen_from(shape, int64_t(s.k_pos) + key) - lane, 0); i < lanes; ++i)
      row(key)[i] = kHidden;
}

SpanBlocks span_blocks(const Tensor& table, SpanSide side, int64_t rows_per_block) {
  SpanBlocks blocks{{}, {0}, rows_per_block, side};
  const Span* spans = static_cast<const Span*>(table.data);
  for (int64_t s = 0; s < table.rows(); ++s) {
    if (spans[s].q_len <= 0 || rows_of(spans[s], side).size <= 0) continue;
    blocks.spans.push_back(spans[s]);
    blocks.before.push_back(blocks.before.back() + div_ceil(rows_of(spans[s], side).size, rows_per_block));
  }
  return blocks;
}

SpanBlocks::Block SpanBlocks::at(int64_t block) const {
  const size_t s = size_t(std::upper_bound(before.begin(), before.end(), block) - before.begin()) - 1;
  const int64_t first = (block - before[s]) * rows_per_block;
  return {spans[s], first, std::min(rows_per_block, rows_of(spans[s], side).size - first)};
}

void check_spans(const char* op, const Tensor& spans, int64_t query_rows, int64_t key_rows, bool keys_written) {
  const Span* table = static_cast<const Span*>(spans.data);
  for (int64_t i = 0; i < spans.rows(); ++i) {
    const Span& s = table[i];
    if (s.q_len == 0) continue;
    CHECK(s.q_len > 0 && s.k_len >= 0 && s.q_begin >= 0 && s.k_begin >= 0 &&
              int64_t(s.q_begin) + s.q_len <= query_rows && int64_t(s.k_begin) + s.k_len <= key_rows,
          op, ": span ", i, " has queries ", s.q_begin, "+", s.q_len, " of ", query_rows, " and keys ", s.k_begin, "+",
          s.k_len, " of ", key_rows);
  }
  check_disjoint(op, ranges(spans, SpanSide::queries), "query");
  if (keys_written) check_disjoint(op, ranges(spans, SpanSide::keys), "key");
}

std::vector<RowRange> uncovered_rows(const Tensor& spans, SpanSide side, int64_t rows) {
  std::vector<RowRange> gaps;
  int64_t done = 0;
  for (const RowRange& r : ranges(spans, side)) {
    if (r.begin > done) gaps.push_back({done, r.begin - done});
    done = std::max(done, r.begin + r.size);
  }
  if (rows > done) gaps.push_back({done, rows - done});
  return gaps;
}

void zero_rows(const Tensor& t, const std::vector<RowRange>& gaps, ThreadPool& pool) {
  const size_t bytes = size_t(t.cols()) * size_of(t.dtype);
  for (const RowRange& gap : gaps)
    pool.parallel_ranges(gap.size, kZeroGrain, [&](int64_t begin, int64_t end) {
      for (int64_t r = gap.begin + begin; r < gap.begin + end; ++r) std::memset(t.at(r * t.stride()), 0, bytes);
    });
}

void multiply(const Kernels& kern, const BlockGemm& p) {
  const Kernels::MicroFn* micros = kern.micros(false, p.pairs);
  const int64_t mr = kern.max_rows(p.pairs);
  Micro m{};
  m.a_stride = p.a_stride, m.b_stride = p.b_stride ? p.b_stride : kern.nr, m.c_stride = p.c_stride, m.k = p.k,
  m.add = p.add;
  for (int64_t j = 0; j < p.cols; j += kern.nr) {
    m.b = m.ahead = p.b + j / kern.nr * p.b_panel;
    m.next = reinterpret_cast<const char*>(m.b);
    m.n = std::min<int64_t>(kern.nr, p.cols - j);
    for (int64_t i = 0; i < p.rows; i += mr) {
      m.a = p.a + i * p.a_stride;
      m.c = p.c + i * p.c_stride + j;
      micros[std::min(mr, p.rows - i) - 1](m);
    }
  }
}

namespace {
Source source_of(const Tensor& t) { return {t.data, t.stride(), t.dtype, false}; }
const float* in_place(const HeadRows& x) { return static_cast<const float*>(x.t.at(x.row * x.t.stride() + x.col)); }
}  // namespace

Rows rows_as_units(const Kernels& kern, const HeadRows& x, float* buffer, bool pairs) {
  if (pairs) return {in_place(x), x.t.stride() / 2};
  if (x.t.dtype == DType::f32) return {in_place(x), x.t.stride()};
  kern.pack_rows(buffer, x.cols, source_of(x.t), x.row, x.rows, x.col, x.cols, false);
  return {buffer, x.cols};
}

void rows_as_panels(const Kernels& kern, const HeadRows& x, float* dst, bool pairs) {
  kern.pack_columns(dst, units_of(x.rows, pairs) * kern.nr, kern.nr, source_of(x.t), x.row, x.rows, x.col, x.cols,
                    pairs);
}

void keys_transposed(const Kernels& kern, const HeadRows& x, const Rows& units, float* buffer, float* dst, bool pairs) {
  const int64_t stride = transposed_stride(pairs);
  if (!pairs) return kern.transpose(dst, stride, units.data, units.stride, x.rows, x.cols);
  const int64_t panel = units_of(x.rows, pairs) * kern.nr;
  rows_as_panels(kern, x, buffer, pairs);
  for (int64_t j = 0; j < x.cols; j += kern.nr, buffer += panel)
    kern.transpose(dst + j * stride, stride, buffer, kern.nr, panel / kern.nr, std::min<int64_t>(kern.nr, x.cols - j));
}

void rows_as_lanes(const Kernels& kern, const HeadRows& x, float* dst, bool pairs) {
  for (int64_t i = 0; i < x.rows; i += kern.nr, dst += units_of(x.cols, pairs) * kern.nr)
    kern.pack_transposed(dst, source_of(x.t), x.row + i, std::min<int64_t>(kern.nr, x.rows - i), x.col, x.cols, pairs);
}

namespace {

template <class T>
ATHANOR_CLONES void store_scaled(T* dst, const float* src, float factor, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) dst[i] = from_float<T>(src[i] * factor);
}

}  // namespace

void store_rows(const HeadRows& x, const float* from, int64_t stride, const float* factor) {
  by_float(x.t.dtype, [&]<class T>() {
    T* dst = x.t.as<T>() + x.row * x.t.stride() + x.col;
    for (int64_t i = 0; i < x.rows; ++i)
      store_scaled(dst + i * x.t.stride(), from + i * stride, factor ? factor[i] : 1.0f, x.cols);
  });
}

void store_transposed(const Kernels& kern, const HeadRows& to, const float* x, const float* factor, float* buffer) {
  const int64_t stride = round_up<int64_t>(to.cols, kern.nr);
  kern.transpose(buffer, stride, x, kern.nr, to.cols, to.rows);
  store_rows(to, buffer, stride, factor);
}

}  // namespace athanor
