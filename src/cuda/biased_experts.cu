// Biases of experts: the formulas of ops/biased_experts.h. Layout: packs of 16
// bytes where rows are aligned; gradients of a bias have one thread per element, which adds the expert's rows in order;
// those of router weights one warp per row. Memory bound. Unverified: no GPU has run them.
#include "cuda/kernels.h"
#include "cuda/pack.h"
#include "cuda/ptx/ptx.h"
#include "cuda/reduce.h"
#include "cuda/warps.h"

namespace athanor::cuda {
namespace {

struct ExpertRows {
  const int* offsets;
  const float* weights;  // null: all 1
  const int* slots;
  int experts;
  __device__ __forceinline__ float weight(int64_t row) const { return weights ? weights[slots[row]] : 1.f; }
  // The expert that has the row; `experts` if none has it.
  __device__ __forceinline__ int expert_of(int64_t row) const {
    int low = 0, high = experts;  // the first expert that ends after the row
    while (low < high) {
      const int middle = (low + high) / 2;
      if (offsets[middle + 1] > row) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};
ExpertRows rows_of(const Tensor& offsets, const Tensor& weights, const Tensor& slots) {
  return {data<int>(offsets), data<float>(weights), data<int>(slots), narrow<int>(offsets.numel() - 1)};
}

template <class T, int E>
__global__ void __launch_bounds__(kFlatThreads)
    add_bias(T* x, const T* bias, ExpertRows rows, unsigned row_packs, unsigned packs) {
  ptx::wait_for_earlier_kernels();
  const unsigned at = first_pack<1>();
  if (at >= packs) return;
  const unsigned row = at / row_packs, column = at % row_packs;
  const int expert = rows.expert_of(row);
  if (expert == rows.experts) return;
  const float weight = rows.weight(row);
  const Pack<T, E> before = load_pack<E>(static_cast<const T*>(x) + static_cast<size_t>(at) * E);
  const Pack<T, E> b = load_pack<E>(bias + (static_cast<size_t>(expert) * row_packs + column) * E);
  float sum[E];
#pragma unroll
  for (int i = 0; i < E; ++i) sum[i] = before[i] + b[i] * weight;
  store_values(x + static_cast<size_t>(at) * E, sum);
}

// A block has kThreads columns of one expert.
template <class T, class G>
__global__ void __launch_bounds__(kThreads)
    bias_gradient(G* dbias, const T* dx, ExpertRows rows, int columns, int blocks) {
  ptx::wait_for_earlier_kernels();
  const int expert = static_cast<int>(blockIdx.x) / blocks;
  const int column = static_cast<int>(blockIdx.x) % blocks * kThreads + static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  float sum = 0;
  for (int64_t r = rows.offsets[expert]; r < rows.offsets[expert + 1]; ++r)
    sum += to_float(dx[r * columns + column]) * rows.weight(r);
  G* out = dbias + static_cast<int64_t>(expert) * columns + column;
  *out = from_float<G>(to_float(*out) + sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    weight_gradient(float* dweights, const T* dx, const T* bias, ExpertRows rows, int columns, int count) {
  ptx::wait_for_earlier_kernels();
  const int row = warp_number();
  if (row >= count) return;
  const int expert = rows.expert_of(row);
  if (expert == rows.experts) return;
  float sum = 0;
  for (int c = lane_number(); c < columns; c += 32)
    sum += to_float(dx[static_cast<int64_t>(row) * columns + c]) *
           to_float(bias[static_cast<int64_t>(expert) * columns + c]);
  sum = warp_reduce(sum, Plus{});
  if (lane_number() == 0) dweights[rows.slots[row]] += sum;
}

}  // namespace

void run(const AddExpertBias& op, void*, cudaStream_t stream) {
  const int64_t n = op.x.numel(), columns = op.x.cols();
  if (n == 0) return;
  const auto fits = [&]<class T>() { return in_packs<T>(columns) && aligned16(op.x.data, op.bias.data); };
  by_pack(op.x.dtype, fits, [&]<class T, int E>() {
    CUDA_CHECK(launch(add_bias<T, E>, flat_launch<1>(op.kName, n / E, stream), data<T>(op.x), data<T>(op.bias),
                      rows_of(op.offsets, op.weights, op.slots), static_cast<unsigned>(columns / E),
                      static_cast<unsigned>(n / E)));
  });
}

void run(const AddExpertBiasBwd& op, void*, cudaStream_t stream) {
  const int rows = narrow<int>(op.dx.rows()), columns = narrow<int>(op.dx.cols());
  if (op.dx.numel() == 0) return;
  const ExpertRows experts = rows_of(op.offsets, op.weights, op.slots);
  by_type(op.dx.dtype, [&]<class T>() {
    if (op.dbias) {
      const int blocks = div_ceil(columns, kThreads);
      const LaunchConfig config{dim3(grid_size(int64_t{blocks} * op.experts())), dim3(kThreads), 0, stream};
      if (op.dbias.dtype == DType::f32) {
        CUDA_CHECK(
            launch(bias_gradient<T, float>, config, data<float>(op.dbias), data<T>(op.dx), experts, columns, blocks));
      } else {
        CUDA_CHECK(
            launch(bias_gradient<T, bf16>, config, data<bf16>(op.dbias), data<T>(op.dx), experts, columns, blocks));
      }
    }
    if (op.weights)
      CUDA_CHECK(launch(weight_gradient<T>, warps(rows, stream), data<float>(op.dweights), data<T>(op.dx),
                        data<T>(op.bias), experts, columns, rows));
  });
}

}  // namespace athanor::cuda
