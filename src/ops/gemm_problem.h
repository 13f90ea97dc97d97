// Everything that the algorithm of a Gemm may depend on: sizes, strides, types, flags and address alignment. Ops with
// equal problems are computed alike, bit for bit.
#pragma once
#include <compare>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/quantize.h"
namespace athanor {

// How a library reads the scales of a factor of codes: one for all, one per row along the terms of the sums, per 128
// terms of a row, per square of 128; of 8 bits in tiles, per 32 terms (E8M0) or per 16 (E4M3); none: no codes. [cuBLAS
// manual, "Narrow precision data types usage"]
enum class ScaleLayout : uint8_t { none, matrix, rows, blocks, squares, tiles32, tiles16 };
constexpr bool in_tiles(ScaleLayout s) { return s == ScaleLayout::tiles32 || s == ScaleLayout::tiles16; }

struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  int64_t stride_d = 0, stride_a = 0, stride_b = 0;  // elements between rows
  DType d{}, a{}, b{};
  bool ta = false, tb = false, bias = false, accumulate = false, tf32 = false;
  Epilogue epilogue = Epilogue::none;
  int align_d = 0, align_a = 0, align_b = 0;  // bytes; kMostAlign at most. d: also of what is read or written with it
  ScaleLayout scales_a{}, scales_b{};
  bool fast = false;                  // ScaledGemm::fast
  int64_t rotated = 0, head_dim = 0;  // Epilogue::rope only

  auto operator<=>(const GemmProblem&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

// No library requires more, so buffers at any offset of an arena have equal problems.
constexpr int kMostAlign = 16;

GemmProblem problem_of(const Gemm& op);

// As text, also the problem's key in a file of choices:
// "bf16[64, 96] = bf16[64, 32] bf16[96, 32]^T + bias, rows 96 32 32, aligned 16 16 16".
std::ostream& operator<<(std::ostream& out, const GemmProblem& p);

// One of the distinct problems among products.
struct ProductUse {
  Gemm op;                               // representative op
  int64_t launches = 0;                  // launches of the op itself
  int64_t within = 0;                    // launches as the GEMM of an epilogue op that may run as two kernels
  bool recompute = false;                // also computed again (Gemm::recompute)
  std::optional<ScaledGemm> codes = {};  // the scaled GEMM whose `product` is `op`
  Cost cost() const { return codes ? codes->cost() : op.cost(); }
  double flops() const { return double(launches + within) * op.cost().flops; }
};
// The problem; of codes also the blocks that share a scale.
std::string words_of(const ProductUse&);

// Most work first; a product comes before the problem that it contains.
std::vector<ProductUse> distinct_products(std::span<const Gemm> ops, std::span<const ScaledGemm> of_codes = {});
}  // namespace athanor
