// plan --ranks N: the ways to divide N ranks among copies, shards, context and tensor parallelism, by the model of
// docs/distributed.md: what each takes, which does not fit and why, and why the best is the best.
#pragma once
#include "config/config.h"
#include "device/gpu_specs.h"

namespace athanor {

void print_meshes(const Config&, const GpuSpec&, int ranks, int nodes);

}  // namespace athanor
