// The backend for the tests of tests/train: a GPU, or the emulated one if ATHANOR_EMULATED_GPU is defined.
#include "cuda/make_cuda.h"
#include "tests/train/harness.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/emulator.h"
#endif

namespace athanor::testing {

const std::vector<int> kThreadCounts = {2};
const int kMatrixEvery = 103;

Rig::Rig([[maybe_unused]] int threads) {
#ifdef ATHANOR_EMULATED_GPU
  if (const emu::Report report = emu::take_report(); report.fault != emu::Fault::kNone)
    throw Error(cat("the test before this one: ", report.text));
  static uint64_t schedule = 0;
  emu::seed(++schedule);
  emu::set_threads(threads > 1 ? 2 : 1);
#endif
  CudaBackend cuda = make_cuda({});
  device = std::move(cuda.device);
  ops = std::move(cuda.ops);
  tuning = cuda.tuning;
  mesh = std::make_unique<ProcessMesh>(make_single(*device), MeshSizes{});
}

}  // namespace athanor::testing
