// A GPU described by its data sheet, for `athanor plan --gpu`: memory plan and roofline of a run on it. Allocates and
// runs nothing.
#pragma once
#include <memory>

#include "device/device.h"
#include "device/gpu_specs.h"
#include "ops/tuning.h"
#include "perf/roofline.h"
#include "tape/recipe.h"

namespace athanor {

// Returns data-sheet limits; the recipe decides whether GEMMs run at the rate of 16-bit values, of TF32 or of f32. The
// rate of causal attention is interpolated between published values by [head size, sequence length].
Roofline limits_of(const GpuSpec&, int64_t head_dim, int64_t seq_length,
                   const Recipe& recipe = make_recipe("bf16", DType::f32));

struct DescribedBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;  // cannot run; reports scratch sizes of kernels that need much
  Tuning* tuning = nullptr;  // part of ops
};
// tokens: sequence length assumed for cuDNN's attention; 0 if the span table has at most one row per sequence.
DescribedBackend describe(const GpuSpec&, int64_t tokens = 0);

}  // namespace athanor
