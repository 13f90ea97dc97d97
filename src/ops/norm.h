// RMSNorm and LayerNorm of the residual stream, and RMSNorm of queries and keys. Residual additions are epilogues of
// the preceding GEMM (Epilogue::add). An optional output `amax`, here and in ops/mlp.h and ops/attention.h, receives
// the amax of the op's output as stored: 0 for an empty output, NaN if any element is NaN. Quantize then need not
// compute it (Quantize::amax).
#pragma once
#include "ops/op.h"

namespace athanor {

enum class NormKind : uint8_t { rms, layer };

// rms:   y = h * rstd * w,               rstd = 1/sqrt(mean(h^2) + eps)  [Zhang & Sennrich 2019, eq. 4]
// layer: y = (h - mean) * rstd * w + b,  rstd = 1/sqrt(var(h) + eps)     [Ba et al. 2016, eq. 4]
struct NormFwd {
  NormKind kind;
  Tensor y;           // [N, C]
  Tensor mean, rstd;  // [N] f32; mean absent for rms
  Tensor h;           // [N, C]
  Tensor w, b;        // [C]; b absent for rms
  float eps;
  Tensor amax = {};  // optional [1] f32: amax of y
  static constexpr const char* kName = "norm_fwd";
  auto fields() {
    return fields_of(Field::out("y", y), Field::out("mean", mean), Field::out("rstd", rstd), Field::in("h", h),
                     Field::in("w", w), Field::in("b", b), Field::out("amax", amax));
  }
  void check() const {
    const Shape row{h.cols()}, col{h.rows()};
    Expect e{kName};
    e.float_matrix("h", h).is("rstd", rstd, DType::f32, col);
    e.is("y", y, h.dtype, h.shape);
    e.floating("w", w).is("w", w, w.dtype, row);
    e.that((kind == NormKind::layer) == (bool(b) && bool(mean)), "b and mean exactly for layer norm");
    if (b) e.is("b", b, w.dtype, row).is("mean", mean, DType::f32, col);
    e.amax("amax", amax);
  }
  Cost cost() const { return {7.0 * double(h.numel()), traffic(*this)}; }
};

// Recomputes y from the stored h and statistics, to the same bits as NormFwd (selective recomputation).
struct NormApply {
  NormKind kind;
  Tensor y;           // [N, C]
  Tensor h;           // [N, C]
  Tensor mean, rstd;  // [N] f32; mean absent for rms
  Tensor w, b;        // [C]
  static constexpr const char* kName = "norm_apply";
  auto fields() {
    return fields_of(Field::out("y", y), Field::in("h", h), Field::in("mean", mean), Field::in("rstd", rstd),
                     Field::in("w", w), Field::in("b", b));
  }
  void check() const {
    const Shape row{h.cols()}, col{h.rows()};
    Expect e{kName};
    e.floating("h", h).contiguous("h", h).is("y", y, h.dtype, h.shape).is("rstd", rstd, DType::f32, col);
    e.floating("w", w).is("w", w, w.dtype, row);
    e.that((kind == NormKind::layer) == (bool(b) && bool(mean)), "b and mean exactly for layer norm");
    if (b) e.is("b", b, w.dtype, row).is("mean", mean, DType::f32, col);
  }
  Cost cost() const { return {3.0 * double(h.numel()), traffic(*this)}; }
};

// dh: in = gradient of h through the residual stream; out = that plus the gradient through the norm. dw and db
// accumulate in a fixed order; the sums of one launch are in f32.
struct NormBwd {
  NormKind kind;
  Tensor dh;          // [N, C]
  Tensor dw, db;      // [C] f32 or bf16; db absent for rms
  Tensor dy, h;       // [N, C]
  Tensor mean, rstd;  // [N] f32
  Tensor w;           // [C]
  Tensor amax = {};   // optional [1] f32: amax of dh
  static constexpr const char* kName = "norm_bwd";
  auto fields() {
    return fields_of(Field::inout("dh", dh), Field::inout("dw", dw), Field::inout("db", db), Field::in("dy", dy),
                     Field::in("h", h), Field::in("mean", mean), Field::in("rstd", rstd), Field::in("w", w),
                     Field::out("amax", amax));
  }
  void check() const {
    const Shape row{h.cols()}, col{h.rows()};
    Expect e{kName};
    e.floating("h", h).contiguous("h", h).is("dh", dh, h.dtype, h.shape).is("dy", dy, h.dtype, h.shape);
    e.gradient("dw", dw, row).floating("w", w).is("w", w, w.dtype, row).is("rstd", rstd, DType::f32, col);
    e.that((kind == NormKind::layer) == (bool(db) && bool(mean)), "db and mean exactly for layer norm");
    if (db) e.is("db", db, dw.dtype, row).is("mean", mean, DType::f32, col);
    e.amax("amax", amax);
  }
  Cost cost() const { return {12.0 * double(h.numel()), traffic(*this)}; }
};

// Per-head RMSNorm of q and k in packed qkv [q heads | k heads | v heads]; v is copied (Qwen3's QK-norm). If each of
// `parts` ranks has a part of every head, `sums` are those of QkNormSums, summed over these ranks.
struct QkNormFwd {
  Tensor y;       // [N, (H + 2K) D]
  Tensor rstd;    // [N, H + K] f32
  Tensor x;       // [N, (H + 2K) D]
  Tensor wq, wk;  // [D]
  int64_t heads, kv_heads;
  float eps;
  Tensor sums = {};   // [N, H + K] f32: sums of x^2 over whole heads; absent: this rank has whole heads
  int64_t parts = 1;  // equal parts of a whole head
  static constexpr const char* kName = "qk_norm_fwd";
  auto fields() {
    return fields_of(Field::out("y", y), Field::out("rstd", rstd), Field::in("x", x), Field::in("wq", wq),
                     Field::in("wk", wk), Field::in("sums", sums));
  }
  void check() const {
    const int64_t d = wq.shape[0];
    Expect e{kName};
    e.floating("x", x)
        .contiguous("x", x)
        .shape("x", x, {x.rows(), (heads + 2 * kv_heads) * d})
        .is("y", y, x.dtype, x.shape);
    e.is("rstd", rstd, DType::f32, {x.rows(), heads + kv_heads});
    e.floating("wq", wq).is("wq", wq, wq.dtype, {d}).is("wk", wk, wq.dtype, {d});
    e.that(parts >= 1 && (sums || parts == 1), "sums", "sums, since there are several parts");
    if (sums) e.is("sums", sums, DType::f32, rstd.shape);
  }
  Cost cost() const { return {4.0 * double(x.numel()), traffic(*this)}; }
};

struct QkNormBwd {
  Tensor dx;        // [N, (H + 2K) D]
  Tensor dwq, dwk;  // [D] f32 or bf16, accumulate
  Tensor dy, x;     // [N, (H + 2K) D]
  Tensor rstd;      // [N, H + K] f32
  Tensor wq, wk;    // [D]
  int64_t heads, kv_heads;
  Tensor sums = {};  // as in QkNormFwd, of dy w x
  int64_t parts = 1;
  static constexpr const char* kName = "qk_norm_bwd";
  auto fields() {
    return fields_of(Field::out("dx", dx), Field::inout("dwq", dwq), Field::inout("dwk", dwk), Field::in("dy", dy),
                     Field::in("x", x), Field::in("rstd", rstd), Field::in("wq", wq), Field::in("wk", wk),
                     Field::in("sums", sums));
  }
  void check() const {
    const int64_t d = wq.shape[0];
    Expect e{kName};
    e.floating("x", x).is("x", x, x.dtype, {x.rows(), (heads + 2 * kv_heads) * d}).is("dy", dy, x.dtype, x.shape);
    e.is("dx", dx, x.dtype, x.shape).gradient("dwq", dwq, {d}).is("dwk", dwk, dwq.dtype, {d});
    e.is("rstd", rstd, DType::f32, {x.rows(), heads + kv_heads});
    e.floating("wq", wq).is("wq", wq, wq.dtype, {d}).is("wk", wk, wq.dtype, {d});
    e.that(parts >= 1 && (sums || parts == 1), "sums", "sums, since there are several parts");
    if (sums) e.is("sums", sums, DType::f32, rstd.shape);
  }
  Cost cost() const { return {8.0 * double(x.numel()), traffic(*this)}; }
};

// Sums over this rank's part of each head of q and k: of x^2 for QkNormFwd or, with dy, of dy w x for QkNormBwd.
struct QkNormSums {
  Tensor sums;    // [N, H + K] f32
  Tensor dy, x;   // [N, (H + 2K) D]; dy absent for QkNormFwd
  Tensor wq, wk;  // [D]; their values are read with dy only
  int64_t heads, kv_heads;
  static constexpr const char* kName = "qk_norm_sums";
  auto fields() {
    return fields_of(Field::out("sums", sums), Field::in("dy", dy), Field::in("x", x), Field::in("wq", wq),
                     Field::in("wk", wk));
  }
  void check() const {
    const int64_t d = wq.shape[0];
    Expect e{kName};
    e.floating("x", x).is("x", x, x.dtype, {x.rows(), (heads + 2 * kv_heads) * d});
    if (dy) e.is("dy", dy, x.dtype, x.shape);
    e.is("sums", sums, DType::f32, {x.rows(), heads + kv_heads});
    e.floating("wq", wq).is("wq", wq, wq.dtype, {d}).is("wk", wk, wq.dtype, {d});
  }
  Cost cost() const { return {3.0 * double(x.numel()), traffic(*this)}; }
};

}  // namespace athanor
