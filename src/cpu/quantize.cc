// Codes of 8 bits, and products of them: the codes times their scales as f32, then the product of that. No processor
// that this runs on multiplies such codes itself.
#include <algorithm>
#include <mutex>

#include "cpu/chunks.h"
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

constexpr int64_t kBandRows = 64;  // rows whose largest values are found together, of blocks as high as the matrix
constexpr uint32_t kMagnitude = 0x7fffffffu;

template <class T>
ATHANOR_INLINE uint32_t magnitude(T x) {
  return std::bit_cast<uint32_t>(to_float(x)) & kMagnitude;
}

// most[b] = the largest magnitude of block b of a row, or what it is already; as bits, whose order is that of the
// values with NaN above all.
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
ATHANOR_CLONES void encode_row(Code* codes, const T* x, const float* factors, int64_t cols, int64_t width) {
  if (width == 1) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) codes[c] = from_float<Code>(to_float(x[c]) * factors[c]);
    return;
  }
  for (int64_t begin = 0, b = 0; begin < cols; begin += width, ++b) {
    const int64_t end = begin + width < cols ? begin + width : cols;
    const float factor = factors[b];
#pragma omp simd
    for (int64_t c = begin; c < end; ++c) codes[c] = from_float<Code>(to_float(x[c]) * factor);
  }
}

template <class Code, class Scale>
ATHANOR_CLONES void decode_row(float* x, const Code* codes, const Scale* scales, int64_t cols, int64_t width) {
  if (width == 1) {
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) x[c] = to_float(codes[c]) * to_float(scales[c]);
    return;
  }
  for (int64_t begin = 0, b = 0; begin < cols; begin += width, ++b) {
    const int64_t end = begin + width < cols ? begin + width : cols;
    const float scale = to_float(scales[b]);
#pragma omp simd
    for (int64_t c = begin; c < end; ++c) x[c] = to_float(codes[c]) * scale;
  }
}

template <class T, class Code, class Scale>
QuantizeStatistics measure_row(const T* x, const Code* codes, const Scale* scales, int64_t cols, int64_t width) {
  QuantizeStatistics found;
  uint32_t most = 0;
  for (int64_t c = 0; c < cols; ++c) {
    const uint32_t m = magnitude(x[c]);
    most = std::max(most, m);
    const double scale = double(to_float(scales[c / width]));
    if (m == 0 || std::isnan(scale)) continue;
    found.values += 1;
    found.saturated += double(std::bit_cast<float>(m)) > scale * double(Code::kSaturates);
    found.underflowed += to_float(codes[c]) == 0;
  }
  found.largest = double(std::bit_cast<float>(most));
  return found;
}

// One Quantize. Rows are worked on in bands: of the blocks' height, or of kBandRows where a block has all rows.
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

  // The factors take the place of the magnitudes that they follow from.
  void scale(int64_t row_of_blocks, int64_t begin, int64_t end) const {
    by_scale(op.scales.dtype, [&]<class Scale>() {
      for (int64_t b = begin; b < end; ++b) {
        uint32_t& place = most[row_of_blocks * across + b];
        const CodeScale s = code_scale(std::bit_cast<float>(place), largest_code(op.codes.dtype), op.powers());
        if constexpr (std::is_same_v<Scale, e8m0>)
          op.scales.as<Scale>()[row_of_blocks * across + b] = as_e8m0(s.scale);
        else
          op.scales.as<Scale>()[row_of_blocks * across + b] = s.scale;
        place = std::bit_cast<uint32_t>(s.factor);
      }
    });
  }

  template <class T>
  void encode(int64_t band, int64_t row_of_blocks) const {
    const auto* factors = reinterpret_cast<const float*>(most + row_of_blocks * across);
    by_code(op.codes.dtype, [&]<class Code>() {
      for (int64_t r = band * height; r < end_of(band); ++r)
        encode_row(op.codes.as<Code>() + r * cols, op.x.as<T>() + r * cols, factors, cols, width);
    });
  }

  // Counts are whole numbers: exact in any order.
  template <class T>
  void measure(ThreadPool& pool) const {
    std::mutex mutex;
    by_code(op.codes.dtype, [&]<class Code>() {
      by_scale(op.scales.dtype, [&]<class Scale>() {
        pool.parallel_ranges(rows, row_grain(cols), [&](int64_t begin, int64_t end) {
          QuantizeStatistics found;
          for (int64_t r = begin; r < end; ++r)
            found.add(measure_row(op.x.as<T>() + r * cols, op.codes.as<Code>() + r * cols,
                                  op.scales.as<Scale>() + (op.blocks.rows ? r / height * across : 0), cols, width));
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
};

// The scratch memory of a product: a and b as f32, then the product's own.
struct Decoded {
  Gemm product;
  int64_t b_at, rest;  // floats before b, and before the product's scratch
  Decoded(const ScaledGemm& op, float* memory) : product(op.product) {
    b_at = round_up(op.product.a.numel(), kLine);
    rest = b_at + round_up(op.product.b.numel(), kLine);
    product.a = {memory, DType::f32, op.product.a.shape};
    product.b = {memory ? memory + b_at : memory, DType::f32, op.product.b.shape};
  }
  static constexpr int64_t kLine = 16;  // floats: a cache line
};

void decode(ThreadPool& pool, const Tensor& x, const Tensor& codes, const Tensor& scales, const Blocks& blocks) {
  const int64_t cols = codes.cols(), across = blocks.grid(codes.shape)[1];
  const int64_t height = blocks.rows ? blocks.rows : codes.rows(), width = blocks.cols ? blocks.cols : cols;
  by_code(codes.dtype, [&]<class Code>() {
    by_scale(scales.dtype, [&]<class Scale>() {
      pool.parallel_ranges(codes.rows(), row_grain(cols), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          decode_row(x.as<float>() + r * cols, codes.as<Code>() + r * cols, scales.as<Scale>() + r / height * across,
                     cols, width);
      });
    });
  });
}

}  // namespace

size_t CpuOps::scratch(const Quantize& op) const {
  const Quantizer q(op, nullptr);
  return size_t(q.bands * q.across) * sizeof(uint32_t);
}

void CpuOps::run(const Quantize& op, void* scratch) {
  const Quantizer q(op, scratch);
  if (op.x.numel() == 0) return;
  const bool whole_height = op.blocks.rows == 0;
  const int64_t grain = std::max<int64_t>(1, row_grain(q.cols) / q.height);
  by_float(op.x.dtype, [&]<class T>() {
    pool_.parallel_ranges(q.bands, grain, [&](int64_t begin, int64_t end) {
      for (int64_t band = begin; band < end; ++band) {
        q.find<T>(band);
        if (whole_height) continue;
        q.scale(band, 0, q.across);
        q.encode<T>(band, band);
      }
    });
    if (whole_height) {
    pool_.parallel_ranges(q.across, kChunkElements, [&](int64_t begin, int64_t end) {
      for (int64_t band = 1; band < q.bands; ++band)
        for (int64_t b = begin; b < end; ++b) q.most[b] = std::max(q.most[b], q.most[band * q.across + b]);
      q.scale(0, begin, end);
    });
    pool_.parallel_ranges(q.bands, grain, [&](int64_t begin, int64_t end) {
      for (int64_t band = begin; band < end; ++band) q.encode<T>(band, 0);
    });
    }
    if (op.statistics) q.measure<T>(pool_);
  });
}

size_t CpuOps::scratch(const ScaledGemm& op) const {
  const Decoded decoded(op, nullptr);
  return size_t(decoded.rest) * sizeof(float) + scratch(decoded.product);
}

void CpuOps::run(const ScaledGemm& op, void* scratch) {
  auto* memory = static_cast<float*>(scratch);
  const Decoded decoded(op, memory);
  decode(pool_, decoded.product.a, op.product.a, op.a_scales, op.a_blocks);
  decode(pool_, decoded.product.b, op.product.b, op.b_scales, op.b_blocks);
  run(decoded.product, memory + decoded.rest);
}

}  // namespace athanor
