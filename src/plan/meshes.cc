#include "plan/meshes.h"

#include <algorithm>
#include <variant>

#include "base/error.h"
#include "cpu/thread_pool.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr int kMostContext = 64;  // largest context-parallel size that is tried

std::vector<MeshChoice> mesh_choices(const Config& c, const Cluster& on) {
  std::vector<MeshChoice> all;
  const auto add = [&](const MeshChoice& w) {
    if (std::find(all.begin(), all.end(), w) == all.end()) all.push_back(w);
  };
  for (int tensor = 1; tensor <= on.ranks / on.nodes; ++tensor)
    for (int context = 1; context <= kMostContext; ++context) {
      const int together = int(c.pipeline_parallel_size) * tensor * context;
      if (!on.network.within_machines(tensor, 1) || on.ranks % together != 0) continue;
      const int groups = on.ranks / together;
      // The number of workers of local updates affects training, so all meshes have the configured one.
      const auto configured_copies = int(c.data_parallel_replicate_size);
      const auto replicas = copies_are_workers(c) ? std::vector{configured_copies}
                            : zero_stage(c) == 0  ? std::vector{groups}
                                                  : std::vector{1, configured_copies, on.nodes};
      for (const int copies : replicas)
        for (const bool sequence : {false, true})
          if (groups % copies == 0 && (tensor > 1 || !sequence))
            add({copies, groups / copies, context, tensor, sequence});
    }
  if (const auto way = configured_mesh(c, on.ranks)) add(*way);
  return all;
}

}  // namespace

std::string to_text(const MeshChoice& w) {
  return cat("dp_replicate ", w.copies, ", dp_shard ", w.shards, ", cp ", w.context, ", tp ", w.tensor,
             w.sequence_parallel ? " with sequence_parallel" : "");
}

std::optional<MeshChoice> configured_mesh(const Config& c, int ranks) {
  try {
    const MeshSizes sizes = mesh_sizes(c, ranks);
    return MeshChoice{sizes.copies * sizes.workers, sizes.shards, sizes.context, sizes.tensor, c.sequence_parallel};
  } catch (const Error&) {
    return std::nullopt;  // the plan of the configured mesh throws the same error
  }
}

std::string tried_meshes_text(const Config& c, const Cluster& on) {
  return cat("tried: tensor_parallel_size with all ranks of a group on one node, without and with sequence_parallel; ",
             "context_parallel_size up to ", kMostContext,
             copies_are_workers(c)
                 ? "; data_parallel_replicate_size copies, the workers of local_updates.steps or of the optimizer"
             : zero_stage(c) == 0 ? ""
                                  : "; one copy, one per node, or data_parallel_replicate_size",
             configured_mesh(c, on.ranks) ? "; and what is configured" : "", "\n");
}

Config with_mesh(const Config& config, const MeshChoice& w) {
  Config c = config;
  c.tensor_parallel_size = w.tensor, c.context_parallel_size = w.context;
  c.sequence_parallel = w.sequence_parallel;
  if (!copies_are_workers(c)) c.data_parallel_replicate_size = zero_stage(c) > 0 ? w.copies : 1;
  c.data_parallel_shard_size = 0;
  return c;
}

SentBytes sent_to(const StepTraffic& t, const MeshChoice& w, bool share_out) {
  SentBytes sent{t.bytes_of("dp_replicate") + t.bytes_of("expert_dp_replicate") + t.bytes_of("workers"),
                 t.bytes_of("dp_shard") + t.bytes_of("expert_dp_shard") + t.bytes_of("ep"), t.bytes_of("cp"),
                 t.bytes_of("tp")};
  const int data = w.copies * w.shards * w.context;  // 1: all other ranks have the same sequences
  (data == 1                               ? sent.tensor
   : share_out && w.shards * w.context > 1 ? sent.shards
                                           : sent.copies) += t.bytes_of("dp") + t.bytes_of("world");
  return sent;
}

PlannedMeshes plan_meshes(const Config& config, const Cluster& on) {
  const std::vector<MeshChoice> tried = mesh_choices(config, on);
  std::vector<std::variant<Prediction, std::string>> answers(tried.size());  // or why the mesh is not possible
  ThreadPool().parallel_for(int64_t(tried.size()), [&](int64_t i) {
    try {
      Config c = with_mesh(config, tried[size_t(i)]);
      validate(c);
      answers[size_t(i)] = predict(c, on);
    } catch (const Error& e) {
      answers[size_t(i)] = e.what();
    }
  });
  PlannedMeshes planned;
  for (size_t i = 0; i < tried.size(); ++i)
    if (auto* p = std::get_if<Prediction>(&answers[i]))
      planned.possible.push_back({tried[i], std::move(*p)});
    else
      planned.refused[std::get<std::string>(answers[i])].push_back(tried[i]);
  std::ranges::stable_sort(planned.possible, [](const PlannedMesh& a, const PlannedMesh& b) {
    return a.p.step() != b.p.step() ? a.p.step() < b.p.step() : a.p.memory < b.p.memory;
  });
  return planned;
}

}  // namespace athanor
