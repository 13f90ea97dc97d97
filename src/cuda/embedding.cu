// Embedding look-up and its gradient; patches of images; gather and scatter of rows by index.
// Layout: flat packs of 16 bytes where rows allow them. Forward, gather and scatter are memory bound: each row is read
// and written once. The gradient sorts rows by token, then a block sums kRun consecutive rows in registers; sums of a
// token that began in an earlier run go through scratch memory to a second launch, so that frequent tokens use many
// blocks. With a sharded vocabulary, tokens of other ranks give zeros in forward; in the gradient they are sorted last
// and skipped.
// Deterministic: the order of all sums depends on the tokens alone. Not timed on a GPU yet.
#include <algorithm>

#include "cuda/index_sort.h"
#include "cuda/kernels.h"
#include "cuda/pack.h"

namespace athanor::cuda {
namespace {

// ---- gather and scatter of rows

constexpr int kMoves = 4;  // moves per thread

template <class U>
__device__ __forceinline__ U load_unit(const U* p) {
  return *p;
}
__device__ __forceinline__ uint4 load_unit(const uint4* p) { return ld16(p); }
template <class U>
__device__ __forceinline__ void store_unit(U* p, U unit) {
  *p = unit;
}
__device__ __forceinline__ void store_unit(uint4* p, uint4 unit) { st16_global(p, unit); }

// Sizes and strides are in units U: 16, 4, 2 or 1 bytes.
template <class U>
struct Moves {
  U* to;
  const U* from;
  const int* rows;
  int64_t to_stride, from_stride;
  unsigned row_units, units;
  bool scatter;  // `rows` indexes `to`, else `from`
};

template <class U>
__global__ void __launch_bounds__(kFlatThreads) move_rows(Moves<U> a) {
  ptx::wait_for_earlier_kernels();
  U unit[kMoves];
  int64_t to[kMoves];
  for_packs<kMoves>(a.units, [&](int k, unsigned at) {
    const unsigned row = at / a.row_units, column = at % a.row_units;
    const int64_t chosen = a.rows[row];
    unit[k] = load_unit(a.from + (a.scatter ? row : chosen) * a.from_stride + column);
    to[k] = (a.scatter ? chosen : row) * a.to_stride + column;
  });
  for_packs<kMoves>(a.units, [&](int k, unsigned) { store_unit(a.to + to[k], unit[k]); });
}

struct Move {
  const char* op;
  Tensor to, from, rows;
  bool scatter;
};

template <class U>
void launch_move(const Move& m, cudaStream_t stream) {
  const int64_t size = static_cast<int64_t>(size_of(m.to.dtype)), unit = sizeof(U);
  const int64_t row_units = m.to.cols() * size / unit, units = row_units * m.rows.numel();
  const auto config = flat_launch<kMoves>(m.op, units, stream);
  const Moves<U> a{data<U>(m.to),
                   data<U>(m.from),
                   data<int>(m.rows),
                   m.to.stride() * size / unit,
                   m.from.stride() * size / unit,
                   static_cast<unsigned>(row_units),
                   static_cast<unsigned>(units),
                   m.scatter};
  CUDA_CHECK(launch(move_rows<U>, config, a));
}

void move(const Move& m, cudaStream_t stream) {
  if (m.rows.numel() == 0 || m.to.cols() == 0) return;
  const auto fits = [&](int64_t unit) {  // unit: a power of two
    const int64_t size = static_cast<int64_t>(size_of(m.to.dtype));
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(m.to.data)) |
                         static_cast<int64_t>(reinterpret_cast<uintptr_t>(m.from.data));
    return ((address | m.to.cols() * size | m.to.stride() * size | m.from.stride() * size) & (unit - 1)) == 0;
  };
  if (fits(16)) return launch_move<uint4>(m, stream);
  if (fits(4)) return launch_move<uint32_t>(m, stream);
  if (fits(2)) return launch_move<uint16_t>(m, stream);
  launch_move<uint8_t>(m, stream);
}

// ---- patches of images

template <class T>
struct Patches {
  T* y;
  const uint8_t* pixels;
  PatchShape shape;
  int64_t rows, elements;  // rows: 1 + patches of an image
  float scale[kMaxImageChannels], shift[kMaxImageChannels];
};

// One element per thread. Unverified: no GPU has run it.
template <class T>
__global__ void __launch_bounds__(kFlatThreads) cut_patches(Patches<T> a) {
  ptx::wait_for_earlier_kernels();
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kFlatThreads + static_cast<int>(threadIdx.x);
  if (at >= a.elements) return;
  const int64_t row = at / a.shape.columns(), column = at % a.shape.columns();
  const int64_t image = row / a.rows, patch = row % a.rows - 1;
  float value = 0.f;
  if (patch >= 0) {
    const int64_t channel = a.shape.channel(column), size = a.shape.channels * a.shape.height * a.shape.width;
    value =
        a.scale[channel] * static_cast<float>(a.pixels[image * size + a.shape.pixel(patch, column)]) + a.shift[channel];
  }
  a.y[at] = from_float<T>(value);
}

// ---- token and position

constexpr int kSums = 2;  // packs per thread

template <class T>
struct LookUp {
  T* y;
  const T *wte, *wpe;
  const int *tokens, *positions;
  unsigned row_packs, packs;
};

template <class T, int E>
__global__ void __launch_bounds__(kFlatThreads) add_embeddings(LookUp<T> a) {
  ptx::wait_for_earlier_kernels();
  Pack<T, E> token[kSums], position[kSums];
  for_packs<kSums>(a.packs, [&](int k, unsigned at) {
    const unsigned row = at / a.row_packs, column = at % a.row_packs;
    token[k] = load_pack<E>(a.wte + (static_cast<int64_t>(a.tokens[row]) * a.row_packs + column) * E);
    position[k] = load_pack<E>(a.wpe + (static_cast<int64_t>(a.positions[row]) * a.row_packs + column) * E);
  });
  for_packs<kSums>(a.packs, [&](int k, unsigned at) {
    float sum[E];
#pragma unroll
    for (int i = 0; i < E; ++i) sum[i] = token[k][i] + position[k][i];
    store_values(a.y + static_cast<size_t>(at) * E, sum);
  });
}

// Tokens [first, first + count) of the vocabulary, this rank's shard, are the rows of wte; other tokens give zeros. wpe
// may be null.
template <class T, int E>
__global__ void __launch_bounds__(kFlatThreads) look_up_part(LookUp<T> a, int token_first, unsigned token_count) {
  ptx::wait_for_earlier_kernels();
  Pack<T, E> token[kSums], position[kSums];
  bool here[kSums];
  for_packs<kSums>(a.packs, [&](int k, unsigned at) {
    const unsigned row = at / a.row_packs, column = at % a.row_packs;
    const int wanted = a.tokens[row] - token_first;
    here[k] = static_cast<unsigned>(wanted) < token_count;
    if (here[k]) token[k] = load_pack<E>(a.wte + (static_cast<int64_t>(wanted) * a.row_packs + column) * E);
    if (a.wpe) position[k] = load_pack<E>(a.wpe + (static_cast<int64_t>(a.positions[row]) * a.row_packs + column) * E);
  });
  for_packs<kSums>(a.packs, [&](int k, unsigned at) {
    float sum[E];
#pragma unroll
    for (int i = 0; i < E; ++i) {
      sum[i] = here[k] ? token[k][i] : 0.f;
      if (a.wpe) sum[i] += position[k][i];
    }
    store_values(a.y + static_cast<size_t>(at) * E, sum);
  });
}

// ---- gradient

constexpr int kRun = kEmbeddingRun;
constexpr int kRowsInFlight = 8;

template <class G>
struct Runs {
  G* grad;          // [V, C]
  float* partials;  // [runs, C]: sums of a run's first rows if their token began in an earlier run
  SortedIndices sorted;
  int rows, columns;
  int last;  // rows with this index or a larger one, sorted to the end, are skipped

  __device__ __forceinline__ int token(int run) const { return sorted.index[run * kRun]; }
  __device__ __forceinline__ bool continues(int run) const {
    return run > 0 && sorted.index[run * kRun - 1] == token(run);
  }
};

// A thread sums E columns: 4, so that neighbouring threads access whole lines of the gradient, or 1.
template <class T, class G, int E>
__global__ void __launch_bounds__(kFlatThreads) sum_runs(Runs<G> a, const T* dy) {
  ptx::wait_for_earlier_kernels();
  const int run = static_cast<int>(blockIdx.x);
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * E;
  if (column >= a.columns) return;
  const int begin = run * kRun, end = min(begin + kRun, a.rows);
  if (a.token(run) >= a.last) return;
  bool continues = a.continues(run);
  float sum[E] = {};
  for (int first = begin; first < end; first += kRowsInFlight) {
    Pack<T, E> row[kRowsInFlight];
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      if (first + k < end)
        row[k] = load_pack<E>(dy + static_cast<int64_t>(a.sorted.row[first + k]) * a.columns + column);
    }
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      const int at = first + k;
      if (at >= end) break;
#pragma unroll
      for (int i = 0; i < E; ++i) sum[i] += row[k][i];
      const int token = a.sorted.index[at];
      if (at + 1 < end && a.sorted.index[at + 1] == token) continue;
      if (token >= a.last) return;
      G* to = a.grad + static_cast<int64_t>(token) * a.columns + column;
      if (!continues) {
        const Pack<G, E> before = load_pack<E>(to);
#pragma unroll
        for (int i = 0; i < E; ++i) sum[i] += before[i];
      }
      if constexpr (std::is_same_v<G, float>) {
        store_values(continues ? a.partials + static_cast<int64_t>(run) * a.columns + column : to, sum);
      } else if (continues) {
        store_values(a.partials + static_cast<int64_t>(run) * a.columns + column, sum);
      } else {
        store_values(to, sum);
      }
      continues = false;
#pragma unroll
      for (int i = 0; i < E; ++i) sum[i] = 0;
    }
  }
}

// One block per run; the first run that continues a token adds the partial sums of this run and the following ones.
template <class G, int E>
__global__ void __launch_bounds__(kFlatThreads) add_continued(Runs<G> a, int runs) {
  ptx::wait_for_earlier_kernels();
  const int first = static_cast<int>(blockIdx.x), token = a.token(first);
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * E;
  const bool is_first = a.continues(first) && !(a.token(first - 1) == token && a.continues(first - 1));
  if (!is_first || token >= a.last || column >= a.columns) return;
  G* grad = a.grad + static_cast<int64_t>(token) * a.columns + column;
  float sum[E];
  const Pack<G, E> before = load_pack<E>(grad);
#pragma unroll
  for (int i = 0; i < E; ++i) sum[i] = before[i];
  for (int run = first; run < runs && a.token(run) == token; run += kRowsInFlight) {
    Pack<float, E> partial[kRowsInFlight];
    bool same[kRowsInFlight];
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      same[k] = run + k < runs && a.token(run + k) == token;
      if (same[k]) partial[k] = load_pack<E>(a.partials + static_cast<int64_t>(run + k) * a.columns + column);
    }
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      if (!same[k]) break;
#pragma unroll
      for (int i = 0; i < E; ++i) sum[i] += partial[k][i];
    }
  }
  store_values(grad, sum);
}

// grad[index[i]] += dy[i]; with a sharded vocabulary grad[part.row(index[i])], for the shard's own tokens.
void add_rows(const Tensor& grad, const Tensor& dy, const Tensor& index, const VocabPart& part, void* scratch,
              cudaStream_t stream) {
  const int64_t rows = dy.rows(), runs = div_ceil<int64_t>(rows, kRun), limit = sort_limit(grad, part);
  const int columns = checked_columns(EmbeddingBwd::kName, dy);
  const SortedIndices sorted = sort_indices({data<int>(index), rows, limit, part.first}, scratch, stream);
  float* partials = reinterpret_cast<float*>(static_cast<char*>(scratch) + sort_scratch(rows, limit));
  const auto launch_sums = [&]<class T, class G, int E>() {
    const Runs<G> a{data<G>(grad),          partials, sorted,
                    static_cast<int>(rows), columns,  static_cast<int>(part ? part.count : limit)};
    const int64_t threads = std::min<int64_t>(kFlatThreads, round_up<int64_t>(div_ceil(columns, E), 32));
    const dim3 grid(grid_size(runs), grid_size(div_ceil<int64_t>(columns, threads * E)));
    const LaunchConfig config{grid, dim3(static_cast<unsigned>(threads)), 0, stream};
    CUDA_CHECK(launch(sum_runs<T, G, E>, config, a, data<T>(dy)));
    if (runs > 1) CUDA_CHECK(launch(add_continued<G, E>, config, a, static_cast<int>(runs)));
  };
  const auto by_columns = [&]<class T, class G>() {
    if (columns % 4 == 0 && aligned16(grad.data, dy.data, partials)) {
      launch_sums.template operator()<T, G, 4>();
    } else {
      launch_sums.template operator()<T, G, 1>();
    }
  };
  by_type(dy.dtype, [&]<class T>() {
    if (grad.dtype == DType::bf16) {
      by_columns.template operator()<T, bf16>();
    } else {
      by_columns.template operator()<T, float>();
    }
  });
}
}  // namespace

void run(const GatherRows& op, void*, cudaStream_t stream) { move(Move{op.kName, op.y, op.x, op.rows, false}, stream); }
void run(const ScatterRows& op, void*, cudaStream_t stream) { move(Move{op.kName, op.y, op.x, op.rows, true}, stream); }

void run(const Patchify& op, void*, cudaStream_t stream) {
  if (op.y.numel() == 0) return;
  by_type(op.y.dtype, [&]<class T>() {
    Patches<T> a{.y = data<T>(op.y),
                 .pixels = data<uint8_t>(op.pixels),
                 .shape = op.shape,
                 .rows = 1 + op.shape.patches(),
                 .elements = op.y.numel(),
                 .scale = {},
                 .shift = {}};
    std::ranges::copy(op.scale, a.scale);
    std::ranges::copy(op.shift, a.shift);
    const dim3 blocks(grid_size(div_ceil<int64_t>(a.elements, kFlatThreads)));
    CUDA_CHECK(launch(cut_patches<T>, LaunchConfig{blocks, dim3(kFlatThreads), 0, stream}, a));
  });
}

void run(const EmbeddingFwd& op, void*, cudaStream_t stream) {
  const int64_t n = op.y.numel(), columns = op.y.cols();
  if (!op.wpe && !op.part) return move(Move{op.kName, op.y, op.wte, op.tokens, false}, stream);
  if (n == 0) return;
  const auto fits = [&]<class T>() { return in_packs<T>(columns) && aligned16(op.y.data, op.wte.data, op.wpe.data); };
  CHECK(op.part.total < int64_t{1} << 31, op.kName, ": a vocabulary of ", op.part.total, " is beyond 32-bit indices");
  by_pack(op.y.dtype, fits, [&]<class T, int E>() {
    const auto config = flat_launch<kSums>(op.kName, n / E, stream);
    const LookUp<T> a{data<T>(op.y),
                      data<T>(op.wte),
                      data<T>(op.wpe),
                      data<int>(op.tokens),
                      data<int>(op.positions),
                      static_cast<unsigned>(columns / E),
                      static_cast<unsigned>(n / E)};
    CUDA_CHECK(op.part ? launch(look_up_part<T, E>, config, a, static_cast<int>(op.part.first),
                                static_cast<unsigned>(op.part.count))
                       : launch(add_embeddings<T, E>, config, a));
  });
}

void run(const EmbeddingBwd& op, void* scratch, cudaStream_t stream) {
  if (op.dy.numel() == 0) return;
  add_rows(op.dwte, op.dy, op.tokens, op.part, scratch, stream);
  if (op.dwpe) add_rows(op.dwpe, op.dy, op.positions, {}, scratch, stream);
}
}  // namespace athanor::cuda
