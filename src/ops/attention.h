// Causal attention over sequences described by spans: packed documents, sliding windows, key/value caches and query/key
// offsets are all rows of one small table. Never materializes the T x T scores [Dao et al. 2022].
#pragma once
#include <algorithm>

#include "base/sparse_pattern.h"
#include "ops/op.h"

namespace athanor {

// One row of `spans` per sequence, int32. Query i of the sequence has position q_pos + i, key j has k_pos + j; key j is
// visible to query i when k_position <= q_position < unseen_from(shape, k_position).
// Rows with q_len = 0 are empty, which lets the table have a fixed size.
struct Span {
  int32_t q_begin, q_len, k_begin, k_len, q_pos, k_pos;
};
constexpr int64_t kSpanWords = sizeof(Span) / sizeof(int32_t);

// Grouped-query geometry [Ainslie et al. 2023]: query head h reads key/value head h / (heads / kv_heads).
struct AttentionShape {
  int64_t heads, kv_heads, head_dim;
  int64_t window = 0;         // 0 = unlimited
  float scale = 0;            // factor of q·k, usually 1/sqrt(head_dim)
  float softcap = 0;          // scores are softcap * tanh(scale q·k / softcap) [Gemma 2, 2024]; 0 = no cap
  SparsePattern sparse = {};  // not with a window; positions are then at least 0
  // false: the spans let each query see all keys (q_pos of at least the last key's position); for cost() and for the
  // choice of kernels, since those that read no positions are causal.
  bool causal = true;
};

// Returns the position of the first query that no longer sees the key at position k, because of window or sparse
// pattern.
ATHANOR_HOST_DEVICE inline int64_t unseen_from(const AttentionShape& s, int64_t k) {
  return s.window ? k + s.window : seen_until(s.sparse, k);
}
// Returns the visible fraction of the query-key pairs of a span of `keys` keys, for cost(). seen: without a window or
// sparse pattern; 0.5 is causal, 1 stands for earlier keys, of which a window shows each query at most its length.
inline double visible_fraction(const AttentionShape& s, double seen, double keys) {
  if (keys < 1) return seen;
  if (s.window > 0) {
    const double w = std::min(double(s.window) / keys, 1.0);
    return w - (1 - seen) * w * w;
  }
  if (s.sparse.group == 0) return seen;
  const auto t = int64_t(keys);
  return seen * visible_pairs(s.sparse, t) / visible_pairs({}, t);
}
inline bool valid_pattern(const AttentionShape& s) {
  const SparsePattern& p = s.sparse;
  return p.group == 0 ? p.summary == 0 : s.window == 0 && p.summary >= 0 && p.summary < p.group;
}

// Mean number of keys that a query sees, for cost(). Documents count as whole sequences, as in MFU, since their lengths
// are data.
template <class Op>
double keys_seen(const Op& op) {
  const double keys = double(op.k.rows()) / double(std::max<int64_t>(op.sequences ? op.sequences : op.spans.rows(), 1));
  return keys * visible_fraction(op.shape, op.shape.causal ? op.seen : 1, keys);
}

// Checks the inputs common to AttentionFwd and AttentionBwd.
template <class Op>
void expect_inputs(Expect& e, const Op& op) {
  const AttentionShape& shape = op.shape;
  const int64_t qc = shape.heads * shape.head_dim, kc = shape.kv_heads * shape.head_dim;
  e.that(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0, "heads to be a multiple of kv_heads");
  e.floating("q", op.q)
      .shape("q", op.q, {op.q.rows(), qc})
      .view("k", op.k, op.q.dtype, {op.k.rows(), kc})
      .view("v", op.v, op.q.dtype, {op.k.rows(), kc});
  e.is("spans", op.spans, DType::i32, {op.spans.rows(), kSpanWords});
  e.that(shape.softcap >= 0, "a softcap of at least 0");
  e.that(valid_pattern(shape), "a window, or a sparse pattern with a summary shorter than its group");
}

// y = softmax(mask(cap(q k^T scale))) v per sequence and head, with cap of AttentionShape::softcap. Rows of y outside
// every span are written as zeros; a query that sees no key gives y = 0 and lse = -inf.
struct AttentionFwd {
  Tensor y;        // [Nq, H D]
  Tensor lse;      // [Nq, H] f32: natural log of the softmax denominator, with scale and softcap applied
  Tensor q, k, v;  // [Nq, H D], [Nk, K D], [Nk, K D]; rows may be strided
  Tensor spans;    // [S, 6] i32
  AttentionShape shape;
  // Optional [H] f32: becomes max(itself, the head's visible scores after scale and softcap). NaN scores are ignored.
  Tensor top = {};
  double seen = 0.5;      // for cost(): fraction of the query/key pairs of a sequence that are visible
  int64_t sequences = 0;  // for cost(): sequences that share the keys equally; 0: as many as rows of `spans`
  Tensor amax = {};       // optional [1] f32: amax of y; see ops/norm.h
  static constexpr const char* kName = "attention_fwd";
  auto fields() {
    return fields_of(Field::out("y", y), Field::out("lse", lse), Field::in("q", q), Field::in("k", k),
                     Field::in("v", v), Field::in("spans", spans), Field::inout("top", top), Field::out("amax", amax));
  }
  void check() const {
    Expect e{kName};
    expect_inputs(e, *this);
    e.is("y", y, q.dtype, q.shape).is("lse", lse, DType::f32, {q.rows(), shape.heads});
    if (top) e.is("top", top, DType::f32, {shape.heads});
    e.amax("amax", amax);
  }
  Cost cost() const { return {4.0 * keys_seen(*this) * double(q.numel()), traffic(*this)}; }
};

// Rows of dq, dk, dv outside every span are written as zeros. Spans must not share key rows (in forward they may).
// Deterministic. With `cos_sin`, RoPE was applied to q and k in forward, and dq and dk are the gradients of its inputs:
// in_parts() below defines it.
struct AttentionBwd {
  Tensor dq, dk, dv;  // like q, k, v; rows may be strided
  Tensor dy, y;       // [Nq, H D]
  Tensor lse;         // [Nq, H] f32
  Tensor q, k, v;     // as in forward
  Tensor spans;       // [S, 6] i32
  AttentionShape shape;
  Tensor cos_sin = {};    // [P, D] f32, as in Rope; if absent, dq and dk are the gradients of q and k themselves
  Tensor positions = {};  // with cos_sin only: [Nq] i32, each < P, of queries and keys, so Nk = Nq
  double seen = 0.5;      // as in forward
  int64_t sequences = 0;  // as in forward
  static constexpr const char* kName = "attention_bwd";
  auto fields() {
    return fields_of(Field::out("dq", dq), Field::out("dk", dk), Field::out("dv", dv), Field::in("dy", dy),
                     Field::in("y", y), Field::in("lse", lse), Field::in("q", q), Field::in("k", k), Field::in("v", v),
                     Field::in("spans", spans), Field::in("cos_sin", cos_sin), Field::in("positions", positions));
  }
  void check() const {
    Expect e{kName};
    expect_inputs(e, *this);
    e.view("dq", dq, q.dtype, q.shape).view("dk", dk, k.dtype, k.shape).view("dv", dv, v.dtype, v.shape);
    e.is("dy", dy, q.dtype, q.shape).is("y", y, q.dtype, q.shape).is("lse", lse, DType::f32, {q.rows(), shape.heads});
    e.that(bool(positions) == bool(cos_sin), "positions exactly with cos_sin");
    if (!cos_sin) return;
    e.is("cos_sin", cos_sin, DType::f32, {cos_sin.rows(), shape.head_dim})
        .is("positions", positions, DType::i32, {q.rows()})
        .that(k.rows() == q.rows() && shape.head_dim % 2 == 0, "positions",
              "as many keys as queries, an even head_dim");
  }
  Cost cost() const { return {10.0 * keys_seen(*this) * double(q.numel()), traffic(*this)}; }
};

// Merges attention over one set of keys (y, lse) with attention over another (part, part_lse): with e = log(exp(lse) +
// exp(part_lse)), y = y exp(lse - e) + part exp(part_lse - e) per query and head, then lse = e. [Liu et al. 2023, "Ring
// Attention with Blockwise Transformers", sec. 3] If both lse are -inf (no keys), y and lse are unchanged.
struct MergeAttention {
  Tensor y;         // [N, H D] f32
  Tensor lse;       // [N, H] f32
  Tensor part;      // [N, H D] float
  Tensor part_lse;  // [N, H] f32
  static constexpr const char* kName = "merge_attention";
  auto fields() {
    return fields_of(Field::inout("y", y), Field::inout("lse", lse), Field::in("part", part),
                     Field::in("part_lse", part_lse));
  }
  void check() const {
    Expect e{kName};
    e.floating("part", part).is("part", part, part.dtype, part.shape).is("y", y, DType::f32, part.shape);
    e.is("part_lse", part_lse, DType::f32, {part.rows(), part_lse.cols()}).is("lse", lse, DType::f32, part_lse.shape);
    e.that(part_lse.cols() > 0 && part.cols() % part_lse.cols() == 0, "heads of one size");
  }
  Cost cost() const { return {3.0 * double(y.numel()), traffic(*this)}; }
};

// Rotary position embedding in place [Su et al. 2021, eq. 34], halves layout (rotate_half): for each head
// (a, b) -> (a cos - b sin, b cos + a sin). `inverse` rotates by the negative angles, which is the gradient.
struct Rope {
  Tensor x;          // [N, heads D], rows may be strided
  Tensor cos_sin;    // [P, D] f32: cos of the D/2 angles, then sin
  Tensor positions;  // [N] i32, each < P
  int64_t heads, head_dim;
  bool inverse = false;
  static constexpr const char* kName = "rope";
  auto fields() {
    return fields_of(Field::inout("x", x), Field::in("cos_sin", cos_sin), Field::in("positions", positions));
  }
  void check() const {
    Expect e{kName};
    e.floating("x", x).shape("x", x, {x.rows(), heads * head_dim}).that(head_dim % 2 == 0, "an even head_dim");
    e.is("cos_sin", cos_sin, DType::f32, {cos_sin.rows(), head_dim}).is("positions", positions, DType::i32, {x.rows()});
  }
  Cost cost() const { return {3.0 * double(x.numel()), traffic(*this)}; }
};

// Defines AttentionBwd with `cos_sin`: run() gets the op without cos_sin, then inverse Rope on the rounded dq and dk;
// one Rope for both if the columns of dk follow those of dq.
template <class Run>
void in_parts(const AttentionBwd& op, Run&& run) {
  AttentionBwd plain = op;
  plain.cos_sin = plain.positions = {};
  run(plain);
  if (!op.cos_sin) return;
  const auto rotate_back = [&](Tensor x, int64_t heads) {
    x.shape.dim[1] = heads * op.shape.head_dim;
    run(Rope{.x = x,
             .cos_sin = op.cos_sin,
             .positions = op.positions,
             .heads = heads,
             .head_dim = op.shape.head_dim,
             .inverse = true});
  };
  if (op.dk.data == op.dq.at(op.dq.cols()) && op.dk.stride() == op.dq.stride())
    return rotate_back(op.dq, op.shape.heads + op.shape.kv_heads);
  rotate_back(op.dq, op.shape.heads);
  rotate_back(op.dk, op.shape.kv_heads);
}

}  // namespace athanor
