// The kernels of the tests of the fake runtime.
#include "cuda/access.h"
#include "emulator/tests/runtime_support.h"

namespace emu::testing {
namespace {
__global__ void store(int* to, int value) {
  if (threadIdx.x == 0) to[blockIdx.x] = value;
}
__global__ void add(int* to, const int* from, int count, int value) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) to[i] = from[i] + value;
}
__global__ void take_many_bytes(ManyBytes) {}
__global__ void store_through_access(int* to) { athanor::cuda::st4(to, 1); }
}  // namespace

const void* store_kernel() { return reinterpret_cast<const void*>(&store); }
cudaError_t launch_store(cudaStream_t stream, int* to, int value) {
  return athanor::cuda::launch(store, {dim3(1), dim3(32), 0, stream}, to, value);
}
cudaError_t launch_add(cudaStream_t stream, int* to, const int* from, int count, int value) {
  return athanor::cuda::launch(add, {dim3(1), dim3(32), 0, stream}, to, from, count, value);
}
cudaError_t launch_shaped(const LaunchShape& s, int* to, int value) {
  return athanor::cuda::launch(store, {s.grid, s.block, s.shared_bytes, s.stream, s.cluster, s.programmatic}, to,
                               value);
}
cudaError_t launch_many_bytes() { return athanor::cuda::launch(take_many_bytes, {dim3(1), dim3(32)}, ManyBytes{}); }
cudaError_t launch_out_of_bounds(int* to) {
  return athanor::cuda::launch(store_through_access, {dim3(1), dim3(1)}, to);
}
}  // namespace emu::testing
