// main() of the test programs on a machine with a GPU. A test that leaves the GPU unusable for its process (an illegal
// address, a failed device assertion) ends the process at once, since all later tests would fail because of it.
// scripts/gpu/programs.py reads the printed line and runs the remaining tests in another process.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace {

constexpr int kUnusable = 86;  // exit status

class EndsAtStickyErrors final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaErrorNoDevice || count == 0) return;
    (void)cudaGetLastError();
    const cudaError_t error = cudaDeviceSynchronize();
    (void)cudaGetLastError();
    if (error == cudaSuccess || cudaDeviceSynchronize() == cudaSuccess)
      return;  // a sticky error is returned again by
               // the second call
    std::printf("[  STICKY  ] %s.%s: %s\n", test.test_suite_name(), test.name(), cudaGetErrorString(error));
    std::fflush(stdout);
    std::_Exit(kUnusable);
  }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new EndsAtStickyErrors);  // the list takes ownership
  return RUN_ALL_TESTS();
}
