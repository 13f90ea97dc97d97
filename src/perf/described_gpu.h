// A GPU that is only described, for `athanor plan --gpu`: how much memory a run would take there and which limit its
// step would have. It holds no memory and runs nothing.
#pragma once
#include <memory>

#include "device/device.h"
#include "device/gpu_specs.h"
#include "ops/tuning.h"
#include "perf/roofline.h"

namespace athanor {

// Rates of causal attention there: [head size, sequence length] -> FLOP/s, between published ones by interpolation.
Roofline limits_of(const GpuSpec&, int64_t head_dim, int64_t seq_length);

struct DescribedBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;  // knows scratch sizes: those of the kernels that are known to need much; nothing can run
  Tuning* tuning = nullptr;  // part of ops
};
DescribedBackend describe(const GpuSpec&);

}  // namespace athanor
