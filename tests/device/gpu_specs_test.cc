// Rates of GPUs by the names that drivers report: those of the GPU itself, not of another whose name is similar.
#include "device/gpu_specs.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

double peak(const char* driver_name) {
  const GpuSpec* found = find_gpu_named(driver_name);
  return found ? found->half_flops / 1e12 : 0;
}

TEST(GpuSpecs, AreFoundByTheNamesOfDrivers) {
  for (const auto& [name, tera] : {std::pair{"NVIDIA A100-SXM4-80GB", 312.0},
                                   {"NVIDIA A100 80GB PCIe", 312},
                                   {"NVIDIA H100 80GB HBM3", 989.4},
                                   {"NVIDIA H100 PCIe", 756},
                                   {"NVIDIA H200 NVL", 835.5},
                                   {"NVIDIA GH200 480GB", 989.4},
                                   {"NVIDIA GB200", 2500},
                                   {"NVIDIA B200", 2250},
                                   {"NVIDIA A10", 125},
                                   {"NVIDIA A40", 149.7},
                                   {"NVIDIA L4", 121},
                                   {"NVIDIA L40S", 362},
                                   {"NVIDIA RTX A6000", 154.8},
                                   {"NVIDIA GeForce RTX 4090", 165.2}})
    EXPECT_DOUBLE_EQ(peak(name), tera) << name;
}

TEST(GpuSpecs, OfAnotherGpuAreNotTaken) {
  for (const char* name : {"NVIDIA A10G", "NVIDIA RTX A4000", "NVIDIA RTX A1000", "NVIDIA H20",
                           "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", ""})
    EXPECT_EQ(find_gpu_named(name), nullptr) << name;
}

}  // namespace
}  // namespace athanor
