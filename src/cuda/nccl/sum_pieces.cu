// Sums a piece over all ranks, eight elements per thread. Memory bound: every value is read once. Not timed on a GPU
// yet.
#include "cuda/nccl/sum_pieces.h"

#include "cuda/vec8.h"

namespace athanor::cuda {
namespace {

struct Pieces {
  bf16* out;
  const bf16 *own, *others;
  Extent extent;
  int64_t stride;
  int ranks, rank;
};

__global__ void __launch_bounds__(kTileThreads) add_pieces(const Pieces a) {
  ptx::wait_for_earlier_kernels();
  on_vec8(a.extent, blockIdx.x, [&](auto vec8) {
    float sum[kElements];
    for (int r = 0; r < a.ranks; ++r) {
      float x[kElements];
      vec8.load(x, r == a.rank ? a.own : a.others + r * a.stride);
#pragma unroll
      for (int i = 0; i < kElements; ++i) sum[i] = r == 0 ? x[i] : __fadd_rn(sum[i], x[i]);
    }
    vec8.store(a.out, sum);
  });
}

}  // namespace

void sum_pieces(const SumOfPieces& sum, cudaStream_t stream) {
  const int64_t n = sum.out.numel();
  if (n == 0) return;
  CHECK(sum.stride % kVector<bf16> == 0, "pieces ", sum.stride, " elements apart, expected a multiple of 8");
  const Pieces pieces{data<bf16>(sum.out),
                      data<bf16>(sum.own),
                      data<bf16>(sum.others),
                      extent(n, data<char>(sum.out), data<char>(sum.own), data<char>(sum.others)),
                      sum.stride,
                      sum.ranks,
                      sum.rank};
  LaunchConfig config{dim3(grid_size(tiles_of(n))), dim3(kTileThreads), 0, stream};
  // Not programmatic, like collective marks: no kernel of the program overlaps a collective in its stream.
  config.programmatic = false;
  CUDA_CHECK(launch(add_pieces, config, pieces));
}
}  // namespace athanor::cuda
