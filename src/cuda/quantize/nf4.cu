// Dequantization of NF4 weights: the op of ops/nf4.h. Layout: flat buffers, a block per tile (flat.h); a thread's 16
// bytes of results belong to one block of 64 values. Memory bound: half a byte is read and 2 or 4 bytes are written per
// value. Not timed on a GPU yet.
#include "cuda/flat.h"
#include "cuda/kernels.h"

namespace athanor::cuda {
namespace {

struct Nf4Source {
  const uint8_t* packed;
  const float* absmax;  // null if absmax itself is quantized (nested)
  const uint8_t* nested;
  const float *nested_absmax, *map, *offset;

  __device__ __forceinline__ float absmax_of(int64_t block) const {
    if (absmax) return absmax[block];
    return __fadd_rn(__fmul_rn(map[nested[block]], nested_absmax[block / kNf4NestedBlock]), *offset);
  }
};

template <class T>
__global__ void __launch_bounds__(kTileThreads) dequantize_nf4(T* y, Nf4Source a, Nf4Table table, Flat flat) {
  ptx::wait_for_earlier_kernels();
  constexpr int kElements = kVector<T>;
  SHARED(float, values, [16]);
  if (threadIdx.x < 16) values[threadIdx.x] = table.value[threadIdx.x];
  __syncthreads();
  on_tile<kElements, 1>(flat, blockIdx.x, [&](auto tile) {
    const int64_t first = tile.at(0);
    const int left = tile.left(0);
    if (left <= 0) return;
    const float absmax = a.absmax_of(first / kNf4Block);
    float v[1][kElements] = {};
#pragma unroll
    for (int i = 0; i < kElements; i += 2) {
      if (i >= left) break;
      const uint8_t pair = a.packed[(first + i) / 2];
      v[0][i] = __fmul_rn(values[pair >> 4], absmax);
      v[0][i + 1] = __fmul_rn(values[pair & 15], absmax);
    }
    tile.store(y, v);
  });
}
}  // namespace

void run(const DequantizeNf4& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  const bool nested = op.nested();
  const Nf4Source source{.packed = data<const uint8_t>(op.packed),
                         .absmax = nested ? nullptr : data<const float>(op.absmax),
                         .nested = nested ? data<const uint8_t>(op.absmax) : nullptr,
                         .nested_absmax = data<const float>(op.nested_absmax),
                         .map = data<const float>(op.map),
                         .offset = data<const float>(op.offset)};
  by_type(op.y.dtype, [&]<class T>() {
    const Flat shape = flat(op.y, data<T>(op.y));
    CUDA_CHECK(launch(dequantize_nf4<T>, tiles<kVector<T>, 1>(shape, stream), data<T>(op.y), source, kNf4, shape));
  });
}
}  // namespace athanor::cuda
