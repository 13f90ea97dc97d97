// plan --ranks N: compares the meshes of N ranks (replicas, shards, context and tensor parallelism, with and without
// sequence parallelism) by the model of docs/distributed.md: their costs, which meshes do not fit and why, and why the
// best one is the best.
#pragma once
#include "config/config.h"

namespace athanor {

struct Cluster;

void print_meshes(const Config&, const Cluster&);

}  // namespace athanor
