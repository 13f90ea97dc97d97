// Momentum compressed to 1 bit per element for communication: one thread block per block of 256 elements, one thread
// per element, rounded as on the CPU. Memory bound: OneBitMomentum reads 16 bytes and writes 4 per element. Not timed
// on a GPU yet.
#include "cuda/host_tools.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kThreads = static_cast<int>(kOneBitBlock);

// Writes C(x) of the block to `record` and the error of this thread's element to `error`. smem: shared memory for
// block_reduce().
__device__ void compress(float x, float v, float* error, OneBitRecord* record, double* smem) {
  const double counted = v != 0 ? static_cast<double>(x) : 0.0;
  const double squares = block_reduce(counted * counted, smem, Plus{});
  const double count = block_reduce(v != 0 ? 1.0 : 0.0, smem, Plus{});
  const float scale = one_bit_scale(squares, static_cast<int>(count));
  const unsigned signs = __ballot_sync(~0u, v != 0 && x < 0);
  if (threadIdx.x == 0) record->scale = scale;
  if (threadIdx.x % 32 == 0) record->signs[threadIdx.x / 32] = signs;
  if (v != 0) *error = __fsub_rn(x, x < 0 ? -scale : scale);
}

__device__ void clear(OneBitRecord* record) {
  if (threadIdx.x == 0) record->scale = 0;
  if (threadIdx.x % 32 == 0) record->signs[threadIdx.x / 32] = 0;
}

struct Momentum {
  const StepState* state;
  const float *m, *v;
  float *grad, *error;
  OneBitRecord* records;
  double beta1;
  OneBitBlocks blocks;
};

__global__ void __launch_bounds__(kThreads) one_bit_momentum(const Momentum op) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const int64_t b = blockIdx.x, i = b * kOneBitBlock + threadIdx.x;
  const bool own = op.blocks.is_own(b);
  OneBitRecord* record = own ? nullptr : op.records + op.blocks.slot(b);
  if (op.state->skip) {
    if (record != nullptr) clear(record);
    return;
  }
  const double beta1 = momentum_now(op.beta1, *op.state);
  const float scaled = __fmul_rn(op.grad[i], op.state->grad_scale);
  const float x =
      __fadd_rn(__fmul_rn(static_cast<float>(beta1), op.m[i]), __fmul_rn(static_cast<float>(1 - beta1), scaled));
  if (own)
    op.grad[i] = x;
  else
    compress(__fadd_rn(x, op.error[i]), op.v[i], op.error + i, record, smem);
}

struct Mean {
  const StepState* state;
  const float *v, *grad;
  const OneBitRecord* received;
  float* error;
  OneBitRecord* records;
  OneBitBlocks blocks;
};

__global__ void __launch_bounds__(kThreads) one_bit_mean(const Mean op) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const int order = op.blocks.order(op.blocks.worker), workers = op.blocks.workers;
  const int64_t n = blockIdx.x, served = op.blocks.served(order);
  const int64_t i = (n * workers + order) * kOneBitBlock + threadIdx.x;
  OneBitRecord* record = op.records + op.blocks.begin(order) + n;
  if (op.state->skip) return clear(record);
  const float v = op.v[i];
  float sum = 0;
  for (int w = 0; w < workers; ++w)
    sum = __fadd_rn(sum, w == op.blocks.worker ? op.grad[i] : op.received[w * served + n].value(threadIdx.x, v));
  const float y = __fadd_rn(__fdiv_rn(sum, static_cast<float>(workers)), op.error[i]);
  compress(y, v, op.error + i, record, smem);
}

struct Direction {
  const StepState* state;
  const OneBitRecord* records;
  const float* v;
  float *m, *grad, *fresh, *ratios;  // fresh, ratios and w are null without LAMB
  const float* w;
  double beta1, beta2, eps, weight_decay;
  int64_t decayed;
  bool cautious;
  int average1, average2, average3;
  OneBitBlocks blocks;
};

// Updates the fresh variance of an element whose momentum becomes m. Returns the ratio of the frozen to the fresh
// divisor.
__device__ float add_to_variance(float* fresh, float m, float old, float v, float divisor, const OneBitScalars& a) {
  if (v == 0) return 0;
  const float implied = __fdiv_rn(__fsub_rn(m, __fmul_rn(a.beta1, old)), a.one_minus_beta1);
  const float kept = __fmul_rn(a.beta2, *fresh == 0 ? v : *fresh);
  const float now = __fadd_rn(kept, __fmul_rn(a.one_minus_beta2, __fmul_rn(implied, implied)));
  *fresh = now;
  return __fdiv_rn(divisor, __fadd_rn(__fdiv_rn(__fsqrt_rn(now), a.root_bias3), a.eps));
}

__global__ void __launch_bounds__(kThreads) one_bit_direction(const Direction op) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [32]);
  const int64_t b = blockIdx.x, i = b * kOneBitBlock + threadIdx.x;
  const StepState& s = *op.state;
  if (s.skip) {
    op.grad[i] = 0;
    return;
  }
  const OneBitScalars a = one_bit_scalars(op, s);
  const float v = op.v[i], m = op.records[op.blocks.slot(b)].value(threadIdx.x, v);
  const float divisor = __fadd_rn(__fdiv_rn(__fsqrt_rn(v), a.root_bias2), a.eps);
  const float u = v != 0 ? __fdiv_rn(__fmul_rn(a.inverse_bias1, m), divisor) : 0.f;
  if (op.fresh == nullptr) {
    op.m[i] = m;
    op.grad[i] = u;
    return;
  }
  const float old = op.m[i];
  op.m[i] = m;
  const float ratio = block_reduce(add_to_variance(op.fresh + i, m, old, v, divisor, a), smem, Max{});
  if (threadIdx.x == 0) op.ratios[b] = ratio;
  const float w = op.w[i], decay = i >= op.decayed ? 0.f : __fmul_rn(w, u) >= 0 ? a.decay : a.decay_away;
  op.grad[i] = __fadd_rn(u, __fmul_rn(decay, w));
}

OneBitRecord* records_in(const Tensor& t) { return reinterpret_cast<OneBitRecord*>(data<uint8_t>(t)); }

}  // namespace

void run(const OneBitMomentum& op, void*, cudaStream_t stream) {
  const Momentum args{.state = data<StepState>(op.state),
                      .m = data<float>(op.m),
                      .v = data<float>(op.v),
                      .grad = data<float>(op.grad),
                      .error = data<float>(op.error),
                      .records = records_in(op.records),
                      .beta1 = op.beta1,
                      .blocks = op.blocks};
  const LaunchConfig config{dim3(static_cast<unsigned>(op.blocks.count)), dim3(kThreads), 0, stream};
  CUDA_CHECK(launch(one_bit_momentum, config, args));
}

void run(const OneBitMean& op, void*, cudaStream_t stream) {
  const int64_t served = op.blocks.served(op.blocks.order(op.blocks.worker));
  const Mean args{.state = data<StepState>(op.state),
                  .v = data<float>(op.v),
                  .grad = data<float>(op.grad),
                  .received = op.received ? records_in(op.received) : nullptr,
                  .error = data<float>(op.error),
                  .records = records_in(op.records),
                  .blocks = op.blocks};
  const LaunchConfig config{dim3(static_cast<unsigned>(served)), dim3(kThreads), 0, stream};
  CUDA_CHECK(launch(one_bit_mean, config, args));
}

void run(const OneBitDirection& op, void*, cudaStream_t stream) {
  const Direction args{.state = data<StepState>(op.state),
                       .records = records_in(op.records),
                       .v = data<float>(op.v),
                       .m = data<float>(op.m),
                       .grad = data<float>(op.grad),
                       .fresh = data<float>(op.fresh),
                       .ratios = data<float>(op.ratios),
                       .w = data<float>(op.w),
                       .beta1 = op.beta1,
                       .beta2 = op.beta2,
                       .eps = op.eps,
                       .weight_decay = op.weight_decay,
                       .decayed = op.decayed,
                       .cautious = op.cautious,
                       .average1 = op.average1,
                       .average2 = op.average2,
                       .average3 = op.average3,
                       .blocks = op.blocks};
  const LaunchConfig config{dim3(static_cast<unsigned>(op.blocks.count)), dim3(kThreads), 0, stream};
  CUDA_CHECK(launch(one_bit_direction, config, args));
}
}  // namespace athanor::cuda
