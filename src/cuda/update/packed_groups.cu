// Vectors in 4 or 8 bits per element: a thread has 8 neighbouring elements, so 8 threads share a group and 4 a Hadamard
// transform; rounded as on the CPU. Memory bound: PackGroups reads x and `minus`, SumGroups 9/16 or 17/16 bytes per
// vector and element, and writes y. Not timed on a GPU yet.
#include "cuda/host_tools.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/quantize/encode.h"

namespace athanor::cuda {
namespace {

constexpr int kPackThreads = 256;
constexpr int kThreadsOfGroup = static_cast<int>(kPackedGroup / kElements);

struct Fp4 {
  static constexpr float kMost = f4_e2m1::kMost;
  using Words = uint32_t[1];
  using Group = PackedGroup<4>;
  __device__ __forceinline__ static void encode(Words& words, const float (&v)[kElements]) {
    words[0] = 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) words[0] |= static_cast<uint32_t>(e2m1_code(v[i])) << (4 * i);
  }
  __device__ __forceinline__ static float value(const Words& words, int i) { return e2m1_value(words[0] >> (4 * i)); }
};
struct Fp8 {
  static constexpr float kMost = f8_e4m3::kMost;
  using Words = uint32_t[2];
  using Group = PackedGroup<8>;
  __device__ __forceinline__ static void encode(Words& words, const float (&v)[kElements]) {
    const uint2 pair = code_words(v, false);
    words[0] = pair.x, words[1] = pair.y;
  }
  __device__ __forceinline__ static float value(const Words& words, int i) {
    return e4m3_value(static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4))));
  }
};
template <class Format>
constexpr int kWords = sizeof(typename Format::Words) / sizeof(uint32_t);

// Hadamard transform of the elements of 4 neighbouring threads; all lanes call it.
__device__ __forceinline__ void rotate(float (&v)[kElements]) {
#pragma unroll
  for (int apart = 1; apart < kElements; apart *= 2) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (i & apart) continue;
      const float a = v[i], b = v[i + apart];
      v[i] = __fadd_rn(a, b);
      v[i + apart] = __fsub_rn(a, b);
    }
  }
  for (int lanes = 1; lanes < static_cast<int>(kRotated) / kElements; lanes *= 2) {
    const bool upper = (static_cast<int>(threadIdx.x) & lanes) != 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const float other = __shfl_xor_sync(~0u, v[i], lanes);
      v[i] = upper ? __fsub_rn(other, v[i]) : __fadd_rn(v[i], other);
    }
  }
}

template <class Format, class T>
__global__ void __launch_bounds__(kPackThreads)
    pack_groups(typename Format::Group* groups, const T* x, const T* minus, int64_t n, bool rotated) {
  ptx::wait_for_earlier_kernels();
  const int64_t thread = int64_t{blockIdx.x} * kPackThreads + static_cast<int>(threadIdx.x), first = thread * kElements;
  float v[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    v[i] = first + i < n ? to_float(x[first + i]) : 0.f;
    if (minus && first + i < n) v[i] = __fsub_rn(v[i], to_float(minus[first + i]));
  }
  if (rotated) rotate(v);
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kElements; ++i) most = Max{}(most, magnitude(v[i]));
  const Scaled s = scaled(over_lanes(most, static_cast<int>(kPackedGroup)), {.most_code = Format::kMost});
#pragma unroll
  for (int i = 0; i < kElements; ++i) v[i] = __fmul_rn(v[i], s.factor);
  typename Format::Words words;
  Format::encode(words, v);
  if (thread / kThreadsOfGroup >= packed_groups(n)) return;
  auto& group = groups[thread / kThreadsOfGroup];
#pragma unroll
  for (int k = 0; k < kWords<Format>; ++k) group.values[thread % kThreadsOfGroup * kWords<Format> + k] = words[k];
  if (thread % kThreadsOfGroup == 0) group.scale = s.scale;
}

template <class Format, class T>
__global__ void __launch_bounds__(kPackThreads)
    sum_groups(T* y, const typename Format::Group* groups, int64_t n, int count, bool rotated, bool accumulates) {
  ptx::wait_for_earlier_kernels();
  const int64_t thread = int64_t{blockIdx.x} * kPackThreads + static_cast<int>(threadIdx.x), first = thread * kElements;
  const int64_t of_vector = packed_groups(n), g = thread / kThreadsOfGroup;
  float sum[kElements] = {};
  for (int k = 0; g < of_vector && k < count; ++k) {
    const auto& group = groups[k * of_vector + g];
    typename Format::Words words;
#pragma unroll
    for (int w = 0; w < kWords<Format>; ++w) words[w] = group.values[thread % kThreadsOfGroup * kWords<Format> + w];
    const float scale = group.scale;
#pragma unroll
    for (int i = 0; i < kElements; ++i) sum[i] = __fadd_rn(sum[i], __fmul_rn(Format::value(words, i), scale));
  }
  if (rotated) {
    rotate(sum);
#pragma unroll
    for (int i = 0; i < kElements; ++i) sum[i] = __fmul_rn(sum[i], 1.f / kRotated);
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (first + i >= n) continue;
    y[first + i] = from_float<T>(accumulates ? __fadd_rn(to_float(y[first + i]), sum[i]) : sum[i]);
  }
}

LaunchConfig by_groups(int64_t n, cudaStream_t stream) {
  const int64_t threads = packed_groups(n) * kThreadsOfGroup;
  return {dim3(grid_size(div_ceil(threads, int64_t{kPackThreads}))), dim3(kPackThreads), 0, stream};
}

template <class Format, class T>
void launch_pack(const PackGroups& op, cudaStream_t stream) {
  const int64_t n = op.x.numel();
  auto* groups = reinterpret_cast<typename Format::Group*>(data<uint8_t>(op.groups));
  const T* minus = op.minus ? data<const T>(op.minus) : nullptr;
  CUDA_CHECK(launch(pack_groups<Format, T>, by_groups(n, stream), groups, data<const T>(op.x), minus, n, op.rotated));
}
template <class Format, class T>
void launch_sum(const SumGroups& op, cudaStream_t stream) {
  const int64_t n = op.y.numel();
  const auto* groups = reinterpret_cast<const typename Format::Group*>(data<uint8_t>(op.groups));
  CUDA_CHECK(launch(sum_groups<Format, T>, by_groups(n, stream), data<T>(op.y), groups, n, op.count, op.rotated,
                    op.accumulates));
}

}  // namespace

void run(const PackGroups& op, void*, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  const bool fp4 = op.format == DType::f4_e2m1;
  if (op.x.dtype == DType::bf16)
    fp4 ? launch_pack<Fp4, bf16>(op, stream) : launch_pack<Fp8, bf16>(op, stream);
  else
    fp4 ? launch_pack<Fp4, float>(op, stream) : launch_pack<Fp8, float>(op, stream);
}

void run(const SumGroups& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  const bool fp4 = op.format == DType::f4_e2m1;
  if (op.y.dtype == DType::bf16)
    fp4 ? launch_sum<Fp4, bf16>(op, stream) : launch_sum<Fp8, bf16>(op, stream);
  else
    fp4 ? launch_sum<Fp4, float>(op, stream) : launch_sum<Fp8, float>(op, stream);
}
}  // namespace athanor::cuda
