// Pack: neighbouring elements in registers, as they lie in memory; and flat kernels, in which a thread takes a few packs
// of a tensor, a block's width apart. One access moves a pack of 16 bytes, or one element where 16 bytes do not fit.
#pragma once
#include "cuda/host_tools.h"
namespace athanor::cuda {

template <class T, int E>
struct Pack {
  T elements[E];
  __device__ __forceinline__ float operator[](int i) const { return to_float(elements[i]); }
  __device__ __forceinline__ void set(int i, float x) { elements[i] = from_float<T>(x); }
};

// p is aligned to 16 bytes unless E is 1; several accesses where E elements take more.
template <int E, class T>
__device__ __forceinline__ Pack<T, E> load_pack(const T* p) {
  Pack<T, E> pack;
  if constexpr (E == 1) {
    pack.elements[0] = *p;
  } else {
    static_assert(sizeof pack % 16 == 0);
#pragma unroll
    for (int i = 0; i < E; i += kVector<T>) {
      const uint4 raw = ld16(p + i);
      memcpy(static_cast<void*>(pack.elements + i), &raw, sizeof raw);
    }
  }
  return pack;
}
template <int E, class T>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, E>& pack) {
  if constexpr (E == 1) {
    *p = pack.elements[0];
  } else {
#pragma unroll
    for (int i = 0; i < E; i += kVector<T>) {
      uint4 raw;
      memcpy(&raw, pack.elements + i, sizeof raw);
      st16(p + i, raw);
    }
  }
}

// ---- flat kernels

constexpr int kFlatThreads = 256;

// Number of this thread's first pack; the next ones are kFlatThreads further each.
template <int PacksPerThread>
__device__ __forceinline__ unsigned first_pack() {
  return blockIdx.x * static_cast<unsigned>(kFlatThreads * PacksPerThread) + threadIdx.x;
}

template <int PacksPerThread>
LaunchConfig flat_launch(const char* op, int64_t packs, cudaStream_t stream) {
  CHECK(packs < int64_t{1} << 31, op, ": ", packs, " accesses are beyond 32-bit indices; use fewer rows");
  return {dim3(grid_size(div_ceil<int64_t>(packs, kFlatThreads * PacksPerThread))), dim3(kFlatThreads), 0, stream};
}

// A length and distances, in elements of T, that are whole packs of 16 bytes; addresses on such a boundary.
template <class T, class... N>
bool in_packs(N... elements) {
  return ((static_cast<int64_t>(elements) % kVector<T> == 0) && ...);
}
template <class... P>
bool aligned16(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// f.operator()<T, E>() with T as by_type() and E = kVector<T> if f agrees that packs fit: fits.operator()<T>().
template <class Fits, class F>
void by_pack(DType dtype, Fits fits, F f) {
  by_type(dtype, [&]<class T>() {
    if (fits.template operator()<T>()) {
      f.template operator()<T, kVector<T>>();
    } else {
      f.template operator()<T, 1>();
    }
  });
}
}  // namespace athanor::cuda
