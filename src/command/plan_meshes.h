// plan --ranks N: the ways to divide N ranks among copies, shards, context and tensor parallelism, the latter with and
// without sequence parallelism, by the model of docs/distributed.md: what each takes, which does not fit and why, and
// why the best is the best.
#pragma once
#include "config/config.h"

namespace athanor {

struct Cluster;

void print_meshes(const Config&, const Cluster&);

}  // namespace athanor
