// Begin or end of each token's document, from the table of spans. Layout: a block has kRows tokens; its warps scan the
// table and write the bounds of those tokens that are in a span. Latency bound: the table and a block's result are some
// KiB each. Not timed on a GPU yet.
#include "cuda/attention/document_bounds.h"

#include "cuda/host_tools.h"
#include "cuda/launch.h"
#include "ops/attention.h"

namespace athanor::cuda {
namespace {

constexpr int kThreads = 256, kRows = 1024;

struct Table {
  int32_t* bounds;  // [rows]
  const int32_t* words;
  int spans, rows, tokens;
  bool ends;
};

__global__ void __launch_bounds__(kThreads) document_bounds(Table t) {
  ptx::wait_for_earlier_kernels();
  const int begin = static_cast<int>(blockIdx.x) * kRows, end = min(begin + kRows, t.rows);
  const auto bound = [&](int first, int size) { return first % t.tokens + (t.ends ? size : 0); };
  for (int row = begin + static_cast<int>(threadIdx.x); row < end; row += kThreads) t.bounds[row] = bound(row, 1);
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int s = static_cast<int>(threadIdx.x / 32); s < t.spans; s += kThreads / 32) {
    const int first = t.words[s * kSpanWords], size = t.words[s * kSpanWords + 1];
    for (int row = max(begin, first) + lane; row < min(end, first + size); row += 32)
      t.bounds[row] = bound(first, size);
  }
}
}  // namespace

void run(const DocumentBounds& of, cudaStream_t stream) {
  const Table table{.bounds = of.bounds,
                    .words = data<int32_t>(of.spans),
                    .spans = narrow<int>(of.spans.rows()),
                    .rows = narrow<int>(of.rows),
                    .tokens = narrow<int>(of.tokens),
                    .ends = of.ends};
  const LaunchConfig config{dim3(grid_size(div_ceil<int64_t>(of.rows, kRows))), dim3(kThreads), 0, stream};
  CUDA_CHECK(launch(document_bounds, config, table));
}
}  // namespace athanor::cuda
