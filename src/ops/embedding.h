// Token and learned position embeddings; patches of images; gathering and scattering of rows.
#pragma once
#include "base/host_device.h"
#include "base/image_limits.h"
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
  auto fields() {
    return fields_of(Field::out("y", y), Field::in("tokens", tokens), Field::in("positions", positions),
                     Field::in("wte", wte), Field::in("wpe", wpe));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("y", y).is("tokens", tokens, DType::i32, {y.rows()}).is("wte", wte, y.dtype, {wte.rows(), y.cols()});
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
  auto fields() {
    return fields_of(Field::inout("dwte", dwte), Field::inout("dwpe", dwpe), Field::in("dy", dy),
                     Field::in("tokens", tokens), Field::in("positions", positions));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("dy", dy)
        .is("tokens", tokens, DType::i32, {dy.rows()})
        .gradient("dwte", dwte, {dwte.rows(), dy.cols()});
    if (dwpe)
      e.is("dwpe", dwpe, dwte.dtype, {dwpe.rows(), dy.cols()}).is("positions", positions, DType::i32, {dy.rows()});
    e.that(part.count <= dwte.rows(), "dwte", "the rows of the part");
  }
  Cost cost() const { return {double(dy.numel()) * (dwpe ? 2 : 1), (dwpe ? 5.0 : 3.0) * double(dy.bytes())}; }
};

// Images cut into square patches [Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", sec. 3.1]. height and width
// are multiples of `patch`.
struct PatchShape {
  int64_t channels = 0, height = 0, width = 0, patch = 0;
  int64_t pixels() const { return channels * height * width; }                      // of an image
  int64_t patches() const { return (height / patch) * (width / patch); }            // of an image
  ATHANOR_HOST_DEVICE int64_t columns() const { return channels * patch * patch; }  // of a patch
  ATHANOR_HOST_DEVICE int64_t channel(int64_t column) const { return column / (patch * patch); }
  // Place in an image [channels, height, width] of a column of patch `i`; columns are in the order [channels, patch,
  // patch], as in the weights of a convolution.
  ATHANOR_HOST_DEVICE int64_t pixel(int64_t i, int64_t column) const {
    const int64_t across = width / patch, in_channel = column % (patch * patch);
    const int64_t y = i / across * patch + in_channel / patch, x = i % across * patch + in_channel % patch;
    return (channel(column) * height + y) * width + x;
  }
};

// Each image's rows: zeros for its class token, then its patches row by row: y = scale[channel] pixel + shift[channel].
struct Patchify {
  Tensor y;       // [images (1 + patches), columns]
  Tensor pixels;  // [images, channels height width] u8
  PatchShape shape;
  std::array<float, kMaxImageChannels> scale = {}, shift = {};
  static constexpr const char* kName = "patchify";
  auto fields() { return fields_of(Field::out("y", y), Field::in("pixels", pixels)); }
  void check() const {
    Expect e{kName};
    const PatchShape& s = shape;
    e.that(s.patch > 0 && s.height % s.patch == 0 && s.width % s.patch == 0, "sides that are multiples of the patch");
    e.that(s.channels > 0 && s.channels <= kMaxImageChannels, "1 to 4 channels");
    e.floating("y", y)
        .shape("y", y, {pixels.rows() * (1 + s.patches()), s.columns()})
        .contiguous("y", y)
        .is("pixels", pixels, DType::u8, {pixels.rows(), s.pixels()});
  }
  Cost cost() const { return {2.0 * double(pixels.numel()), traffic(*this)}; }
};

// y[i] = x[rows[i]]
struct GatherRows {
  Tensor y;     // [n, C], rows may be strided
  Tensor x;     // [N, C], rows may be strided
  Tensor rows;  // [n] i32
  static constexpr const char* kName = "gather_rows";
  auto fields() { return fields_of(Field::out("y", y), Field::in("x", x), Field::in("rows", rows)); }
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
  auto fields() { return fields_of(Field::inout("y", y), Field::in("x", x), Field::in("rows", rows)); }
  void check() const {
    Expect{kName}
        .matrix("y", y)
        .view("x", x, y.dtype, {rows.shape[0], y.cols()})
        .is("rows", rows, DType::i32, {rows.shape[0]});
  }
  Cost cost() const { return {0, 2.0 * double(x.bytes())}; }
};

}  // namespace athanor
