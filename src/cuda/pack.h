// Pack: consecutive elements in registers, in their memory format; and flat kernels, in which a thread takes a few
// packs of a tensor, one block width apart. An access moves a pack of 16 bytes, or one element if rows are not 16-byte
// aligned.
#pragma once
#include "cuda/host_tools.h"
namespace athanor::cuda {

template <class T, int E>
struct Pack {
  static constexpr int kWords = (E * static_cast<int>(sizeof(T)) + 3) / 4;
  uint32_t words[kWords];
  __device__ __forceinline__ float operator[](int i) const { return element<T>(words, i); }
};

// p: global memory, 16-byte aligned unless E is 1. One access moves 16 bytes, or 8 if the pack has only 8.
template <int E, class T>
__device__ __forceinline__ Pack<T, E> load_pack(const T* p) {
  Pack<T, E> pack;
  if constexpr (E == 1) {
    const T x = *p;
    pack.words[0] = 0;
    memcpy(pack.words, &x, sizeof x);
  } else if constexpr (sizeof pack == 8) {
    const uint2 raw = ld8(p);
    pack.words[0] = raw.x;
    pack.words[1] = raw.y;
  } else {
    static_assert(sizeof pack % 16 == 0);
#pragma unroll
    for (int i = 0; i < pack.kWords / 4; ++i) {
      const uint4 raw = ld16(p + i * kVector<T>);
      pack.words[4 * i] = raw.x;
      pack.words[4 * i + 1] = raw.y;
      pack.words[4 * i + 2] = raw.z;
      pack.words[4 * i + 3] = raw.w;
    }
  }
  return pack;
}
// Stores the bits as loaded.
template <int E, class T>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, E>& pack) {
  if constexpr (E == 1) {
    T x;
    memcpy(static_cast<void*>(&x), pack.words, sizeof x);
    *p = x;
  } else if constexpr (sizeof pack == 8) {
    st8(p, {pack.words[0], pack.words[1]});
  } else {
#pragma unroll
    for (int i = 0; i < pack.kWords / 4; ++i) {
      const uint32_t* w = pack.words + 4 * i;
      st16_global(p + i * kVector<T>, {w[0], w[1], w[2], w[3]});
    }
  }
}
template <class T, int E>
__device__ __forceinline__ Pack<T, E> rounded(const float (&values)[E]) {
  Pack<T, E> pack;
  if constexpr (E == 1) {
    const T x = from_float<T>(values[0]);
    pack.words[0] = 0;
    memcpy(pack.words, &x, sizeof x);
  } else {
#pragma unroll
    for (int i = 0; i < pack.kWords; ++i) {
      if constexpr (sizeof(T) == 4) {
        pack.words[i] = __float_as_uint(values[i]);
      } else {
        pack.words[i] = word_of<T>(values[2 * i], values[2 * i + 1]);
      }
    }
  }
  return pack;
}
template <int E, class T>
__device__ __forceinline__ void store_values(T* p, const float (&values)[E]) {
  store_pack(p, rounded<T>(values));
}

// Weights, whose type is known at run time only; all threads of a warp take the same branch.
struct Weights {
  const void* data;
  DType dtype;
};
template <int E>
__device__ __forceinline__ void load_weights(float (&values)[E], const Weights& w, int column) {
  const auto load = [&]<class W>(const W* p) {
    const Pack<W, E> pack = load_pack<E>(p + column);
#pragma unroll
    for (int i = 0; i < E; ++i) values[i] = pack[i];
  };
  if (w.dtype == DType::f32) {
    load(static_cast<const float*>(w.data));
  } else if (w.dtype == DType::bf16) {
    load(static_cast<const bf16*>(w.data));
  } else {
    load(static_cast<const fp16*>(w.data));
  }
}

// ---- flat kernels

constexpr int kFlatThreads = 256;

// Index of this thread's first pack; the next ones follow at distances of kFlatThreads.
template <int PacksPerThread>
__device__ __forceinline__ unsigned first_pack() {
  return blockIdx.x * static_cast<unsigned>(kFlatThreads * PacksPerThread) + threadIdx.x;
}

// Calls visit(k, at) for the thread's k-th pack, whose index is `at`; packs: number of all.
template <int PacksPerThread, class F>
__device__ __forceinline__ void for_packs(unsigned packs, F visit) {
  const unsigned first = first_pack<PacksPerThread>();
#pragma unroll
  for (int k = 0; k < PacksPerThread; ++k) {
    const unsigned at = first + k * kFlatThreads;
    if (at < packs) visit(k, at);
  }
}

template <int PacksPerThread>
LaunchConfig flat_launch(const char* op, int64_t packs, cudaStream_t stream) {
  CHECK(packs < int64_t{1} << 31, op, ": ", packs, " accesses are beyond 32-bit indices; use fewer rows");
  return {dim3(grid_size(div_ceil<int64_t>(packs, kFlatThreads * PacksPerThread))), dim3(kFlatThreads), 0, stream};
}

// Whether length and strides, in elements of T, are whole 16-byte packs, and addresses are 16-byte aligned.
template <class T, class... N>
bool in_packs(N... elements) {
  return ((static_cast<int64_t>(elements) % kVector<T> == 0) && ...);
}
template <class... P>
bool aligned16(const P*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

// Calls f.operator()<T, E>() with T as by_type(), and E = kVector<T> if fits.operator()<T>(), else 1.
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
