// The meshes of N ranks (replicas, shards, context and tensor parallelism, with and without sequence parallelism), each
// with its predicted step by the model of docs/distributed.md.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/rank_plan.h"

namespace athanor {

// Sizes of a mesh whose pipeline is the configured one.
struct MeshChoice {
  int copies = 1, shards = 1, context = 1, tensor = 1;
  bool sequence_parallel = false;  // with tensor above 1
  bool operator==(const MeshChoice&) const = default;
};
std::string to_text(const MeshChoice&);

// The configured mesh; nullopt if the ranks do not divide as configured.
std::optional<MeshChoice> configured_mesh(const Config&, int ranks);
// The configuration with this mesh, not yet validated.
Config with_mesh(const Config&, const MeshChoice&);

struct PlannedMesh {
  MeshChoice mesh;
  Prediction p;
};
struct PlannedMeshes {
  std::vector<PlannedMesh> possible;                       // shortest step first, then lowest memory
  std::map<std::string, std::vector<MeshChoice>> refused;  // keyed by the reason
};
PlannedMeshes plan_meshes(const Config&, const Cluster&);
// Describes the meshes that plan_meshes() considers.
std::string tried_meshes_text(const Config&, const Cluster&);

// Bytes that a rank sends per step, by group.
struct SentBytes {
  double copies, shards, context, tensor;
};
// Without sharding, gradients count as sent to replicas; expert-parallel ranks count as shards.
SentBytes sent_to(const StepTraffic&, const MeshChoice&, bool share_out);

}  // namespace athanor
