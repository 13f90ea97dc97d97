// The GPUs that can be simulated. Compute capability limits are from the CUDA C++ Programming Guide, table "Technical
// Specifications per Compute Capability"; the rest from NVIDIA's data sheets and architecture papers as named. Usable
// memory is what CUDA reports as total, which is somewhat less than the data sheet's.
#include "emulator/runtime/control.h"

namespace emu {
namespace {
constexpr size_t kKib = 1024, kMib = size_t{1} << 20;
}

// A100 80GB data sheet and "NVIDIA A100 Tensor Core GPU Architecture" (2020): 108 SMs, 40 MB L2, 5120 bits, 2039 GB/s.
GpuModel gpu_a100() {
  GpuModel gpu;
  gpu.name = "NVIDIA A100-SXM4-80GB";
  gpu.major = 8, gpu.minor = 0;
  gpu.multiprocessors = 108;
  gpu.memory_bytes = 81050 * kMib;
  gpu.l2_bytes = 40 * kMib;
  gpu.memory_clock_khz = 1593000, gpu.memory_bus_bits = 5120;
  gpu.shared_per_multiprocessor = 164 * kKib, gpu.shared_per_block_optin = 163 * kKib;
  return gpu;
}

// "NVIDIA Ada GPU Architecture" (2022): 128 SMs, 72 MB L2, 384 bits, 1008 GB/s.
GpuModel gpu_rtx4090() {
  GpuModel gpu;
  gpu.name = "NVIDIA GeForce RTX 4090";
  gpu.major = 8, gpu.minor = 9;
  gpu.multiprocessors = 128;
  gpu.memory_bytes = 24217 * kMib;
  gpu.l2_bytes = 72 * kMib;
  gpu.memory_clock_khz = 10501000, gpu.memory_bus_bits = 384;
  gpu.shared_per_multiprocessor = 100 * kKib, gpu.shared_per_block_optin = 99 * kKib;
  return gpu;
}

// H100 SXM data sheet: 80 GB, 3.35 TB/s; "NVIDIA H100 Tensor Core GPU Architecture" (2022): 132 SMs, 50 MB L2, 5120
// bits. Sums of 8-bit numbers: DeepSeek-AI 2024, section 3.3.2.
GpuModel gpu_h100() {
  GpuModel gpu;
  gpu.name = "NVIDIA H100 80GB HBM3";
  gpu.major = 9, gpu.minor = 0;
  gpu.multiprocessors = 132;
  gpu.memory_bytes = 81079 * kMib;
  gpu.l2_bytes = 50 * kMib;
  gpu.memory_clock_khz = 2619000, gpu.memory_bus_bits = 5120;
  gpu.shared_per_multiprocessor = 228 * kKib, gpu.shared_per_block_optin = 227 * kKib;
  return gpu;
}

// H200 SXM data sheet: the H100's processor with 141 GB, 4.8 TB/s; 60 MB L2, 6144 bits.
GpuModel gpu_h200() {
  GpuModel gpu = gpu_h100();
  gpu.name = "NVIDIA H200";
  gpu.memory_bytes = 143165 * kMib;
  gpu.l2_bytes = 60 * kMib;
  gpu.memory_clock_khz = 3201000, gpu.memory_bus_bits = 6144;
  return gpu;
}

// HGX B200 data sheet: 180 GB, 8 TB/s, 148 SMs, 126 MB L2.
GpuModel gpu_b200() {
  GpuModel gpu;
  gpu.name = "NVIDIA B200";
  gpu.major = 10, gpu.minor = 0;
  gpu.multiprocessors = 148;
  gpu.memory_bytes = 182633 * kMib;
  gpu.l2_bytes = 126 * kMib;
  gpu.memory_clock_khz = 3996000, gpu.memory_bus_bits = 8192;
  gpu.shared_per_multiprocessor = 228 * kKib, gpu.shared_per_block_optin = 227 * kKib;
  return gpu;
}
}  // namespace emu
