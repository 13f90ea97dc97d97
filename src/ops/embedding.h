// Token and learned position embeddings; gathering and scattering of rows.
#pragma once
#include "ops/op.h"
#include "ops/vocab_part.h"

namespace athanor {

// y[i] = wte[tokens[i]] (+ wpe[positions[i]]). With `part`, wte has only the rows of this vocabulary shard; other
// tokens give 0.
struct EmbeddingFwd {
  Tensor y;                  // [N, C]
  Tensor tokens, positions;  // [N] i32; positions only with wpe
  Tensor wte, wpe;           // [V, C], [P, C] optional
  VocabPart part = {};
  static constexpr const char* kName = "embedding_fwd";
  std::array<Field, 5> fields() {
    return {{{"y", Io::out, &y},
             {"tokens", Io::in, &tokens},
             {"positions", Io::in, &positions},
             {"wte", Io::in, &wte},
             {"wpe", Io::in, &wpe}}};
  }
  void check() const {
    Expect e{kName};
    e.floating("y", y)
        .matrix("y", y)
        .contiguous("y", y)
        .is("tokens", tokens, DType::i32, {y.rows()})
        .is("wte", wte, y.dtype, {wte.rows(), y.cols()});
    if (wpe) e.is("wpe", wpe, y.dtype, {wpe.rows(), y.cols()}).is("positions", positions, DType::i32, {y.rows()});
    e.that(part.count <= wte.rows(), "wte", "the rows of the part");
  }
  Cost cost() const { return {double(y.numel()), (wpe ? 3.0 : 2.0) * double(y.bytes())}; }
};

// dwte[tokens[i]] += dy[i], dwpe[positions[i]] += dy[i]; summed in order of i for any number of threads. With `part`,
// dwte has only the rows of this vocabulary shard; other tokens are ignored. Sums are in f32. A bf16 row is rounded
// when it is stored: once, or on a GPU twice if the rows of its token are not within one block of 16 sorted rows.
struct EmbeddingBwd {
  Tensor dwte, dwpe;         // [V, C], [P, C] f32 or bf16, accumulate; dwpe optional
  Tensor dy;                 // [N, C]
  Tensor tokens, positions;  // [N] i32
  VocabPart part = {};
  static constexpr const char* kName = "embedding_bwd";
  std::array<Field, 5> fields() {
    return {{{"dwte", Io::inout, &dwte},
             {"dwpe", Io::inout, &dwpe},
             {"dy", Io::in, &dy},
             {"tokens", Io::in, &tokens},
             {"positions", Io::in, &positions}}};
  }
  void check() const {
    Expect e{kName};
    e.floating("dy", dy)
        .matrix("dy", dy)
        .contiguous("dy", dy)
        .is("tokens", tokens, DType::i32, {dy.rows()})
        .gradient("dwte", dwte, {dwte.rows(), dy.cols()});
    if (dwpe)
      e.is("dwpe", dwpe, dwte.dtype, {dwpe.rows(), dy.cols()}).is("positions", positions, DType::i32, {dy.rows()});
    e.that(part.count <= dwte.rows(), "dwte", "the rows of the part");
  }
  Cost cost() const { return {double(dy.numel()) * (dwpe ? 2 : 1), (dwpe ? 5.0 : 3.0) * double(dy.bytes())}; }
};

// y[i] = x[rows[i]]
struct GatherRows {
  Tensor y;     // [n, C], rows may be strided
  Tensor x;     // [N, C], rows may be strided
  Tensor rows;  // [n] i32
  static constexpr const char* kName = "gather_rows";
  std::array<Field, 3> fields() { return {{{"y", Io::out, &y}, {"x", Io::in, &x}, {"rows", Io::in, &rows}}}; }
  void check() const {
    Expect{kName}
        .matrix("x", x)
        .view("y", y, x.dtype, {rows.shape[0], x.cols()})
        .is("rows", rows, DType::i32, {rows.shape[0]});
  }
  Cost cost() const { return {0, 2.0 * double(y.bytes())}; }
};

// y[rows[i]] = x[i]; rows are distinct, other rows of y are unchanged (key/value caches).
struct ScatterRows {
  Tensor y;     // [N, C], rows may be strided
  Tensor x;     // [n, C], rows may be strided
  Tensor rows;  // [n] i32
  static constexpr const char* kName = "scatter_rows";
  std::array<Field, 3> fields() { return {{{"y", Io::inout, &y}, {"x", Io::in, &x}, {"rows", Io::in, &rows}}}; }
  void check() const {
    Expect{kName}
        .matrix("y", y)
        .view("x", x, y.dtype, {rows.shape[0], y.cols()})
        .is("rows", rows, DType::i32, {rows.shape[0]});
  }
  Cost cost() const { return {0, 2.0 * double(x.bytes())}; }
};

}  // namespace athanor
