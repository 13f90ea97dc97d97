// What data sheets say of known GPUs, in one table: rates that MFU is a fraction of, and for those that `athanor plan
// --gpu` describes also memory, sustained rates and links.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tensor/dtype.h"

namespace athanor {

struct GpuSpec {
  const char* name;           // part of what the driver calls it
  double half_flops;          // of dense products per second, sums in f32: bf16 and fp16 inputs
  double tf32_flops;          // likewise
  const char* key = nullptr;  // as --gpu takes it; null: the rest is not known
  const char* title = nullptr;
  size_t memory_bytes = 0;  // as drivers report it
  int64_t multiprocessors = 0;
  double product_flops = 0, copy_bytes = 0;  // per second, bf16 products and copies that GPUs of this kind sustain
  // Per second in one direction: NVLink, one network card of 200 or 400 Gbit/s for each GPU.
  double link_bytes = 0, network_bytes = 0;

  double peak_flops(DType inputs) const { return inputs == DType::f32 ? tf32_flops : half_flops; }
};

// Of the first row whose name is part of the driver's; null: the table does not have it.
const GpuSpec* find_gpu_named(std::string_view driver_name);

// By its key. Throws Error(usage), naming those that are known.
const GpuSpec& find_gpu(std::string_view key);

}  // namespace athanor
