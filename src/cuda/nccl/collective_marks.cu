// One thread increments a counter and writes it to pinned memory in one 8-byte store, so that the host never sees a
// partial value. Bound by the launch: expected to take some 2 us, not measured.
#include "cuda/nccl/collective_marks.h"

#include "cuda/access.h"
#include "cuda/check.h"
#include "cuda/launch.h"

namespace athanor::cuda {
namespace {

__global__ void tell(uint32_t* passed, uint64_t* visible, uint32_t what) {
  ptx::wait_for_earlier_kernels();
  const uint32_t now = ld4(passed) + 1;
  st4(passed, now);
  ptx::store_for_host(visible, uint64_t{now} << 32 | what);
  __threadfence_system();
}

}  // namespace

CollectiveMarks::CollectiveMarks(CudaDevice& device)
    : device_(device),
      passed_(static_cast<uint32_t*>(device.allocate(kStreams * sizeof(uint32_t), Mem::device))),
      visible_(static_cast<uint64_t*>(device.allocate(kStreams * sizeof(uint64_t), Mem::pinned))) {}

CollectiveMarks::~CollectiveMarks() {
  device_.release(passed_, kStreams * sizeof(uint32_t), Mem::device);
  device_.release(visible_, kStreams * sizeof(uint64_t), Mem::pinned);
}

void CollectiveMarks::mark(Stream stream, uint32_t what) {
  const auto l = static_cast<size_t>(stream);
  // No programmatic launch: a mark that starts early and waits would look like work overlapped with the collective.
  const LaunchConfig config{.grid = 1, .block = 1, .stream = device_.stream(stream), .programmatic = false};
  CUDA_CHECK(launch(tell, config, passed_ + l, visible_ + l, what));
}

void CollectiveMarks::begin(Stream stream, uint32_t what) { mark(stream, what); }

CollectiveMarks::State CollectiveMarks::read(Stream stream) const {
  const uint64_t seen = __atomic_load_n(visible_ + static_cast<size_t>(stream), __ATOMIC_RELAXED);
  return {static_cast<uint32_t>(seen >> 32), static_cast<uint32_t>(seen)};
}
}  // namespace athanor::cuda
