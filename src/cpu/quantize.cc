// Quantization to FP8 and FP4, and GEMMs of quantized operands, which are dequantized to f32 first: no supported CPU
// multiplies such values.
#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <utility>

#include "cpu/amax.h"
#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/philox.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

constexpr int64_t kBandRows = 64;  // rows per task when computing amax, for blocks that span all rows
constexpr uint32_t kMagnitude = 0x7fffffffu;

template <class T>
ATHANOR_INLINE uint32_t magnitude(T x) {
  return std::bit_cast<uint32_t>(to_float(x)) & kMagnitude;
}

// For blocks narrower than vectors: expands per-block values to elements, all[i] = numbers[(first + i) / width]. first
// is a multiple of kPiece, and kPiece a multiple of narrow widths.
constexpr int64_t kNarrow = 64, kPiece = 512;
ATHANOR_INLINE bool narrow(int64_t width) { return width < kNarrow && kPiece % width == 0; }
ATHANOR_INLINE void spread(float* all, const float* numbers, int64_t first, int64_t n, int64_t width) {
  const float* number = numbers + first / width;
  if (width == 1) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) all[i] = number[i];
    return;
  }
  for (int64_t i = 0; i < n; i += width, ++number) {
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) all[i + j] = *number;
  }
}

// most[b] = max(most[b], amax of block b of a row), as float bits, which are ordered like the values with NaN as the
// maximum.
template <class T>
ATHANOR_CLONES void find_most(uint32_t* most, const T* x, int64_t cols, int64_t width) {
  if (width == 1) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) {
      const uint32_t m = magnitude(x[c]);
      most[c] = m > most[c] ? m : most[c];
    }
    return;
  }
  for (int64_t begin = 0, b = 0; begin < cols; begin += width, ++b) {
    const int64_t end = begin + width < cols ? begin + width : cols;
    uint32_t all = most[b];
#pragma omp simd reduction(max : all)
    for (int64_t c = begin; c < end; ++c) {
      const uint32_t m = magnitude(x[c]);
      all = m > all ? m : all;
    }
    most[b] = all;
  }
}

template <class Code, class T>
ATHANOR_CLONES void encode_row(Code* quantized, const T* x, const float* factors, int64_t cols, int64_t width) {
  if (width == 1) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) quantized[c] = from_float<Code>(to_float(x[c]) * factors[c]);
    return;
  }
  if (narrow(width)) {
    float own[kPiece];
    for (int64_t begin = 0; begin < cols; begin += kPiece) {
      const int64_t n = kPiece < cols - begin ? kPiece : cols - begin;
      spread(own, factors, begin, n, width);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) quantized[begin + i] = from_float<Code>(to_float(x[begin + i]) * own[i]);
    }
    return;
  }
  for (int64_t begin = 0, b = 0; begin < cols; begin += width, ++b) {
    const int64_t end = begin + width < cols ? begin + width : cols;
    const float factor = factors[b];
#pragma omp simd
    for (int64_t c = begin; c < end; ++c) quantized[c] = from_float<Code>(to_float(x[c]) * factor);
  }
}

// index: index of the row's first element in the matrix.
template <class T>
ATHANOR_CLONES void encode_row_at_random(f4_e2m1* quantized, const T* x, const float* factors, int64_t cols,
                                         int64_t width, uint64_t seed, uint64_t stream, uint64_t index) {
  constexpr int64_t kBlocks = kPiece / 4 + 1;  // the first Philox block may begin before the piece
  PhiloxBlocks<kBlocks> random;
  uint32_t numbers[4 * kBlocks];
  float scaled[kPiece], own[kPiece];
  for (int64_t begin = 0; begin < cols; begin += kPiece) {
    const int64_t n = kPiece < cols - begin ? kPiece : cols - begin;
    const uint64_t first = index + uint64_t(begin);
    random.fill(seed, stream, first / 4);
#pragma omp simd
    for (int64_t j = 0; j < kBlocks; ++j)
      for (int64_t k = 0; k < 4; ++k) numbers[4 * j + k] = random.word[k][j];
    if (narrow(width))
      spread(own, factors, begin, n, width);
    else
      for (int64_t i = 0; i < n; ++i) own[i] = factors[(begin + i) / width];
    const uint32_t* at = numbers + first % 4;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) scaled[i] = to_float(x[begin + i]) * own[i];
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) quantized[begin + i] = round_at_random(scaled[i], at[i]);
  }
}

// H diag(signs) x / 4 for 16 x kStrip values: transforms along 16 values that are `apart` apart, for kStrip neighbors
// that are `stride` apart. Sums are in double, where sums of most f32 values are exact.
constexpr int kStrip = 16;
template <class T>
ATHANOR_CLONES void transform(float* y, const T* x, int64_t apart, int64_t stride, int64_t strip) {
  double v[kHadamard][kStrip] = {};
  for (int i = 0; i < kHadamard; ++i) {
    const double sign = kHadamardSigns >> i & 1 ? -1 : 1;
    for (int64_t c = 0; c < strip; ++c) v[i][c] = sign * double(to_float(x[i * apart + c * stride]));
  }
  for (int half = 1; half < kHadamard; half *= 2)
    for (int i = 0; i < kHadamard; ++i) {
      if (i & half) continue;
#pragma omp simd
      for (int c = 0; c < kStrip; ++c) {
        const double a = v[i][c], b = v[i + half][c];
        v[i][c] = a + b, v[i + half][c] = a - b;
      }
    }
  for (int i = 0; i < kHadamard; ++i)
    // + 0.0f changes -0 to 0
    for (int64_t c = 0; c < strip; ++c) y[i * apart + c * stride] = float(v[i][c] / 4) + 0.0f;
}

template <class Code, class Scale>
ATHANOR_CLONES void decode_row(float* x, const Code* quantized, const Scale* scales, float global, int64_t cols,
                               int64_t width) {
  if (width == 1) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) x[c] = to_float(quantized[c]) * (to_float(scales[c]) * global);
    return;
  }
  if (narrow(width)) {
    float of_block[kPiece], own[kPiece];
    for (int64_t begin = 0; begin < cols; begin += kPiece) {
      const int64_t n = kPiece < cols - begin ? kPiece : cols - begin, blocks = (n + width - 1) / width;
      for (int64_t b = 0; b < blocks; ++b) of_block[b] = to_float(scales[begin / width + b]) * global;
      spread(own, of_block, 0, n, width);
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) x[begin + i] = to_float(quantized[begin + i]) * own[i];
    }
    return;
  }
  for (int64_t begin = 0, b = 0; begin < cols; begin += width, ++b) {
    const int64_t end = begin + width < cols ? begin + width : cols;
    const float scale = to_float(scales[b]) * global;
#pragma omp simd
    for (int64_t c = begin; c < end; ++c) x[c] = to_float(quantized[c]) * scale;
  }
}

template <class T, class Code, class Scale>
QuantizeStatistics measure_row(const T* x, const Code* quantized, const Scale* scales, float global, int64_t cols,
                               int64_t width) {
  QuantizeStatistics found;
  uint32_t most = 0;
  for (int64_t c = 0; c < cols; ++c) {
    const uint32_t m = magnitude(x[c]);
    most = std::max(most, m);
    const double scale = double(to_float(scales[c / width]) * global);
    if (m == 0 || std::isnan(scale)) continue;
    found.values += 1;
    found.saturated += scale > 0 && double(std::bit_cast<float>(m)) > scale * double(Code::kSaturates);
    found.underflowed += to_float(quantized[c]) == 0;
  }
  found.amax = double(std::bit_cast<float>(most));
  return found;
}

// Transforms all blocks of a matrix, kStrip blocks at once: neighboring columns, or consecutive blocks of a row.
void transform(ThreadPool& pool, const Tensor& y, const Tensor& x, const Blocks& blocks) {
  const bool along = blocks.rows == 1;
  const int64_t cols = x.cols(), count = along ? cols / kHadamard : cols;
  const int64_t apart = along ? 1 : cols, stride = along ? kHadamard : 1;
  by_float(x.dtype, [&]<class T>() {
    pool.parallel_ranges(
        x.rows() / blocks.rows, std::max<int64_t>(1, row_grain(cols) / blocks.rows), [&](int64_t begin, int64_t end) {
          for (int64_t band = begin; band < end; ++band)
            for (int64_t i = 0; i < count; i += kStrip) {
              const int64_t at = band * blocks.rows * cols + i * stride;
              transform(y.as<float>() + at, x.as<T>() + at, apart, stride, std::min<int64_t>(kStrip, count - i));
            }
        });
  });
}

// Executes one Quantize. Rows are processed in bands of the blocks' height, or of kBandRows if a block spans all rows.
struct Quantizer {
  Quantizer(const Quantize& quantize, void* scratch)
      : op(quantize),
        rows(op.x.rows()),
        cols(op.x.cols()),
        height(op.blocks.rows ? op.blocks.rows : kBandRows),
        width(op.blocks.cols ? op.blocks.cols : std::max<int64_t>(1, cols)),
        across(op.blocks.grid(op.x.shape)[1]),
        bands(div_ceil(rows, height)),
        most(static_cast<uint32_t*>(scratch)) {}

  template <class T>
  void find(int64_t band) const {
    std::fill_n(most + band * across, across, 0u);
    for (int64_t r = band * height; r < end_of(band); ++r)
      find_most(most + band * across, op.x.as<T>() + r * cols, cols, width);
  }

  // Replaces each amax by the factor computed from it, and writes the scales.
  void scale(int64_t row_of_blocks, int64_t begin, int64_t end) const {
    by_scale(op.scales.dtype, [&]<class Scale>() {
      for (int64_t b = begin; b < end; ++b) {
        uint32_t& place = most[row_of_blocks * across + b];
        Scale& scale = op.scales.as<Scale>()[row_of_blocks * across + b];
        if constexpr (std::is_same_v<Scale, f8_e4m3>) {
          const BlockScale s = block_scale(std::bit_cast<float>(place), global);
          scale = s.scale;
          place = std::bit_cast<uint32_t>(s.factor);
        } else {
          const CodeScale s = given_or_own(std::bit_cast<float>(place));
          if constexpr (std::is_same_v<Scale, e8m0>)
            scale = as_e8m0(s.scale);
          else
            scale = s.scale;
          place = std::bit_cast<uint32_t>(s.factor);
        }
      }
    });
  }

  // The scale from a block's amax; with one scale for all, `factor` may override it.
  CodeScale given_or_own(float amax) const {
    const CodeScale own = code_scale(amax, max_code(op.quantized.dtype), op.powers());
    if (op.step_amax) {
      float& all = *op.step_amax.as<float>();
      all = std::max(all, std::isfinite(amax) ? amax : std::numeric_limits<float>::infinity());
    }
    const float given = op.factor ? *op.factor.as<float>() : 0;
    if (given <= 0) return own;
    return {given, std::isnan(own.scale) ? own.scale : 1 / given};
  }

  // Called after the amax of all bands is known.
  void scale_matrix() {
    const uint32_t amax = *std::max_element(most, most + bands * across);
    global = global_scale(std::bit_cast<float>(amax));
    *op.global.as<float>() = global.scale;
    stream = op.stream + amax;
  }

  template <class T>
  void encode(int64_t band, int64_t row_of_blocks) const {
    const auto* factors = reinterpret_cast<const float*>(most + row_of_blocks * across);
    by_code(op.quantized.dtype, [&]<class Code>() {
      for (int64_t r = band * height; r < end_of(band); ++r) {
        if constexpr (std::is_same_v<Code, f4_e2m1>)
          if (op.at_random) {
            encode_row_at_random(op.quantized.as<Code>() + r * cols, op.x.as<T>() + r * cols, factors, cols, width,
                                 op.seed, stream, uint64_t(r * cols));
            continue;
          }
        encode_row(op.quantized.as<Code>() + r * cols, op.x.as<T>() + r * cols, factors, cols, width);
      }
    });
  }

  // Counts are whole numbers: their sums are exact in any order.
  template <class T>
  void measure(ThreadPool& pool) const {
    std::mutex mutex;
    by_code(op.quantized.dtype, [&]<class Code>() {
      by_scale(op.scales.dtype, [&]<class Scale>() {
        pool.parallel_ranges(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
          QuantizeStatistics found;
          for (int64_t r = begin; r < end; ++r)
            found.add(measure_row(op.x.as<T>() + r * cols, op.quantized.as<Code>() + r * cols,
                                  op.scales.as<Scale>() + (op.blocks.rows ? r / height * across : 0),
                                  op.two_levels() ? *op.global.as<float>() : 1, cols, width));
          const std::lock_guard lock(mutex);
          static_cast<QuantizeStatistics*>(op.statistics.data)->add(found);
        });
      });
    });
  }

  int64_t end_of(int64_t band) const { return std::min(rows, (band + 1) * height); }

  const Quantize& op;
  int64_t rows, cols, height, width, across, bands;
  uint32_t* most;  // [bands, across]
  GlobalScale global = {1, 1};
  uint64_t stream = 0;  // stream of random numbers
};

// Scratch memory of a ScaledGemm: a and b as f32, then the scratch memory of the f32 GEMM.
struct Decoded {
  Gemm gemm;
  int64_t b_at, rest;  // floats before b and before the f32 GEMM's scratch
  Decoded(const ScaledGemm& op, float* memory) : gemm(op.gemm) {
    b_at = round_up(op.gemm.a.numel(), kLine);
    rest = b_at + round_up(op.gemm.b.numel(), kLine);
    gemm.a = {memory, DType::f32, op.gemm.a.shape};
    gemm.b = {memory ? memory + b_at : memory, DType::f32, op.gemm.b.shape};
  }
  static constexpr int64_t kLine = 16;  // floats: a cache line
};

void decode(ThreadPool& pool, const Tensor& x, const Tensor& quantized, const Tensor& scales,
            const Tensor& global_scale, const Blocks& blocks) {
  const float global = global_scale ? *global_scale.as<float>() : 1;
  const int64_t cols = quantized.cols(), across = blocks.grid(quantized.shape)[1];
  const int64_t height = blocks.rows ? blocks.rows : quantized.rows(), width = blocks.cols ? blocks.cols : cols;
  by_code(quantized.dtype, [&]<class Code>() {
    by_scale(scales.dtype, [&]<class Scale>() {
      pool.parallel_ranges(quantized.rows(), row_grain(cols), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          decode_row(x.as<float>() + r * cols, quantized.as<Code>() + r * cols,
                     scales.as<Scale>() + r / height * across, global, cols, width);
      });
    });
  });
}

// Atomic maximum of amax and `most`, both as float bits.
void raise(float& amax, uint32_t most) {
  const std::atomic_ref<float> shared(amax);
  float before = shared.load(std::memory_order_relaxed);
  while (most > std::bit_cast<uint32_t>(before) &&
         !shared.compare_exchange_weak(before, std::bit_cast<float>(most), std::memory_order_relaxed)) {
  }
}

// Calls fn(block, from, to) for elements [begin, end) of a part of a matrix, in runs within one block and row.
template <class Fn>
void each_run(const MatrixPart& part, int64_t begin, int64_t end, Fn&& fn) {
  const int64_t cols = part.matrix[1], width = part.blocks.cols ? part.blocks.cols : cols;
  for (int64_t from = begin, to = begin; from < end; from = to) {
    const int64_t column = (part.first + from) % cols, edge = std::min(cols, (column / width + 1) * width);
    to = std::min(end, from + edge - column);
    fn(part.block_of(from), from, to);
  }
}

}  // namespace

Amax::Amax(const Tensor& amax) : amax_(amax ? amax.as<float>() : nullptr) {
  if (amax_) *amax_ = 0;
}

void Amax::add(const Tensor& of, int64_t begin, int64_t end) const {
  if (!amax_ || begin == end) return;
  uint32_t most = 0;
  by_float(of.dtype, [&]<class T>() { find_most(&most, of.as<T>() + begin, end - begin, end - begin); });
  raise(*amax_, most);
}

size_t CpuOps::scratch(const Quantize& op) const {
  if (op.transposed_scales) return std::max(scratch(op.without_transposed()), scratch(op.alone()));
  const Quantizer q(op, nullptr);
  const auto most = size_t(q.bands * q.across) * sizeof(uint32_t);
  const size_t before = op.transpose_only ? size_t(op.scales.numel()) * sizeof(float) + size_t(op.x.numel()) : 0;
  return most + (op.hadamard ? size_t(op.x.numel()) * sizeof(float) : before);
}

// Quantizes as usual, then transposes; training on a CPU does not use it.
void CpuOps::run_transposed(const Quantize& op, void* scratch) {
  const Quantizer q(op, nullptr);
  const int64_t rows = q.rows, cols = q.cols;
  Quantize plain = op;
  plain.transpose_only = false, plain.transposed = {};
  if (op.transpose_only) {
    auto* scales = static_cast<float*>(scratch) + q.bands * q.across;
    plain.scales = {scales, DType::f32, op.blocks.grid(op.x.shape)};
    plain.quantized = {scales + plain.scales.numel(), op.quantized.dtype, op.x.shape};
  }
  run(plain, scratch);
  const auto transpose = [&]<class T>(T* out, const T* in, int64_t height, int64_t width) {
    pool_.parallel_ranges(width, row_grain(height), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c)
        for (int64_t r = 0; r < height; ++r) out[c * height + r] = in[r * width + c];
    });
  };
  transpose(static_cast<uint8_t*>(op.transpose_only ? op.quantized.data : op.transposed.data),
            static_cast<const uint8_t*>(plain.quantized.data), rows, cols);
  if (op.transpose_only)
    transpose(op.scales.as<float>(), static_cast<const float*>(plain.scales.data), plain.scales.rows(),
              plain.scales.cols());
}

void CpuOps::run(const Quantize& op, void* scratch) {
  if (op.transposed_scales) {
    run(op.without_transposed(), scratch);
    return run(op.alone(), scratch);
  }
  if (op.transpose_only || op.transposed) return run_transposed(op, scratch);
  Quantizer q(op, scratch);
  if (op.x.numel() == 0) return;
  if (op.hadamard) {
    Quantize transformed = op;
    transformed.hadamard = false;
    transformed.x = {static_cast<uint32_t*>(scratch) + q.bands * q.across, DType::f32, op.x.shape};
    transform(pool_, transformed.x, op.x, op.blocks);
    return run(transformed, scratch);
  }
  const bool whole_height = op.blocks.rows == 0;
  const int64_t grain = std::max<int64_t>(1, row_grain(q.cols) / q.height);
  const auto each_band = [&](const auto& work) {
    pool_.parallel_ranges(q.bands, grain, [&](int64_t begin, int64_t end) {
      for (int64_t band = begin; band < end; ++band) work(band);
    });
  };
  by_float(op.x.dtype, [&]<class T>() {
    const auto scale_and_encode = [&](int64_t band) {
      q.scale(band, 0, q.across);
      q.encode<T>(band, band);
    };
    if (op.amax) {
      q.most[0] = std::bit_cast<uint32_t>(*op.amax.as<float>());
      q.scale(0, 0, 1);
      each_band([&](int64_t band) { q.encode<T>(band, 0); });
      if (op.statistics) q.measure<T>(pool_);
      return;
    }
    each_band([&](int64_t band) {
      q.find<T>(band);
      if (!whole_height && !op.two_levels()) scale_and_encode(band);
    });
    if (op.two_levels()) {
      q.scale_matrix();
      each_band(scale_and_encode);
    } else if (whole_height) {
      pool_.parallel_ranges(q.across, kChunkElements, [&](int64_t begin, int64_t end) {
        for (int64_t band = 1; band < q.bands; ++band)
          for (int64_t b = begin; b < end; ++b) q.most[b] = std::max(q.most[b], q.most[band * q.across + b]);
        q.scale(0, begin, end);
      });
      each_band([&](int64_t band) { q.encode<T>(band, 0); });
    }
    if (op.statistics) q.measure<T>(pool_);
  });
}

void CpuOps::run(const AmaxOfPart& op, void*) {
  constexpr auto kInfinite = std::bit_cast<uint32_t>(std::numeric_limits<float>::infinity());
  by_float(op.x.dtype, [&]<class T>() {
    pool_.parallel_ranges(op.x.numel(), kChunkElements, [&](int64_t begin, int64_t end) {
      each_run(op.part, begin, end, [&](int64_t block, int64_t from, int64_t to) {
        uint32_t most = 0;
        find_most(&most, op.x.as<T>() + from, to - from, to - from);
        most = std::min(most, kInfinite);
        raise(op.amax.as<float>()[block], most);
        if (op.of_all) raise(*op.of_all.as<float>(), most);
      });
    });
  });
}

void CpuOps::run(const QuantizePart& op, void*) {
  const float given = op.factor ? *op.factor.as<float>() : 0;
  const GlobalScale global = op.of_all ? global_scale(*op.of_all.as<float>()) : GlobalScale{1, 1};
  std::mutex mutex;
  const auto encode = [&]<class T, class Code>(int64_t begin, int64_t end) {
    QuantizeStatistics found;
    each_run(op.part, begin, end, [&](int64_t block, int64_t from, int64_t to) {
      const float amax = op.amax.as<float>()[block];
      const T* x = op.x.as<T>() + from;
      Code* quantized = op.quantized.as<Code>() + from;
      const auto with = [&](float factor, auto scale) {
        encode_row(quantized, x, &factor, to - from, to - from);
        if (op.statistics) found.add(measure_row(x, quantized, &scale, global.scale, to - from, to - from));
      };
      if constexpr (std::is_same_v<Code, f4_e2m1>) {
        const BlockScale s = block_scale(amax, global);
        with(s.factor, s.scale);
      } else {
        const CodeScale own = code_scale(amax, Code::kMost, op.power_of_two);
        with(given > 0 ? given : own.factor, given > 0 && !std::isnan(own.scale) ? 1 / given : own.scale);
      }
    });
    if (!op.statistics) return;
    const std::lock_guard lock(mutex);
    static_cast<QuantizeStatistics*>(op.statistics.data)->add(found);
  };
  by_float(op.x.dtype, [&]<class T>() {
    by_code(op.quantized.dtype, [&]<class Code>() {
      pool_.parallel_ranges(op.x.numel(), kChunkElements,
                            [&](int64_t begin, int64_t end) { encode.template operator()<T, Code>(begin, end); });
    });
  });
}

void CpuOps::run(const DelayedScales& op, void*) {
  const bool enters = op.state && static_cast<const StepState*>(op.state.data)->skip == 0;
  for (size_t row = 0; row < op.histories.size(); ++row)
    for (int64_t c = 0; c < op.columns(); ++c) {
      const int64_t at = int64_t(row) * op.columns() + c;
      const float now = std::exchange(op.amax.as<float>()[at], 0.0f);
      float& factor = op.factors.as<float>()[at];
      factor = 0;
      if (op.histories[row].numel() == 0) continue;
      float* history = op.histories[row].as<float>() + c * op.length;
      if (enters && std::isfinite(now)) {
        std::copy_backward(history, history + op.length - 1, history + op.length);
        history[0] = now;
      }
      const float amax = *std::max_element(history, history + op.length);
      if (amax == 0) continue;
      const float exact = code_scale(amax, max_code(op.quantized[size_t(c)]), op.power_of_two).factor;
      factor = std::max(std::ldexp(exact, -op.margin), 0x1p-126f);
    }
}

size_t CpuOps::scratch(const ScaledGemm& op) const {
  const Decoded decoded(op, nullptr);
  return size_t(decoded.rest) * sizeof(float) + scratch(decoded.gemm);
}

void CpuOps::run(const ScaledGemm& op, void* scratch) {
  auto* memory = static_cast<float*>(scratch);
  const Decoded decoded(op, memory);
  decode(pool_, decoded.gemm.a, op.gemm.a, op.a_scales, op.a_global, op.a_blocks);
  decode(pool_, decoded.gemm.b, op.gemm.b, op.b_scales, op.b_global, op.b_blocks);
  run(decoded.gemm, memory + decoded.rest);
}

}  // namespace athanor
