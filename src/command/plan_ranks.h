// What many ranks of a run would take, without having them: memory per rank by the plan of a rank, traffic and time by
// a model that docs/distributed.md states.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "comm/network.h"
#include "command/plan_context.h"
#include "config/config.h"
#include "device/gpu_specs.h"
#include "device/memory_plan.h"
#include "engine/engine.h"
#include "model/model.h"
#include "perf/assumptions.h"
#include "perf/described_gpu.h"
#include "perf/traffic.h"

namespace athanor {

constexpr int kGpusPerNode = 8;

// Ranks, each with such a GPU, or without a key one of this machine; as many on every node.
struct Cluster {
  GpuSpec gpu;
  int ranks = 1, nodes = 1;
  Network network;      // its rates are those of the GPU's links
  Assumptions assumed;  // of a step that is expected
};

struct ManyRanks {
  int ranks = -1;                // 0: a table of 1, 2, 4 ... 1024; negative: not asked for
  int nodes = 0;                 // 0: as few as divide the ranks, with up to 8 GPUs per node
  double link = 0, network = 0;  // GB/s of a GPU in one direction, within a node and between nodes; 0: its data sheet's
  // Reached fraction of the bandwidth, and latencies in microseconds. 0, or negative: Network's defaults.
  double bandwidth_share = 0, latency = -1, doubling_latency = -1;
  std::vector<std::string> assume = {};  // name=value, in place of expected_on()
  // Throws Error(usage) where the ranks do not divide among the nodes, or an assumption is unknown.
  Cluster cluster(const GpuSpec&, int ranks) const;
  // Expected of it, unless `assume` says otherwise.
  Assumptions assumed(const Assumptions& expected) const;
};

// Predicted step of one rank.
struct Prediction {
  int64_t micro_batch_size = 0, micro_batches = 0;
  size_t memory = 0;                                  // bytes; in a pipeline of the stage that needs most
  std::array<size_t, kMemoryKinds> memory_by_kind{};  // bytes of the same
  StepTraffic traffic;
  double sent_to_stages = 0;                    // bytes of a rank in a step
  double compute = 0, update = 0, exposed = 0;  // seconds; compute includes update, launching and slowed
  double launching = 0;                         // seconds between kernels
  double slowed = 0;                            // seconds that computing loses to sends at the same time
  Recompute recompute = {};
  double flops_per_token = 0;
  // What `exposed` is the sum of, by the ranks that are waited for: those with other sequences, with the same
  // sequences, with the same products and with other blocks. The first includes sums of gradients over all but the
  // last.
  struct Waits {
    double data = 0, context = 0, tensor = 0;
    double experts = 0;  // with expert_parallel_size above 1: rows on their way to experts and back
    double stages = 0;   // with pipeline_parallel_size above 1
  } waits;
  ContextFigures context;  // with context_parallel_size above 1
  double step() const { return compute + exposed; }
};

// Mesh of the first rank of a pipeline stage, of absent ranks: for plans, which record collectives and run none.
ProcessMesh absent_mesh(const MeshSizes& sizes, int stage = 0);
// The mesh of the fewest ranks that a configuration can run on.
MeshSizes first_mesh_sizes(const Config&);

// The recorded dry runs of a rank of each pipeline stage that differs, of which predictions follow in no time.
class RankPlan {
 public:
  // Throws Error where the ranks cannot be divided so, or a rank does not fit in memory.
  RankPlan(const Config&, const Cluster&);
  // A plan of ranks on this machine's CPU, with rates that were measured here.
  RankPlan(const Config&, const Cluster&, const Backend&, const Roofline&);
  Prediction with(const Assumptions&) const;
  const Assumptions& assumed() const { return assumed_; }  // those of the cluster
  Prediction expected() const { return with(assumed_); }

 private:
  struct Rank {  // of one stage
    ProcessMesh mesh;
    std::unique_ptr<Engine> engine;
  };
  void record(const Config&, const Cluster&, Device&, Ops&, Tuning*);
  Assumptions assumed_;
  Network network_;
  Roofline limits_;
  int stride_ = 1;         // ranks between two stages
  bool in_turns_ = false;  // ranks send and compute in turns: nothing of what they send is hidden
  int64_t seq_length_;
  DescribedBackend described_;
  std::vector<std::unique_ptr<Rank>> stages_;
};

// The bound: nothing beats it.
Prediction predict(const Config&, const Cluster&);

// The cluster of the given ranks, or of one rank a node; prints what it assumes of the GPU and its links.
// `how`: how the ranks are divided, before a comma, or nothing.
Cluster print_cluster_of(const Config&, const std::string& gpu, const ManyRanks&, const std::string& how = "");
void print_many_ranks(const Config&, const std::string& gpu, const ManyRanks&);

}  // namespace athanor
