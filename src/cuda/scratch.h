// Scratch memory of every op's kernels, and how kernels that need scratch memory split their work. Free of CUDA's
// headers, so that the plan for a described GPU (perf/described_gpu.cc) uses the sizes that a GPU allocates. An op that
// is missing here does not compile.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "base/host_device.h"
#include "base/int.h"
#include "ops/gemm_problem.h"
#include "ops/ops.h"
namespace athanor::cuda {

// cuBLASLt's workspace, for every GEMM. NVIDIA recommends 32 MiB from Hopper on. [cuBLAS manual, cublasSetWorkspace()]
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

// Maximum scratch memory of cuDNN's attention, unless cuDNN is requested by name or the plan has more left
// (Tuning::allow_scratch).
constexpr size_t kMostAutomaticScratch = size_t{2} << 30;

// ---- how kernels split their work

// Splits the rows of ColumnSum into ranges, so that the blocks of all ranges fill one wave, or slightly less.
struct ColumnSumCut {
  static constexpr int kWarps = 8;                    // warps per block
  static constexpr int kRowsInFlight = 4;             // rows per warp
  static constexpr int64_t kMaxRanges = 256;          // keeps the second launch short
  static constexpr int64_t kWave = int64_t{5} * 132;  // blocks resident on an H200, limited by registers
  int64_t rows_each, count;
  ColumnSumCut(int64_t rows, int64_t columns) {
    const int64_t tiles = std::max<int64_t>(1, div_ceil<int64_t>(columns, 256));
    const int64_t wanted = std::clamp<int64_t>(kWave / tiles, 1, kMaxRanges);
    rows_each = round_up<int64_t>(std::max<int64_t>(1, div_ceil<int64_t>(rows, wanted)), kWarps * kRowsInFlight);
    count = div_ceil<int64_t>(rows, rows_each);
  }
};

// Backward of ScaledSum: a block has one tile, a thread kScaledSumElements elements.
constexpr int kScaledSumElements = 4, kScaledSumThreads = 256;
// Each warp of gated_sum_backward() has one group of one row.
constexpr int kGatedSumWarps = 8;
inline int64_t gated_sum_blocks(int64_t rows, int64_t groups) {
  return div_ceil<int64_t>(rows * groups, kGatedSumWarps);
}
inline int64_t scaled_sum_tiles(int64_t n) { return div_ceil<int64_t>(n, kScaledSumElements * kScaledSumThreads); }

// Splits the elements of a sum into at most kMaxRanges ranges of whole tiles.
struct SumCut {
  static constexpr int kMaxRanges = 512;         // some four blocks per SM of an H200
  static constexpr int64_t kTile = 4 * 4 * 256;  // four chunks of four floats for each of a block's threads
  int64_t tiles_each, count;
  explicit SumCut(int64_t n)
      : tiles_each(div_ceil<int64_t>(n, kMaxRanges * kTile)), count(n ? div_ceil(n, tiles_each * kTile) : 0) {}
};

// Splits the rows of NormBwd; each block writes one partial sum of its rows.
struct NormCut {
  static constexpr int64_t kMaxBlocks = 264;  // two thread blocks per SM of an H200
  static constexpr int64_t kMinRows = 8;      // keeps the partial sums few compared with the rows
  int64_t rows_each, blocks;
  explicit NormCut(int64_t rows)
      : rows_each(std::max(kMinRows, div_ceil<int64_t>(rows, kMaxBlocks))),
        blocks(div_ceil<int64_t>(rows, rows_each)) {}
};

constexpr int64_t kMostQkNormBlocks = 264;  // blocks of QkNormBwd: two per SM of an H200

constexpr int kEmbeddingRun = 16;  // rows per block of EmbeddingBwd, sorted by token

// Radix sort of row numbers by an index below `limit`: number of passes, bits per pass; counters exist per tile of
// rows.
struct SortCut {
  static constexpr int kTile = 2048;  // rows: 8 warps times 8 rounds of 32
  static constexpr int kMaxBits = 9;  // per digit: 16 KiB of counters
  int passes, bits;
  explicit SortCut(int64_t limit) {
    int all = 1;
    while (int64_t{1} << all < limit) ++all;
    passes = div_ceil(all, kMaxBits);
    bits = div_ceil(all, passes);
  }
};
// Scratch memory of the sort in bytes; a multiple of 256.
inline size_t sort_scratch(int64_t rows, int64_t limit) {
  const int64_t counts = div_ceil<int64_t>(rows, SortCut::kTile) << SortCut(limit).bits;
  return static_cast<size_t>(round_up<int64_t>((4 * rows + counts) * int64_t{sizeof(int)}, 256));
}
// Upper bound of the sort keys of an embedding's gradient. With a sharded vocabulary, other ranks' tokens get the last
// key.
inline int64_t sort_limit(const Tensor& grad, const VocabPart& part) { return part ? part.count + 1 : grad.rows(); }

// Statistics of AttentionBwd, for each head [stats_rows(queries)]: rows are padded so that every head starts on a
// 16-byte boundary.
struct QueryStats {
  float lse;      // times log2(e)
  float dy_by_y;  // dot product of the row of dy and of y; it equals the sum of p dp over keys
};
ATHANOR_HOST_DEVICE constexpr int64_t stats_rows(int64_t queries) { return queries + queries % 2; }

// First part of Quantize's scratch memory; the amax of each scale block as 32 bits and a transformed matrix as f32
// follow.
struct QuantizeCounts {
  unsigned long long values, saturated, underflowed;
  // Amax as float bits: `amax` for statistics, `whole` the amax of the matrix for FP4, whose scales have two levels.
  unsigned amax, whole;
};
// Offset of the transformed matrix behind the counts, in 32-bit words.
inline int64_t transformed_at(const Quantize& op) {
  const int64_t scales = std::max(op.scales.numel(), op.transposed_scales ? op.transposed_scales.numel() : 0);
  return round_up<int64_t>(scales, 4);
}

// The layout in which cuBLASLt expects the scales of a GEMM operand; none: unsupported. Scales of 16 x 16 blocks are
// repeated per row. terms: the dimension of the operand, as stored in memory, that is K.
inline ScaleLayout layout_of(DType scales, const Blocks& blocks, int terms) {
  const int64_t across = terms == 1 ? blocks.rows : blocks.cols, along = terms == 1 ? blocks.cols : blocks.rows;
  if (scales == DType::f8_e8m0) return across == 1 && along == 32 ? ScaleLayout::tiles32 : ScaleLayout::none;
  if (scales == DType::f8_e4m3)
    return (across == 1 || across == 16) && along == 16 ? ScaleLayout::tiles16 : ScaleLayout::none;
  if (across == 0 && along == 0) return ScaleLayout::matrix;
  if (across == 1 && along == 0) return ScaleLayout::rows;
  if (across == 1 && along == 128) return ScaleLayout::blocks;
  return across == 128 && along == 128 ? ScaleLayout::squares : ScaleLayout::none;
}

// How cuBLASLt computes a GEMM of FP8 or FP4 operands on a GPU of a given compute capability (90: Hopper): K must be
// contiguous in both operands, otherwise they are transposed in scratch memory; FP4 values are packed two per byte. If
// cuBLASLt cannot compute the GEMM, operands are dequantized and multiplied as f32.
struct NativeGemm {
  bool possible = false;
  ScaleLayout a = ScaleLayout::none, b = ScaleLayout::none;
  NativeGemm(const ScaledGemm& op, int capability) {
    const Gemm& g = op.gemm;
    const auto whole = [](int64_t n) { return n % 16 == 0; };
    const bool types = g.d.dtype != DType::f32 || !g.bias;
    if (!types || !whole(g.m()) || !whole(g.n()) || !whole(g.k()) || !whole(g.d.stride())) return;
    a = layout_of(op.a_scales.dtype, op.a_blocks, g.ta ? 0 : 1);
    b = layout_of(op.b_scales.dtype, op.b_blocks, g.tb ? 1 : 0);
    const auto fine = [](ScaleLayout s) { return s == ScaleLayout::blocks || s == ScaleLayout::squares; };
    if (in_tiles(a) || in_tiles(b)) {
      possible = capability >= 100 && a == b && g.k() % 32 == 0;
    } else if (a == ScaleLayout::matrix && b == ScaleLayout::matrix) {
      possible = capability >= 89;
    } else if (fine(a) && fine(b)) {
      possible = capability == 90 && (a == ScaleLayout::blocks || b == ScaleLayout::blocks);
    } else if (a != ScaleLayout::none && b != ScaleLayout::none && !fine(a) && !fine(b)) {
      possible = capability == 90;
      a = b = ScaleLayout::rows;  // a per-tensor scale is repeated per row
    }
  }
};
// Whether the program's own kernel (gemm/wgmma_gemm.cu) computes this GEMM and its epilogue in one launch on a GPU of
// that compute capability. It supports epilogues that the library lacks: SwiGLU, its gradient, and RoPE with heads of
// 64 or 128; operands have 16 bits, and rows that TMA can copy. The weights are [N, K] forward and [K, N] backward.
inline bool own_gemm_takes(const GemmProblem& p, int capability) {
  constexpr int64_t kMost = int64_t{1} << 30;  // tile coordinates are 32-bit integers
  const auto whole = [](int64_t n) { return n > 0 && n < kMost && n % 8 == 0; };
  const bool forward = p.epilogue == Epilogue::swiglu && p.tb && p.n % 16 == 0;
  const bool backward = p.epilogue == Epilogue::swiglu_gradient && !p.tb;
  const bool rotated = p.epilogue == Epilogue::rope && p.tb && (p.head_dim == 64 || p.head_dim == 128) && p.n > 128;
  return capability == 90 && (forward || backward || rotated) && (p.a == DType::bf16 || p.a == DType::f16) &&
         p.b == p.a && p.d == p.a && !p.ta && (rotated || !p.bias) && p.scales_a == ScaleLayout::none && p.m > 0 &&
         p.m < kMost && whole(p.n) && whole(p.k) && whole(p.stride_a) && whole(p.stride_b) && whole(p.stride_d) &&
         div_ceil<int64_t>(p.m, 128) * div_ceil<int64_t>(p.n, 256) < kMost;
}
// Whether gemm/grouped_wgmma.cu computes this grouped GEMM, with SwiGLU if it has h, on a GPU of that compute
// capability.
inline bool grouped_gemm_takes(const GroupedGemm& op, int capability) {
  constexpr int64_t kMost = int64_t{1} << 30;  // tile coordinates are 32-bit integers
  const DType type = op.a.dtype;
  const bool d_fits = op.d.dtype == type || (op.role == Grouped::weight_gradient && op.d.dtype == DType::f32);
  return capability == 90 && (type == DType::bf16 || type == DType::f16) && op.b.dtype == type && d_fits &&
         op.inputs() % 8 == 0 && op.outputs() % (op.h ? 16 : 8) == 0 && op.rows() > 0 && op.rows() < kMost &&
         op.matrices().rows() < kMost && op.inputs() < kMost;
}
inline bool transposes_quantized(int capability) { return capability >= 89; }  // GPUs that have FP8 GEMMs
// `moved` leaves out the rearranged scales, which are too few to count.
inline ScaledGemmPlan plan_scaled_gemm(const ScaledGemm& op, const NativeGemm& native) {
  const Gemm& g = op.gemm;
  const auto a = double(g.a.numel()), b = double(g.b.numel());
  if (native.possible)
    return op.four_bits()
               ? ScaledGemmPlan{.factors = Factors::fp4_values, .moved = 1.5 * (a + b)}
               : ScaledGemmPlan{.factors = Factors::quantized, .moved = 2 * ((g.ta ? a : 0) + (g.tb ? 0 : b))};
  return {.factors = Factors::floats,
          // conversion to f32, and back
          .moved = 5 * (a + b) + (g.d.dtype == DType::f32 ? 0 : 4 * double(g.d.numel()))};
}
// Describes for the log how a GPU computes FP8 and FP4 GEMMs; "" if there are none. native: number of GEMMs that need
// no dequantizing.
inline std::string describe_quantized(std::span<const ScaledGemm> ops, int64_t native, int capability) {
  const int64_t emulated = std::ssize(ops) - native;
  if (ops.empty()) return "";
  if (emulated == 0) return "the GPU multiplies quantized values";
  int64_t of_gpu = 0;
  for (const ScaledGemm& op : ops) of_gpu += NativeGemm(op, capability).possible;
  return cat(native ? cat(emulated, " of ", ops.size(), " GEMMs ") : "",
             "emulated: ", of_gpu > native ? "cuBLASLt, or " : "", "a GPU of compute capability ", capability / 10, ".",
             capability % 10, of_gpu > native ? "," : "", " has no such GEMMs", native ? " of their sizes" : "",
             ", so dequantized values are multiplied as fp32");
}

// Tiles of ScaleLayout::tiles32 and tiles16: 512 bytes for 128 rows and 4 scale blocks of each row.
constexpr int kTileRows = 128, kTileBlocks = 4;

// Bytes of an operand's scales in the library's layout. outer: M or N; terms: K. Scales are f32, one byte in tiled
// layouts.
inline int64_t scale_bytes(ScaleLayout layout, int64_t outer, int64_t terms) {
  constexpr int64_t f32 = sizeof(float);
  const int64_t blocks = div_ceil<int64_t>(terms, 128);
  switch (layout) {
    case ScaleLayout::none:
      return 0;
    case ScaleLayout::matrix:
      return f32;
    case ScaleLayout::rows:
      return f32 * outer;
    case ScaleLayout::blocks:
      return f32 * outer * blocks;
    case ScaleLayout::squares:
      return f32 * div_ceil<int64_t>(outer, 128) * round_up<int64_t>(blocks, 4);
    case ScaleLayout::tiles32:
    case ScaleLayout::tiles16:
      return round_up<int64_t>(outer, kTileRows) *
             round_up<int64_t>(div_ceil<int64_t>(terms, layout == ScaleLayout::tiles32 ? 32 : 16), kTileBlocks);
  }
  return 0;
}

// ---- bytes of scratch memory

// Ops that need no scratch memory.
template <class Op, class... Listed>
constexpr bool kIsOneOf = (std::is_same_v<Op, Listed> || ...);
template <class Op>
requires kIsOneOf<
    Op, NormFwd, NormApply, QkNormSums, AttentionFwd, MergeAttention, Rope, GeluFwd, GeluBwd, SwigluFwd, SwigluBwd,
    EmbeddingFwd, Patchify, GatherRows, ScatterRows, CrossEntropy, DistilledCrossEntropy, RowMax, LogitSums,
    DistillSums, Fill, MaskedFill, Cast, Add, RandomNormal, StepControl, AdamW, AdamW8bit, ScheduleFreeAdamW, Sgd, Lion,
    Ema, AdamDirection, ScaleByTrustRatio, AverageTrustRatio, FrozenTrustRatio, OutputSquares, ScaleOutputs,
    FactoredMoments, ClipFactors, Momentum, Combine, SplitMaster, JoinMaster, QkClip, AmaxOfPart, DelayedScales,
    RouteFwd, CountExperts, ExpertLoads, StepRouterBias, SendSlots, ReceiveSlots, SumRows, WeightedSwigluFwd,
    WeightedSwigluBwd, GroupedGemm, ActivationFwd, ActivationBwd, ScaledSum, GatedSum, DequantizeNf4, ScaleByMagnitude,
    ScaleByMagnitudeBwd, KeepTwoOfFour, DecayPruned, TopLogits, PickLogits, CachedDistilledCrossEntropy, OneBitMomentum,
    OneBitMean, OneBitDirection, PackGroups, SumGroups, AttentionSinks, AttentionSinksBwd, DropPath, Int8Gemm,
    SourceLosses, LatentHeads, LatentHeadsBwd, AddExpertBias, AddExpertBiasBwd, ClampedGluFwd, ClampedGluBwd>
constexpr size_t scratch(const Op&) { return 0; }

inline size_t scratch(const ColumnSum& op) {
  const ColumnSumCut cut(op.x.rows(), op.x.cols());
  return cut.count > 1 ? static_cast<size_t>(cut.count * op.x.cols()) * sizeof(float) : 0;
}

// Bias gradients that the library computes are stored behind the workspace until they are added to the op's gradient.
inline size_t scratch(const Gemm& op, size_t workspace = kWorkspaceBytes) {
  if (!op.sums()) return workspace;
  size_t column_sum = 0;
  in_parts(op, [&]<class Part>(const Part& part) {
    if constexpr (std::is_same_v<Part, ColumnSum>) column_sum = scratch(part);
  });
  return std::max(workspace + static_cast<size_t>(op.aux.numel()) * sizeof(float), column_sum);
}

inline size_t scratch(const QuantizePart& op) { return op.statistics ? sizeof(QuantizeCounts) : 0; }
inline size_t scratch(const Quantize& op) {
  const int64_t words = transformed_at(op) + (op.hadamard ? op.x.numel() : 0);
  return sizeof(QuantizeCounts) + static_cast<size_t>(words) * sizeof(uint32_t);
}

// Offsets of the parts of a ScaledGemm's scratch memory, behind the workspace. Native GEMMs: transposed or packed
// operands, their scales in the library's layout, and two numbers (GemmScalars). Otherwise: operands as f32, and the
// result as f32 if d has another type.
struct ScaledScratch {
  size_t a, b, a_scales, b_scales, scalars, d, bytes;
  ScaledScratch(const ScaledGemm& op, const NativeGemm& native, size_t workspace) {
    const Gemm& g = op.gemm;
    size_t at = workspace;
    const auto take = [&](int64_t count) {
      const size_t begin = at;
      at += static_cast<size_t>(round_up<int64_t>(count, 256));
      return begin;
    };
    const bool packed = op.four_bits();
    const auto quantized = [&](const Tensor& t, bool other) { return packed ? t.numel() / 2 : other ? t.numel() : 0; };
    a = take(native.possible ? quantized(g.a, g.ta) : 4 * g.a.numel());
    b = take(native.possible ? quantized(g.b, !g.tb) : 4 * g.b.numel());
    a_scales = take(native.possible ? scale_bytes(native.a, g.m(), g.k()) : 0);
    b_scales = take(native.possible ? scale_bytes(native.b, g.n(), g.k()) : 0);
    scalars = take(native.possible && packed ? int64_t{2 * sizeof(float)} : 0);
    d = take(native.possible || g.d.dtype == DType::f32 ? 0 : 4 * g.d.numel());
    bytes = at;
  }
};
inline size_t scratch(const ScaledGemm& op, const NativeGemm& native, size_t workspace = kWorkspaceBytes) {
  return ScaledScratch(op, native, workspace).bytes;
}

inline size_t scratch(const ScaledSumBwd& op) {
  return static_cast<size_t>(2 * scaled_sum_tiles(op.dy.numel())) * sizeof(double);
}

inline size_t scratch(const GatedSumBwd& op) {
  return static_cast<size_t>(2 * gated_sum_blocks(op.dy.rows(), op.groups())) * sizeof(double);
}

inline size_t scratch(const SquaredNorm& op) {
  int64_t count = 0;
  for (const Tensor& t : op.x) count += SumCut(t.numel()).count;
  return static_cast<size_t>(count) * sizeof(double);
}
inline size_t scratch(const ReduceSum& op) {
  return op.x.dtype == DType::f64 ? 0 : static_cast<size_t>(SumCut(op.x.numel()).count) * sizeof(double);
}

inline size_t scratch(const NormBwd& op) {
  return static_cast<size_t>(NormCut(op.h.rows()).blocks * op.h.cols() * (op.db ? 2 : 1)) * sizeof(float);
}

// Maximum number of packs of `elements` elements that a lane of the QK norm kernels holds.
constexpr int max_qk_norm_packs(int elements) { return elements == 1 ? 4 : 2; }
// Bytes of the sums of heads that the QK norm kernels may have to cut: some that are too long for a lane of any packs.
template <class Op>
size_t scratch_of_cut_heads(const Op& op) {
  return op.sums || op.wq.numel() <= 32 * max_qk_norm_packs(1) ? 0 : static_cast<size_t>(op.rstd.bytes());
}
inline size_t scratch(const QkNormFwd& op) { return scratch_of_cut_heads(op); }
// An upper bound for any way to split the heads.
inline size_t scratch(const QkNormBwd& op) {
  return static_cast<size_t>(kMostQkNormBlocks * 2 * op.wq.numel()) * sizeof(float) + scratch_of_cut_heads(op);
}

// Dropped choices are sorted as those of one more expert.
inline size_t scratch(const SortByExpert& op) { return sort_scratch(op.experts.numel(), op.expert_count() + 1); }
inline size_t scratch(const DropChoices& op) { return sort_scratch(op.experts.numel(), op.expert_count); }
// Token counts per sequence and expert, and each token's contribution to the statistics.
inline size_t scratch(const RouteBwd& op) {
  const int64_t counts = op.sequences() * op.logits.cols(), sums = RouterStatistics::kSums * op.logits.rows();
  return static_cast<size_t>(counts * int64_t{sizeof(int)} + sums * int64_t{sizeof(float)});
}

inline size_t scratch(const EmbeddingBwd& op) {
  const int64_t rows = op.dy.rows(), runs = div_ceil<int64_t>(rows, kEmbeddingRun);
  const size_t tokens = sort_scratch(rows, sort_limit(op.dwte, op.part));
  const size_t positions = op.dwpe ? sort_scratch(rows, op.dwpe.rows()) : 0;  // may need more bits per digit
  return std::max(tokens, positions) + static_cast<size_t>(runs * op.dy.cols()) * sizeof(float);
}

// Scratch memory of the program's own kernels; cuDNN's plans have their own sizes.
inline size_t scratch(const AttentionBwd& op) {
  return static_cast<size_t>(stats_rows(op.q.rows()) * op.shape.heads) * sizeof(QueryStats);
}

inline size_t scratch(const NormalizeMatrix& op) { return static_cast<size_t>(op.x.rows() + 1) * sizeof(double); }
inline size_t scratch(const NormalizeNeurons& op) {
  return static_cast<size_t>(op.outputs()) * (sizeof(double) + sizeof(float));
}
}  // namespace athanor::cuda
