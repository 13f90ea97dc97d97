// Adafactor's kernels: factored second moments (rows and columns) of matrices, and clipping of the update factors; one
// thread block per matrix. They read a few numbers per row and column; the passes over gradients are in
// output_scaling.cu. Deterministic: one block computes each sum. Not timed on a GPU yet.
#include "cuda/kernels.h"
#include "cuda/ranges.h"
#include "cuda/reduce.h"
#include "cuda/vec8.h"

namespace athanor::cuda {
namespace {

struct FactoredPart {
  float *r, *c, *row_factors, *column_factors;
  const double *row_sums, *column_sums;
  int64_t rows, columns, count;
};
struct FactoredRule {
  const StepState* state;
  double decay;
};

__global__ void __launch_bounds__(kTileThreads)
    factored_moments(const __grid_constant__ Ranges<FactoredPart> parts, const FactoredRule op) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const FactoredPart& p = parts.range[parts.find(blockIdx.x)];
  const FactoredScalars a = factored_scalars(op, *op.state);
  const bool skip = op.state->skip;
  const int64_t first = threadIdx.x;
  double total = 0;
  for (int64_t i = first; i < p.rows; i += kTileThreads) {
    float r = p.r[i];
    if (!skip) r = factored_moment(a, r, added(p.row_sums, p.count, p.rows, i), p.columns);
    p.r[i] = r;
    total += static_cast<double>(r);
  }
  const double mean = block_reduce(total, smem, Plus{}) / static_cast<double>(p.rows);
  for (int64_t i = first; i < p.rows; i += kTileThreads)
    p.row_factors[i] = skip ? 0.f : static_cast<float>(sqrt(mean / static_cast<double>(p.r[i])));
  const double scale = sqrt(a.scale_sq);
  for (int64_t i = first; i < p.columns; i += kTileThreads) {
    float c = p.c[i];
    if (!skip) c = factored_moment(a, c, added(p.column_sums, p.count, p.columns, i), p.rows);
    p.c[i] = c;
    p.column_factors[i] = skip ? 0.f : static_cast<float>(scale / sqrt(static_cast<double>(c)));
  }
}

struct ClippedPart {
  float* factors;
  const double* sums;
  int64_t rows, columns, count;
};

__global__ void __launch_bounds__(kTileThreads)
    clip_factors(const __grid_constant__ Ranges<ClippedPart> parts, double limit) {
  ptx::wait_for_earlier_kernels();
  SHARED(double, smem, [32]);
  const ClippedPart& p = parts.range[parts.find(blockIdx.x)];
  const int64_t first = threadIdx.x;
  double squares = 0;
  for (int64_t i = first; i < p.rows; i += kTileThreads) {
    const auto factor = static_cast<double>(p.factors[i]);
    squares += factor * factor * added(p.sums, p.count, p.rows, i);
  }
  const double divisor = clip_divisor(block_reduce(squares, smem, Plus{}), p.rows * p.columns, limit);
  for (int64_t i = first; i < p.rows; i += kTileThreads)
    p.factors[i] = static_cast<float>(static_cast<double>(p.factors[i]) / divisor);
}
}  // namespace

void run(const FactoredMoments& op, void*, cudaStream_t stream) {
  const FactoredRule rule{.state = data<StepState>(op.state), .decay = op.decay};
  const auto add_part = [](Ranges<FactoredPart>& table, const FactoredMoments::Part& p) {
    table.add({data<float>(p.r), data<float>(p.c), data<float>(p.row_factors), data<float>(p.column_factors),
               data<double>(p.row_sums), data<double>(p.column_sums), p.r.numel(), p.c.numel(), p.row_sums.rows()},
              1);
  };
  launch_tables(factored_moments, op.parts, add_part, stream, rule);
}

void run(const ClipFactors& op, void*, cudaStream_t stream) {
  const auto add_part = [](Ranges<ClippedPart>& table, const ClipFactors::Part& p) {
    table.add({data<float>(p.factors), data<double>(p.sums), p.factors.numel(), p.columns, p.sums.rows()}, 1);
  };
  launch_tables(clip_factors, op.parts, add_part, stream, op.limit);
}
}  // namespace athanor::cuda
