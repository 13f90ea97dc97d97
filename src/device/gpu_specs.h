// Data-sheet numbers of known GPUs, in one table: peak rates (the denominator of MFU) and, for the GPUs that `athanor
// plan --gpu` accepts, memory, sustained rates and links.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace athanor {

struct GpuSpec {
  const char* name;           // words in the driver's name for the GPU
  double half_flops;          // dense FLOP/s of bf16 and fp16 GEMMs with f32 accumulation
  double tf32_flops;          // dense FLOP/s of TF32 GEMMs
  const char* key = nullptr;  // value of --gpu; null: the fields below are unknown
  const char* title = nullptr;
  size_t memory_bytes = 0;  // total of cudaMemGetInfo, which is less than nvidia-smi shows
  int64_t multiprocessors = 0;
  double gemm_flops = 0, copy_bytes = 0;  // sustained FLOP/s of bf16 GEMMs; bytes per second of device copies
  // Bytes per second in one direction: NVLink, else PCIe; one network card of 100, 200 or 400 Gbit/s per GPU.
  double link_bytes = 0, network_bytes = 0;
  double host_bytes = 0;  // bytes per second of a copy to or from pinned host memory
  int capability = 0;     // compute capability: 90 for 9.0
  // Dense rates of the data sheet: FP8 GEMMs (0: no FP8), and f32 GEMMs without tensor cores.
  double quantized_flops = 0, f32_flops = 0;

  double peak_flops(DType inputs) const {
    return is_code(inputs) ? quantized_flops : inputs == DType::f32 ? tf32_flops : half_flops;
  }
  // Sustained part of a data sheet's rate: the same fraction as for bf16 GEMMs, since power limits all GEMMs.
  double sustained(double flops) const { return flops * gemm_flops / half_flops; }
};

// Returns the first row whose name occurs in the driver's as whole words; null if there is none.
const GpuSpec* find_gpu_named(std::string_view driver_name);

// Looks up by key. Throws Error(usage) that lists the known keys.
const GpuSpec& find_gpu(std::string_view key);

}  // namespace athanor
