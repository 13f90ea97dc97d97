// Data-sheet numbers of known GPUs, in one table: peak rates (the denominator of MFU) and, for the GPUs that `athanor
// plan --gpu` accepts, memory, sustained rates and links.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace athanor {

struct GpuSpec {
  const char* name;           // substring of the driver's name for the GPU
  double half_flops;          // dense products per second with f32 accumulation: bf16 and fp16 inputs
  double tf32_flops;          // the same for TF32 inputs
  const char* key = nullptr;  // the name that --gpu takes; null: the fields below are not known
  const char* title = nullptr;
  size_t memory_bytes = 0;  // as a process sees it (cudaMemGetInfo), which is less than nvidia-smi shows
  int64_t multiprocessors = 0;
  double product_flops = 0, copy_bytes = 0;  // sustained rates per second: bf16 products; copies
  // Bytes per second in one direction: NVLink, else PCIe; one network card of 100, 200 or 400 Gbit/s per GPU.
  double link_bytes = 0, network_bytes = 0;
  double host_bytes = 0;  // bytes per second to or from pinned host memory, of copies in one direction
  int capability = 0;     // compute capability: 90 for 9.0
  // Dense rates of the data sheet: FP8 GEMMs (0: no FP8), and f32 GEMMs without tensor cores.
  double codes_flops = 0, f32_flops = 0;

  double peak_flops(DType inputs) const {
    return is_code(inputs) ? codes_flops : inputs == DType::f32 ? tf32_flops : half_flops;
  }
  // What remains of a data sheet's rate: as of bf16 products, since power bounds all of them.
  double sustained(double flops) const { return flops * product_flops / half_flops; }
};

// The first row whose name is a substring of the driver's; null if there is none.
const GpuSpec* find_gpu_named(std::string_view driver_name);

// Looks up by key. Throws Error(usage) that lists the known keys.
const GpuSpec& find_gpu(std::string_view key);

}  // namespace athanor
