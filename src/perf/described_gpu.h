// A GPU that is only described, for `athanor plan --gpu`: how much memory a run would take there and which limit its
// step would have. It holds no memory and runs nothing.
#pragma once
#include <memory>
#include <string>

#include "device/device.h"
#include "ops/tuning.h"
#include "perf/roofline.h"

namespace athanor {

struct GpuDescription {
  const char* name;  // as --gpu takes it
  const char* title;
  size_t memory_bytes;
  int64_t multiprocessors;
  double sheet_flops;                // bf16 products per second by the data sheet: what MFU is a fraction of
  double product_flops, copy_bytes;  // per second, bf16 products and copies that GPUs of this kind sustain
  double link_bytes, network_bytes;  // per second in one direction by the data sheets: NVLink, one network card per GPU
};

// Throws Error(usage), naming those that are known.
const GpuDescription& find_gpu(const std::string& name);

// Rates of causal attention there: [head size, sequence length] -> FLOP/s, between published ones by interpolation.
Roofline limits_of(const GpuDescription&, int64_t head_dim, int64_t seq_length);

struct DescribedBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;  // knows scratch sizes: those of the kernels that are known to need much; nothing can run
  Tuning* tuning = nullptr;  // part of ops
};
DescribedBackend describe(const GpuDescription&);

}  // namespace athanor
