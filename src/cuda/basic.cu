// Fill, cast, add; sums of buffers; normally distributed initial values.
// Layout: flat buffers, a block per tile (flat.h). Memory bound, each byte moves once; random values are bound by their
// double arithmetic, once per run. Not timed on a GPU yet. Deterministic: partial sums are over ranges that depend on n
// alone, in double, since squares of small gradients would vanish in f32 and those of large ones overflow.
#include "base/rng.h"
#include "cuda/flat.h"
#include "cuda/kernels.h"
#include "cuda/ranges.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kChunks = 4;  // 64 bytes of loads in flight per thread
constexpr int kMaxRanges = SumCut::kMaxRanges;
constexpr int kRangeChunks = 4;  // chunks per thread and step of a range
static_assert(kTile<kVector<float>, kRangeChunks> == SumCut::kTile);

// ---- kernels

template <class T>
__global__ void __launch_bounds__(kTileThreads) fill(T* x, T value, Flat flat) {
  ptx::wait_for_earlier_kernels();
  constexpr int kElements = kVector<T>;
  T elements[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) elements[i] = value;
  uint4 raw;
  memcpy(&raw, elements, sizeof raw);
  on_tile<kElements, kChunks>(flat, blockIdx.x, [&](auto tile) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      T* p = x + tile.at(c);
      if (tile.vector(c)) {
        st16(p, raw);
      } else {
        for (int i = 0; i < tile.left(c); ++i) p[i] = value;
      }
    }
  });
}

template <class To, class From>
__global__ void __launch_bounds__(kTileThreads) cast(To* y, const From* x, Flat flat) {
  ptx::wait_for_earlier_kernels();
  constexpr int kElements = kChunk<To, From>;
  on_tile<kElements, kChunks>(flat, blockIdx.x, [&](auto tile) {
    float v[kChunks][kElements];
    tile.load(v, x);
    tile.store(y, v);
  });
}

template <class T>
__global__ void __launch_bounds__(kTileThreads) masked_fill(T* x, const uint8_t* mask, int64_t n) {
  ptx::wait_for_earlier_kernels();
  const int64_t i = int64_t{blockIdx.x} * kTileThreads + threadIdx.x;
  if (i < n && mask[i] != 0) x[i] = T{0};
}

template <class T, class U>
__global__ void __launch_bounds__(kTileThreads) add(T* y, const T* a, const U* b, Flat flat) {
  ptx::wait_for_earlier_kernels();
  constexpr int kElements = kChunk<T, U>, kPairs = kChunks / 2;
  on_tile<kElements, kPairs>(flat, blockIdx.x, [&](auto tile) {
    float v[kPairs][kElements], w[kPairs][kElements];
    tile.load(v, a);
    tile.load(w, b);
#pragma unroll
    for (int c = 0; c < kPairs; ++c) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) v[c][i] += w[c][i];
    }
    tile.store(y, v);
  });
}

struct Summed {
  const void* x;
  Flat flat;
  int tiles;  // tiles per block
  double* out;
};

// partials[block] = sum of x, or of x^2, over the tiles of the block.
template <bool Square, class T>
__global__ void __launch_bounds__(kTileThreads)
    sum_ranges(double* partials, const __grid_constant__ Ranges<Summed> all) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  constexpr int kElements = kVector<float>;
  const int number = all.find(blockIdx.x);
  const Summed& range = all.range[number];
  const int64_t first_tile = static_cast<int64_t>(blockIdx.x - all.first_block[number]) * range.tiles;
  double sum[kElements] = {};
  for (int t = 0; t < range.tiles; ++t) {
    on_tile<kElements, kRangeChunks>(range.flat, first_tile + t, [&](auto tile) {
      float v[kRangeChunks][kElements];
      tile.load(v, static_cast<const T*>(range.x));
#pragma unroll
      for (int c = 0; c < kRangeChunks; ++c) {
#pragma unroll
        for (int i = 0; i < kElements; ++i) {
          const double value = static_cast<double>(v[c][i]);
          sum[i] += Square ? value * value : value;  // the square is exact in double
        }
      }
    });
  }
  const double total = block_reduce((sum[0] + sum[1]) + (sum[2] + sum[3]), smem, Plus{});
  if (threadIdx.x == 0) partials[blockIdx.x] = total;
}

// One block adds the partial sums of each range, in order, to its `out`.
__global__ void __launch_bounds__(kMaxRanges)
    add_sums(const double* partials, const __grid_constant__ Ranges<Summed> all) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  for (int r = 0; r < all.count; ++r) {
    double sum = 0;
    for (unsigned i = all.first_block[r] + threadIdx.x; i < all.first_block[r + 1]; i += kMaxRanges) sum += partials[i];
    const double total = block_reduce(sum, smem, Plus{});
    if (threadIdx.x == 0) *all.range[r].out += total;
  }
}

struct Normal {
  uint64_t seed, stream, first;
  float mean, std;
};
template <class T>
__global__ void __launch_bounds__(kTileThreads) fill_normal(T* x, Normal a, Flat flat) {
  ptx::wait_for_earlier_kernels();
  constexpr int kElements = kVector<float>;
  const int64_t start = (static_cast<int64_t>(blockIdx.x) * kTileThreads + static_cast<int>(threadIdx.x)) * kElements;
  float v[1][kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {  // two roundings, as in ops/basic.h
    const uint64_t index = a.first + static_cast<uint64_t>(start + i);
    v[0][i] = __fadd_rn(a.mean, __fmul_rn(a.std, random_normal(a.seed, a.stream, index)));
  }
  on_tile<kElements, 1>(flat, blockIdx.x, [&](auto tile) { tile.store(x, v); });
}

// ---- launchers

template <class T>
void fill_all(const Tensor& x, T value, cudaStream_t stream) {
  const Flat shape = flat(x, data<T>(x));
  CUDA_CHECK(launch(fill<T>, tiles<kVector<T>, kChunks>(shape, stream), data<T>(x), value, shape));
}

void add_partials(const Ranges<Summed>& table, const double* partials, cudaStream_t stream) {
  const LaunchConfig one{dim3(1), dim3(kMaxRanges), 0, stream};
  CUDA_CHECK(launch(add_sums, one, partials, table));
}

// sum_of(i): the tensor to which the sum of x[i] is added.
template <bool Square, class SumOf>
void add_to(const SumOf& sum_of, const std::vector<Tensor>& x, void* scratch, cudaStream_t stream) {
  auto* partials = static_cast<double*>(scratch);
  size_t number = 0;
  const auto add = [&](Ranges<Summed>& table, const Tensor& t) {
    double* out = data<double>(sum_of(number++));
    const SumCut cut(t.numel());
    if (cut.count > 0) table.add({t.data, flat(t, data<char>(t)), static_cast<int>(cut.tiles_each), out}, cut.count);
  };
  const auto kernel =
      !x.empty() && x.front().dtype == DType::bf16 ? sum_ranges<Square, bf16> : sum_ranges<Square, float>;
  in_tables<Summed>(x, add, [&](const Ranges<Summed>& table) {
    const LaunchConfig config{dim3(table.blocks()), dim3(kTileThreads), 0, stream};
    CUDA_CHECK(launch(kernel, config, partials, table));
    add_partials(table, partials, stream);
    partials += table.blocks();
  });
}
}  // namespace

void run(const Fill& op, void*, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  switch (op.x.dtype) {
    case DType::i32:
      return fill_all(op.x, static_cast<int32_t>(op.value), stream);
    case DType::i64:
      return fill_all(op.x, static_cast<int64_t>(op.value), stream);
    case DType::u8:
      return fill_all(op.x, static_cast<uint8_t>(op.value), stream);
    case DType::f64:
      return fill_all(op.x, static_cast<double>(op.value), stream);
    case DType::f8_e4m3:
      return fill_all(op.x, athanor::from_float<f8_e4m3>(op.value).bits, stream);
    case DType::f8_e5m2:
      return fill_all(op.x, athanor::from_float<f8_e5m2>(op.value).bits, stream);
    default:
      by_type(op.x.dtype, [&]<class T>() { fill_all(op.x, from_float<T>(op.value), stream); });
  }
}

void run(const Cast& op, void*, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  by_type(op.y.dtype, [&]<class To>() {
    by_type(op.x.dtype, [&]<class From>() {
      const Flat shape = flat(op.x, data<To>(op.y), data<From>(op.x));
      const LaunchConfig config = tiles<kChunk<To, From>, kChunks>(shape, stream);
      CUDA_CHECK(launch(cast<To, From>, config, data<To>(op.y), data<From>(op.x), shape));
    });
  });
}

void run(const MaskedFill& op, void*, cudaStream_t stream) {
  const int64_t n = op.x.numel();
  if (n == 0) return;
  const auto* mask = static_cast<const uint8_t*>(op.mask.data);
  const LaunchConfig config{dim3(grid_size(div_ceil(n, int64_t{kTileThreads}))), dim3(kTileThreads), 0, stream};
  if (size_of(op.x.dtype) == 4)
    CUDA_CHECK(launch(masked_fill<uint32_t>, config, static_cast<uint32_t*>(op.x.data), mask, n));
  else
    CUDA_CHECK(launch(masked_fill<uint16_t>, config, static_cast<uint16_t*>(op.x.data), mask, n));
}

void run(const Add& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  by_type(op.y.dtype, [&]<class T>() {
    by_type(op.b.dtype, [&]<class U>() {
      const Flat shape = flat(op.y, data<T>(op.y), data<T>(op.a), data<U>(op.b));
      const LaunchConfig config = tiles<kChunk<T, U>, kChunks / 2>(shape, stream);
      CUDA_CHECK(launch(add<T, U>, config, data<T>(op.y), data<T>(op.a), data<U>(op.b), shape));
    });
  });
}

void run(const ReduceSum& op, void* scratch, cudaStream_t stream) {
  if (op.x.dtype == DType::f32) return add_to<false>([&](size_t) { return op.out; }, {op.x}, scratch, stream);
  Ranges<Summed> doubles;
  doubles.add({.out = data<double>(op.out)}, op.x.numel());
  add_partials(doubles, data<double>(op.x), stream);
}

void run(const SquaredNorm& op, void* scratch, cudaStream_t stream) {
  add_to<true>([&](size_t i) { return op.sum_of(i); }, op.x, scratch, stream);
}

void run(const RandomNormal& op, void*, cudaStream_t stream) {
  if (op.x.numel() == 0) return;
  by_type(op.x.dtype, [&]<class T>() {
    const Flat shape = flat(op.x, data<T>(op.x));
    const Normal normal{op.seed, op.stream, op.first, op.mean, op.std};
    CUDA_CHECK(launch(fill_normal<T>, tiles<kVector<float>, 1>(shape, stream), data<T>(op.x), normal, shape));
  });
}
}  // namespace athanor::cuda
