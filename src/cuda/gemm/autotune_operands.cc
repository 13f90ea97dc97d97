#include "cuda/gemm/autotune_operands.h"

#include <algorithm>
#include <cstddef>

#include "base/rng.h"
#include "tensor/half.h"
namespace athanor::cuda {
namespace {

constexpr size_t kRandomBytes = size_t{256} << 10;  // distinct random values, then repeated
constexpr int64_t kMostCopies = 8;

}  // namespace

AutotuneMatrix::AutotuneMatrix(DType dtype, int64_t elements, int align)
    : dtype_(dtype),
      bytes_(static_cast<size_t>(elements) * size_of(dtype)),
      memory_(bytes_ + kMostAlign),
      offset_(align % kMostAlign) {
  fill();
}

void AutotuneMatrix::fill() {
  std::vector<std::byte> block(std::min(bytes_, kRandomBytes));
  const auto draw = [&]<class T>() {
    T* numbers = reinterpret_cast<T*>(block.data());
    for (size_t i = 0; i < block.size() / sizeof(T); ++i)
      numbers[i] = from_float<T>(2 * random_uniform(0, stream_of("gemm search"), i) - 1);
  };
  is_code(dtype_) ? by_code(dtype_, draw) : by_float(dtype_, draw);
  if (bytes_ == 0) return;
  CUDA_CHECK(cudaMemcpy(data(), block.data(), block.size(), cudaMemcpyDefault));
  for (size_t at = block.size(); at < bytes_; at *= 2)  // each copy doubles the filled part
    CUDA_CHECK(cudaMemcpy(data() + at, data(), std::min(at, bytes_ - at), cudaMemcpyDefault));
}

AutotuneOperands::AutotuneOperands(const LibraryGemm& gemm, size_t scratch_bytes)
    : gemm_(gemm), scratch_(scratch_bytes), positions_(gemm.op.positions.bytes()) {
  const Gemm& op = gemm.op;
  int device = 0, cache = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device));
  const GemmProblem p = problem_of(op);
  const int64_t a = op.a.rows() * p.stride_a, b = op.b.rows() * p.stride_b, d = p.m * p.stride_d;
  const int64_t aux = op.aux ? op.aux.numel() : 0;
  const auto bytes = [](DType dtype, int64_t n) { return n * static_cast<int64_t>(size_of(dtype)); };
  const int64_t once = bytes(p.a, a) + bytes(p.b, b) + bytes(p.d, d) + bytes(op.aux.dtype, aux);
  const int64_t copies = std::clamp<int64_t>(div_ceil<int64_t>(2 * int64_t{cache}, once), 1, kMostCopies);
  // FP4 values are packed two per byte; one-byte scales may have any value.
  const auto factor = [](DType dtype, int64_t n, int align) {
    return dtype == DType::f4_e2m1 ? AutotuneMatrix(DType::f8_e4m3, n / 2, align) : AutotuneMatrix(dtype, n, align);
  };
  const auto scales = [](ScaleLayout layout, int64_t outer, int64_t k) {
    const int64_t size = scale_bytes(layout, outer, k);
    return in_tiles(layout) ? AutotuneMatrix(DType::f8_e4m3, size, kMostAlign)
                            : AutotuneMatrix(DType::f32, size / 4, kMostAlign);
  };
  for (int64_t i = 0; i < copies; ++i)
    copies_.push_back({factor(p.a, a, p.align_a),
                       factor(p.b, b, p.align_b),
                       {p.d, d, p.align_d},
                       {p.d, p.n, p.align_d},
                       {op.aux.dtype, aux, op.sums() ? kMostAlign : p.align_d},
                       scales(gemm.a_layout, p.m, p.k),
                       scales(gemm.b_layout, p.n, p.k),
                       {DType::f32, gemm.a_layout == ScaleLayout::tiles16 ? 4 : 0, kMostAlign}});
  if (op.positions) {
    const std::vector<int32_t> positions = positions_to_measure(p.m, op.aux.rows());
    CUDA_CHECK(cudaMemcpy(positions_.data(), positions.data(), op.positions.bytes(), cudaMemcpyDefault));
  }
  CUDA_CHECK(cudaDeviceSynchronize());  // copies from pageable memory are not ordered before other streams
}

LibraryGemm AutotuneOperands::next() { return on(copies_[next_copy_++ % copies_.size()]); }

LibraryGemm AutotuneOperands::fresh() {
  Copy& copy = copies_.front();
  copy.d.fill(), copy.aux.fill();
  CUDA_CHECK(cudaDeviceSynchronize());
  return on(copy);
}

LibraryGemm AutotuneOperands::on(const Copy& copy) const {
  LibraryGemm gemm = gemm_;
  Gemm& op = gemm.op;
  op.a.data = copy.a.data();
  op.b.data = copy.b.data();
  op.d.data = copy.d.data();
  if (op.bias) op.bias.data = copy.bias.data();
  if (op.aux) op.aux.data = copy.aux.data();
  if (op.positions) op.positions.data = positions_.data();
  gemm.a_scales = copy.a_scales.data();
  gemm.b_scales = copy.b_scales.data();
  if (gemm.a_layout == ScaleLayout::tiles16) {
    gemm.scalars = reinterpret_cast<GemmScalars*>(copy.scalars.data());
    gemm.a_global = reinterpret_cast<const float*>(gemm.scalars + 1);
    gemm.b_global = gemm.a_global + 1;
  }
  return gemm;
}

}  // namespace athanor::cuda
