// A GPU described by its specifications, for `athanor plan --gpu`: memory and roofline of a run on it. Allocates and
// runs nothing.
#pragma once
#include <memory>

#include "device/device.h"
#include "device/gpu_specs.h"
#include "ops/tuning.h"
#include "perf/roofline.h"

namespace athanor {

// Rates of causal attention: [head size, sequence length] -> FLOP/s, interpolated between published values.
Roofline limits_of(const GpuSpec&, int64_t head_dim, int64_t seq_length);

struct DescribedBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;  // report scratch sizes of kernels known to need much; cannot run
  Tuning* tuning = nullptr;  // part of ops
};
// tokens: of a sequence, for cuDNN's attention; 0: the table of spans has no more rows than there are sequences.
DescribedBackend describe(const GpuSpec&, int64_t tokens = 0);

}  // namespace athanor
