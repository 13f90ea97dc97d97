// Everything that the algorithm of a Gemm may depend on: sizes, strides, dtypes, flags and address alignment. Ops with
// equal problems use the same algorithm, so their results are bitwise reproducible.
#pragma once
#include <compare>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ops/quantize.h"
namespace athanor {

// Scale layout that a library expects of a quantized operand. matrix: one scale; rows: one per row along K; blocks: one
// per 128 elements of a row; squares: one per 128 x 128 block; tiles32, tiles16: 8-bit scales in tiles, one per 32
// elements (E8M0) or per 16 (E4M3); none: not quantized. [cuBLAS manual, "Narrow precision data types usage"]
enum class ScaleLayout : uint8_t { none, matrix, rows, blocks, squares, tiles32, tiles16 };
constexpr bool in_tiles(ScaleLayout s) { return s == ScaleLayout::tiles32 || s == ScaleLayout::tiles16; }

struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  int64_t stride_d = 0, stride_a = 0, stride_b = 0;  // elements between rows
  DType d{}, a{}, b{};
  bool ta = false, tb = false, bias = false, accumulate = false, tf32 = false;
  Epilogue epilogue = Epilogue::none;
  int align_d = 0, align_a = 0, align_b = 0;  // bytes, at most kMostAlign. align_d: the minimum over d, bias and aux
  ScaleLayout scales_a{}, scales_b{};
  bool fast = false;                  // ScaledGemm::fast
  int64_t rotated = 0, head_dim = 0;  // Epilogue::rope only

  auto operator<=>(const GemmProblem&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};

// Alignments are capped at this value: no library requires more, and buffers at different arena offsets then have equal
// problems.
constexpr int kMostAlign = 16;

GemmProblem problem_of(const Gemm& op);

// Text form, which is also the problem's key in a file of tuned choices:
// "bf16[64, 96] = bf16[64, 32] bf16[96, 32]^T + bias, rows 96 32 32, aligned 16 16 16".
std::ostream& operator<<(std::ostream& out, const GemmProblem& p);

// A distinct GEMM problem and how often it is launched.
struct GemmUse {
  Gemm op;                                   // representative op
  int64_t launches = 0;                      // launches of the op itself
  int64_t within = 0;                        // launches as the GEMM of an epilogue op that may run as two kernels
  bool recompute = false;                    // also runs as a recomputation (Gemm::recompute)
  std::optional<ScaledGemm> quantized = {};  // the scaled GEMM whose `gemm` is `op`
  Cost cost() const { return quantized ? quantized->cost() : op.cost(); }
  double flops() const { return double(launches + within) * op.cost().flops; }
};
// Text form of the problem; for scaled GEMMs also the blocks that share a scale.
std::string words_of(const GemmUse&);

// Returns distinct GEMMs by work, largest first; a GEMM with an epilogue comes before the plain GEMM that it contains.
std::vector<GemmUse> distinct_gemms(std::span<const Gemm> ops, std::span<const ScaledGemm> of_quantized = {});
}  // namespace athanor
