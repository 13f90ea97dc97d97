// Which launches are programmatic. That kernels wait before they access memory is checked in their machine code
// (scripts/check_kernels.py); if an op launches several kernels, the emulated GPU also finds a missing wait.
#ifdef ATHANOR_EMULATED_GPU
#include "cuda/device/cuda_device.h"
#include "cuda/kernels.h"
#include "cuda/nccl/collective_marks.h"
#include "cuda/programmatic.h"
#include "emulator/runtime/control.h"
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class ProgrammaticLaunch : public KernelTest {
 protected:
  void TearDown() override {
    emu::tell_launches({});
    emu::simulate({emu::gpu_h200()});
  }
};

TEST_F(ProgrammaticLaunch, IsUsedForComputeKernelsOnSupportedGpus) {
  for (const auto& gpu : {emu::gpu_a100(), emu::gpu_h200(), emu::gpu_b200()}) {
    for (const bool asked : {true, false}) {
      emu::simulate({gpu});
      cuda::CudaDevice device(0, asked);
      cuda::CollectiveMarks marks(device);
      std::map<std::string, bool> launched;
      emu::tell_launches([&](const std::string& kernel, const emu::LaunchShape& shape) {
        launched[kernel.find("fill") == std::string::npos ? "mark" : "fill"] = shape.programmatic;
      });
      alignas(16) float x[4];
      cuda::run(Fill{.x = {x, DType::f32, {4}}, .value = 1}, nullptr, device.stream(Stream::compute));
      marks.begin(Stream::compute, 1);
      emu::tell_launches({});
      const std::map<std::string, bool> expected = {{"fill", asked && gpu.major >= 9}, {"mark", false}};
      EXPECT_EQ(launched, expected) << gpu.name << (asked ? " asked" : "");
    }
    EXPECT_FALSE(cuda::programmatic_launches()) << "without a device";
  }
}

}  // namespace
}  // namespace athanor
#endif
