// Access of update rules to flat buffers: a thread has eight consecutive elements of a tile, whatever their types; and
// the random bits of these elements.
#pragma once
#include "base/rng.h"
#include "cuda/flat.h"
#include "tensor/half.h"
namespace athanor::cuda {

constexpr int kElements = 8;  // elements per thread
constexpr int64_t kTileElements = kElements * kTileThreads;

// ---- eight consecutive elements

// An int16_t is the lower half of an f32; it is held as a signed integer in the bits of a float.
template <class T>
__device__ __forceinline__ float widened(const uint32_t* words, int i) {
  if constexpr (std::is_same_v<T, int16_t>) {
    return __int_as_float(static_cast<int>(i % 2 ? words[i / 2] : words[i / 2] << 16) >> 16);
  } else {
    return element<T>(words, i);
  }
}
template <class T>
__device__ __forceinline__ uint32_t narrowed(float first, float second) {
  if constexpr (std::is_same_v<T, int16_t>) {
    return (__float_as_uint(first) & 0xffffu) | __float_as_uint(second) << 16;
  } else {
    return word_of<T>(first, second);
  }
}
template <class T>
__device__ __forceinline__ float widened(T x) {
  if constexpr (std::is_same_v<T, int16_t>) {
    return __int_as_float(x);
  } else {
    return to_float(x);
  }
}
template <class T>
__device__ __forceinline__ T narrowed(float x) {
  if constexpr (std::is_same_v<T, int16_t>) {
    return static_cast<int16_t>(__float_as_uint(x));
  } else {
    return from_float<T>(x);
  }
}

// settled() and joined() of tensor/half.h, with all values held in floats.
__device__ __forceinline__ float settled(float x) {
  unsigned bits = __float_as_uint(x);
  settle_word(bits);
  return __uint_as_float(bits);
}
__device__ __forceinline__ float joined(float rounding, float rest) {
  return __uint_as_float(__float_as_uint(rounding) + __float_as_uint(rest));
}

// Eight floats are two 16-byte accesses of a thread. To fill whole sectors, two neighbouring threads access their first
// halves together, then their second halves, and exchange them by shuffles.
__device__ __forceinline__ bool is_odd() { return threadIdx.x % 2 == 1; }
__device__ __forceinline__ const float* shared_half(const float* p) { return is_odd() ? p - 4 : p; }
__device__ __forceinline__ void swap_with_neighbour(uint4& first, uint4& second) {
  const bool odd = is_odd();
  const uint4 give = odd ? first : second;
  const uint4 got = {__shfl_xor_sync(~0u, give.x, 1), __shfl_xor_sync(~0u, give.y, 1), __shfl_xor_sync(~0u, give.z, 1),
                     __shfl_xor_sync(~0u, give.w, 1)};
  first = odd ? got : first;
  second = odd ? second : got;
}

// A thread's elements of a tile. Whole: all eight exist, and every buffer starts on a 16-byte boundary.
template <bool Whole>
struct Vec8 {
  int64_t first;
  int count;

  template <class T>
  __device__ __forceinline__ void load(float (&x)[kElements], const T* p) const {
    if constexpr (!Whole) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = i < count ? widened<T>(p[first + i]) : 0.f;
    } else if constexpr (sizeof(T) == 2) {
      const uint4 raw = ld16(p + first);
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = widened<T>(words, i);
    } else {
      const float* mine = shared_half(p + first);
      uint4 a = ld16(mine), b = ld16(mine + 8);
      swap_with_neighbour(a, b);
      const uint32_t words[kElements] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < kElements; ++i) x[i] = __uint_as_float(words[i]);
    }
  }
  template <class T>
  __device__ __forceinline__ void store(T* p, const float (&x)[kElements]) const {
    if constexpr (!Whole) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if (i < count) p[first + i] = narrowed<T>(x[i]);
      }
    } else if constexpr (sizeof(T) == 2) {
      st16(p + first,
           {narrowed<T>(x[0], x[1]), narrowed<T>(x[2], x[3]), narrowed<T>(x[4], x[5]), narrowed<T>(x[6], x[7])});
    } else {
      uint32_t words[kElements];
#pragma unroll
      for (int i = 0; i < kElements; ++i) words[i] = __float_as_uint(x[i]);
      uint4 a = {words[0], words[1], words[2], words[3]}, b = {words[4], words[5], words[6], words[7]};
      swap_with_neighbour(a, b);
      auto* mine = const_cast<float*>(shared_half(p + first));
      st16(mine, a);
      st16(mine + 8, b);
    }
  }
  __device__ __forceinline__ void clear(bf16* p) const {
    if constexpr (Whole) {
      st16(p + first, {0, 0, 0, 0});
    } else {
      for (int i = 0; i < count; ++i) p[first + i] = from_float<bf16>(0.f);
    }
  }
  __device__ __forceinline__ void clear(float* p) const {
    if constexpr (Whole) {
      auto* mine = const_cast<float*>(shared_half(p + first));
      st16(mine, {0, 0, 0, 0});
      st16(mine + 8, {0, 0, 0, 0});
    } else {
      for (int i = 0; i < count; ++i) p[first + i] = 0.f;
    }
  }
};

struct Extent {
  int64_t n;
  bool vectors;  // every buffer starts on a 16-byte boundary
};
template <class... P>
Extent extent(int64_t n, const P*... buffers) {
  return {n, ((reinterpret_cast<uintptr_t>(buffers) % 16 == 0) && ...)};
}

// Calls work(Vec8) for this thread in tile `number`.
template <class Work>
__device__ __forceinline__ void on_vec8(const Extent& extent, int64_t number, Work work) {
  const int64_t start = number * kTileElements, first = start + static_cast<int>(threadIdx.x) * kElements;
  if (extent.vectors && start + kTileElements <= extent.n) {
    work(Vec8<true>{first, kElements});
  } else {
    const int64_t left = extent.n - first;
    work(Vec8<false>{first, left < kElements ? static_cast<int>(left) : kElements});
  }
}
inline int64_t tiles_of(int64_t n) { return div_ceil(n, kTileElements); }

// A gradient, f32 or bf16; all threads of a launch take the same branch.
struct Gradient {
  void* data;
  bool halved;
  template <class Work>
  __device__ __forceinline__ void by_type(Work work) const {
    if (halved) {
      work(static_cast<bf16*>(data));
    } else {
      work(static_cast<float*>(data));
    }
  }
  template <class O>
  __device__ __forceinline__ void load(const O& vec8, float (&g)[kElements]) const {
    by_type([&](auto* p) { vec8.load(g, p); });
  }
  template <class O>
  __device__ __forceinline__ void store(const O& vec8, const float (&g)[kElements]) const {
    by_type([&](auto* p) { vec8.store(p, g); });
  }
  template <class O>
  __device__ __forceinline__ void clear(const O& vec8) const {
    by_type([&](auto* p) { vec8.clear(p); });
  }
};
inline Gradient gradient_of(const Tensor& t) { return {t.data, t.dtype == DType::bf16}; }

// ---- random bits

// bits[k] = random_bits(seed, stream, index + k), from one Philox block or two.
__device__ __forceinline__ void random_words(uint32_t (&bits)[4], uint64_t seed, uint64_t stream, uint64_t index) {
  const PhiloxBlock block = philox(seed, stream, index / 4);
#pragma unroll
  for (int k = 0; k < 4; ++k) bits[k] = block.word[k];
  const int skip = static_cast<int>(index % 4);
  if (skip == 0) return;
  const PhiloxBlock next = philox(seed, stream, index / 4 + 1);
#pragma unroll
  for (int turn = 0; turn < 3; ++turn) {
    if (turn >= skip) continue;
    bits[0] = bits[1];
    bits[1] = bits[2];
    bits[2] = bits[3];
    bits[3] = next.word[turn];
  }
}

// round_stochastic() of tensor/half.h, with the result as f32.
__device__ __forceinline__ float round_stochastic(float x, uint32_t random16) {
  unsigned bits = __float_as_uint(x);
  round_word(bits, random16);
  return __uint_as_float(bits);
}
}  // namespace athanor::cuda
