// Factors of delayed scaling (DelayedScales), from the amax history of the last steps. One thread block per element of
// amax reads and shifts its history. Deterministic: a maximum does not depend on the order. Not timed on a GPU yet.
#include <algorithm>

#include "cuda/host_tools.h"
#include "cuda/kernels.h"
#include "cuda/quantize/encode.h"
#include "cuda/quantize/quantize.h"
#include "cuda/reduce.h"

namespace athanor::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostColumns = 8, kMostHistories = 128;
struct Histories {
  float* of_row[kMostHistories];
};
struct DelayedRule {
  float most_code[kMostColumns];
  float *amax, *factors;  // [rows, columns]
  const StepState* state;
  int64_t length;
  int columns, margin;
  bool power_of_two;
};
__global__ void __launch_bounds__(kThreads) delay(const Histories table, int64_t first_row, const DelayedRule op) {
  ptx::wait_for_earlier_kernels();
  SHARED(float, smem, [kLanes]);
  const int row = static_cast<int>(blockIdx.x) / op.columns, column = static_cast<int>(blockIdx.x) % op.columns;
  const int64_t element = (first_row + row) * op.columns + column;
  const float now = op.amax[element];
  float* history = table.of_row[row] ? table.of_row[row] + column * op.length : nullptr;
  const bool enters = op.state && op.state->skip == 0 && magnitude(now) < kInfinity;
  float amax = 0;
  // The loop starts at the end, because entries move to higher indices.
  for (int64_t chunk = history ? (op.length - 1) / kThreads : -1; chunk >= 0; --chunk) {
    const int64_t i = chunk * kThreads + static_cast<int>(threadIdx.x);
    float value = 0;
    if (i < op.length) value = !enters ? history[i] : i == 0 ? now : history[i - 1];
    __syncthreads();
    if (enters && i < op.length) history[i] = value;
    __syncthreads();
    amax = Max{}(amax, value);
  }
  amax = block_reduce(amax, smem, Max{});
  if (threadIdx.x != 0) return;
  op.amax[element] = 0;
  float factor = 0;
  if (amax != 0) {
    const Rule rule{.most_code = op.most_code[column], .power_of_two = op.power_of_two};
    factor = ldexpf(scaled(__float_as_uint(amax), rule).factor, -op.margin);
    factor = factor > 0x1p-126f ? factor : 0x1p-126f;
  }
  op.factors[element] = factor;
}
}  // namespace

void run(const DelayedScales& op, void*, cudaStream_t stream) {
  CHECK(op.columns() <= kMostColumns, "delayed_scales: ", op.columns(), " columns; the kernel has room for 8");
  DelayedRule rule{.most_code = {},
                   .amax = data<float>(op.amax),
                   .factors = data<float>(op.factors),
                   .state = data<const StepState>(op.state),
                   .length = op.length,
                   .columns = static_cast<int>(op.columns()),
                   .margin = op.margin,
                   .power_of_two = op.power_of_two};
  for (int c = 0; c < rule.columns; ++c) rule.most_code[c] = max_code(op.quantized[static_cast<size_t>(c)]);
  const auto rows = static_cast<int64_t>(op.histories.size());
  for (int64_t first = 0; first < rows && rule.columns > 0; first += kMostHistories) {
    const int64_t count = std::min<int64_t>(kMostHistories, rows - first);
    Histories table{};
    for (int64_t i = 0; i < count; ++i) {
      const Tensor& history = op.histories[static_cast<size_t>(first + i)];
      table.of_row[i] = history.numel() ? data<float>(history) : nullptr;
    }
    CUDA_CHECK(launch(delay, {dim3(grid_size(count * rule.columns)), dim3(kThreads), 0, stream}, table, first, rule));
  }
}
}  // namespace athanor::cuda
