// Sums over workers of vectors in 4 bits per element: a thread has 8 neighbouring elements, so 8 threads share a group;
// rounded as on the CPU. Memory bound: PackFp4 reads 4 bytes per element, SumFp4 9/16 bytes per worker and writes 4.
// Not timed on a GPU yet.
#include "cuda/update/fp4_sum.h"

#include "cuda/host_tools.h"
#include "cuda/launch.h"
#include "cuda/quantize/encode.h"

namespace athanor::cuda {
namespace {

constexpr int kFp4Threads = 256;
constexpr int kWordsOfGroup = static_cast<int>(kFp4Group / kElements);

__global__ void __launch_bounds__(kFp4Threads) pack_fp4(Fp4Record* records, const float* x, int64_t n) {
  ptx::wait_for_earlier_kernels();
  const int64_t word = int64_t{blockIdx.x} * kFp4Threads + static_cast<int>(threadIdx.x), first = word * kElements;
  float v[kElements];
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    v[i] = first + i < n ? x[first + i] : 0.f;
    most = Max{}(most, magnitude(v[i]));
  }
  const Scaled s = scaled(over_lanes(most, static_cast<int>(kFp4Group)), {.most_code = f4_e2m1::kMost});
  uint32_t values = 0;
#pragma unroll
  for (int i = 0; i < kElements; ++i) values |= static_cast<uint32_t>(e2m1_code(__fmul_rn(v[i], s.factor))) << (4 * i);
  if (word / kWordsOfGroup >= fp4_groups(n)) return;
  Fp4Record& record = records[word / kWordsOfGroup];
  record.values[word % kWordsOfGroup] = values;
  if (word % kWordsOfGroup == 0) record.scale = s.scale;
}

__global__ void __launch_bounds__(kFp4Threads) sum_fp4(float* y, const Fp4Record* records, int64_t n, int workers) {
  ptx::wait_for_earlier_kernels();
  const int64_t word = int64_t{blockIdx.x} * kFp4Threads + static_cast<int>(threadIdx.x), first = word * kElements;
  if (first >= n) return;
  const int64_t groups = fp4_groups(n);
  float sum[kElements] = {};
  for (int w = 0; w < workers; ++w) {
    const Fp4Record& record = records[w * groups + word / kWordsOfGroup];
    const uint32_t values = record.values[word % kWordsOfGroup];
    const float scale = record.scale;
#pragma unroll
    for (int i = 0; i < kElements; ++i) sum[i] = __fadd_rn(sum[i], __fmul_rn(e2m1_value(values >> (4 * i)), scale));
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    if (first + i < n) y[first + i] = sum[i];
}

LaunchConfig by_words(int64_t n, cudaStream_t stream) {
  return {dim3(grid_size(div_ceil(fp4_groups(n) * kWordsOfGroup, int64_t{kFp4Threads}))), dim3(kFp4Threads), 0, stream};
}
}  // namespace

void run(const PackFp4& op, void*, cudaStream_t stream) {
  const int64_t n = op.x.numel();
  if (n == 0) return;
  auto* records = reinterpret_cast<Fp4Record*>(data<uint8_t>(op.records));
  CUDA_CHECK(launch(pack_fp4, by_words(n, stream), records, data<float>(op.x), n));
}

void run(const SumFp4& op, void*, cudaStream_t stream) {
  const int64_t n = op.y.numel();
  if (n == 0) return;
  const auto* records = reinterpret_cast<const Fp4Record*>(data<uint8_t>(op.records));
  CUDA_CHECK(launch(sum_fp4, by_words(n, stream), data<float>(op.y), records, n, op.workers));
}
}  // namespace athanor::cuda
