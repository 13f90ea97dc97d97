// Predicts a run on many ranks that need not exist: memory per rank by planning single ranks, traffic and time by the
// model of docs/distributed.md.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/choices.h"
#include "comm/mesh.h"
#include "comm/network.h"
#include "config/config.h"
#include "device/gpu_specs.h"
#include "device/memory_plan.h"
#include "engine/engine.h"
#include "model/model.h"
#include "perf/assumptions.h"
#include "perf/described_gpu.h"
#include "perf/traffic.h"

namespace athanor {

// Context parallelism in the output of a plan: the method (ring or gather) chosen for keys and values, the bytes that
// it sends and the time that attention waits for it, and the same figures of the other method.
struct ContextFigures {
  ContextMethod method = ContextMethod::gather;
  double bytes = 0, calls = 0;  // bytes and operations of a rank, per block and micro-batch
  double waits = 0, step = 0;   // seconds: exposed waiting per step, and the whole step
  size_t memory = 0;            // bytes per rank
};
ContextFigures context_figures(Engine&, const StepTraffic&, double step);

// Two lines: the figures of the method chosen for this number of ranks, and those of the other method, which `other`
// returns; `other` throws Error if that method does not fit.
std::string context_text(const ContextFigures& chosen, int64_t ranks,
                         const std::function<ContextFigures(ContextMethod)>& other);

constexpr int kGpusPerNode = 8;

// A set of ranks. Each rank has one such GPU, or is a rank on this machine's CPU if `gpu` has no key; all nodes have
// equally many ranks.
struct Cluster {
  GpuSpec gpu;
  int ranks = 1, nodes = 1;
  Network network;      // rates are those of the GPU's links
  Assumptions assumed;  // assumptions for the expected step
};

struct ManyRanks {
  int ranks = -1;                // 0: prints a table of 1, 2, 4 ... 1024; negative: not requested
  int nodes = 0;                 // 0: the smallest number that divides the ranks, with up to 8 GPUs per node
  double link = 0, network = 0;  // GB/s of a GPU in one direction, within a node and between nodes; 0: from its data
                                 // sheet
  // Achieved fraction of the bandwidth, and latencies in microseconds. 0 or negative: defaults of Network.
  double bandwidth_share = 0, latency = -1, doubling_latency = -1;
  std::vector<std::string> assume = {};  // name=value, overriding expected_on()
  // Throws Error(usage) if the ranks do not divide among the nodes, or an assumption is unknown.
  Cluster cluster(const GpuSpec&, int ranks) const;
  // `expected` with the overrides of `assume`.
  Assumptions assumed(const Assumptions& expected) const;
};

// Predicted step of one rank.
struct Prediction {
  int64_t micro_batch_size = 0, micro_batches = 0;
  size_t memory = 0;                                  // bytes; in a pipeline, those of the stage that needs the most
  std::array<size_t, kMemoryKinds> memory_by_kind{};  // bytes of the same stage
  StepTraffic traffic;
  double sent_to_stages = 0;                    // bytes sent by a rank per step
  double compute = 0, update = 0, exposed = 0;  // seconds; compute includes update, launching and slowed; exposed:
                                                // communication that is not overlapped
  double launching = 0;                         // seconds between kernels
  double slowed = 0;                            // seconds that computation loses to concurrent communication
  Recompute recompute = {};
  double flops_per_token = 0;  // causal count, with the forward pass of a teacher that runs
  // The parts of `exposed` by kind of parallelism: data, context, tensor, expert and pipeline parallelism. `data`
  // includes all gradient reductions except over the pipeline ranks.
  struct Waits {
    double data = 0, context = 0, tensor = 0;
    double experts = 0;  // with expert_parallel_size above 1: all-to-all of rows to experts and back
    double stages = 0;   // with pipeline_parallel_size above 1
  } waits;
  ContextFigures context;  // with context_parallel_size above 1
  double step() const { return compute + exposed; }
};

// Mesh of the first rank of a pipeline stage, with ranks that do not exist: for plans, which record collectives but run
// none.
ProcessMesh absent_mesh(const MeshSizes& sizes, int stage = 0);
// The smallest mesh that a configuration can run on.
MeshSizes first_mesh_sizes(const Config&);

// Recorded dry runs of one rank of each distinct pipeline stage, from which predictions are computed instantly.
class RankPlan {
 public:
  // Throws Error if the ranks cannot be divided as configured, or a rank does not fit in memory.
  RankPlan(const Config&, const Cluster&);
  // Plans ranks on this machine's CPU, with rates measured here.
  RankPlan(const Config&, const Cluster&, const Backend&, const Roofline&);
  Prediction with(const Assumptions&) const;
  const Assumptions& assumed() const { return assumed_; }  // the cluster's assumptions
  void assume(const Assumptions& assumed) { assumed_ = assumed; }
  // Rate of the step's own GEMMs, each timed in isolation on this machine, as a fraction of the rate of a large GEMM
  // with the same kind of operands.
  double measured_gemms(const Backend&) const;
  Prediction expected() const { return with(assumed_); }

 private:
  struct Rank {  // the rank that represents one stage
    ProcessMesh mesh;
    std::unique_ptr<Engine> engine;
  };
  void record(const Config&, const Cluster&, Device&, Ops&, Tuning*);
  Assumptions assumed_;
  Network network_;
  Roofline limits_;
  int stride_ = 1;           // ranks between neighbouring stages
  bool alternates_ = false;  // no overlap: ranks alternate between sending and computing
  int64_t seq_length_;
  DescribedBackend described_;
  std::vector<std::unique_ptr<Rank>> stages_;
};

// The lower bound of the step, with ideal rates.
Prediction predict(const Config&, const Cluster&);

}  // namespace athanor
