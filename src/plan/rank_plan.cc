#include "plan/rank_plan.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "perf/gemm_times.h"
#include "perf/offload_time.h"
#include "perf/pipeline_time.h"
#include "train/setup.h"

namespace athanor {
namespace {

// A communicator of ranks that do not exist: for plans, which record collectives but run none.
class Absent final : public Communicator {
 public:
  Absent(int size, int rank, std::vector<int> splits, int stage = 0)
      : size_(size), rank_(rank), splits_(std::move(splits)), stage_(stage) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Communicator> split(int, int) override {
    if (splits_.empty())
      return std::make_unique<Absent>(size_, rank_, std::vector<int>{});  // splits of a group have all its ranks
    CHECK(next_ < splits_.size(), "split ", next_, " of ", splits_.size());
    const int rank = next_ == 0 ? stage_ : 0;  // the first split is the group of the pipeline stages
    return std::make_unique<Absent>(splits_[next_++], rank, std::vector<int>{});
  }
  void all_reduce(Tensor, Reduce, Stream) override { refuse(); }
  void all_gather(Tensor, Tensor, Stream) override { refuse(); }
  void reduce_scatter(Tensor, Tensor, Reduce, Stream) override { refuse(); }
  int64_t sum_workspace(DType dtype, int64_t n) const override { return bf16_sum_workspace(dtype, n, size_); }
  void send(Tensor, int, Stream) override { refuse(); }
  void recv(Tensor, int, Stream) override { refuse(); }
  void exchange(Tensor, Tensor, int, Stream) override { refuse(); }
  void all_to_all(std::span<const Tensor>, std::span<const Tensor>, Stream) override { refuse(); }
  void broadcast(Tensor, int, Stream) override { refuse(); }
  void barrier() override { refuse(); }

 private:
  [[noreturn]] static void refuse() { check_failed(__FILE__, __LINE__, "plan", "a plan talks to no rank"); }
  int size_, rank_;
  std::vector<int> splits_;  // sizes of the groups, in the order in which ProcessMesh splits
  int stage_;
  size_t next_ = 0;
};

}  // namespace

// If the number of nodes is not given: the smallest number that the ranks fill evenly.
Cluster ManyRanks::cluster(const GpuSpec& gpu, int count) const {
  int on = nodes > 0 ? nodes : (count + kGpusPerNode - 1) / kGpusPerNode;
  while (nodes == 0 && count % on != 0) ++on;
  if (count % on != 0) throw Error(cat("plan: ", count, " ranks do not divide among ", on, " nodes"), Exit::usage);
  Network net{.link_bytes = link > 0 ? link * 1e9 : gpu.link_bytes,
              .network_bytes = network > 0 ? network * 1e9 : gpu.network_bytes,
              .per_machine = count / on};
  if (bandwidth_share > 0) net.bandwidth_share = bandwidth_share;
  if (latency >= 0) net.start = latency * 1e-6;
  if (doubling_latency >= 0) net.hop = doubling_latency * 1e-6;
  return {gpu, count, on, net, assumed(expected_on(gpu))};
}

Assumptions ManyRanks::assumed(const Assumptions& expected) const {
  Assumptions all = expected;
  for (const std::string& text : assume) set(all, text);
  return all;
}

namespace {

// The stages that are planned, one of each kind: first, second and last; all of them if there are few or the layout is
// given.
std::vector<int> different_stages(const Config& c, int stages) {
  std::vector<int> all(static_cast<size_t>(stages));
  std::iota(all.begin(), all.end(), 0);
  if (stages <= 3 || !c.pipeline_layout.empty()) return all;
  return {0, 1, stages - 1};
}

int64_t launches_of_step(const Engine& engine) {
  return int64_t(engine.micro_launches().size()) * engine.micro_batches() + int64_t(engine.update_launches().size());
}

}  // namespace

RankPlan::RankPlan(const Config& c, const Cluster& on)
    : assumed_(on.assumed),
      network_(on.network),
      limits_(limits_of(on.gpu, c.model.head_dim, c.seq_length, make_recipe(name_of(c.precision), DType::f32))),
      seq_length_(c.seq_length),
      described_(describe(on.gpu, c.context_parallel_size == 1 ? c.seq_length : 0)) {
  record(c, on, *described_.device, *described_.ops, described_.tuning);
}

RankPlan::RankPlan(const Config& c, const Cluster& on, const Backend& here, const Roofline& limits)
    : assumed_(on.assumed), network_(on.network), limits_(limits), seq_length_(c.seq_length) {
  record(c, on, here.device, here.ops, here.tuning);
}

void RankPlan::record(const Config& c, const Cluster& on, Device& device, Ops& ops, Tuning* tuning) {
  const MeshSizes sizes = mesh_sizes(c, on.ranks);
  stride_ = sizes.of_worker() / sizes.stages;
  alternates_ = device.unified();
  for (const int s : different_stages(c, sizes.stages)) {
    auto rank = std::make_unique<Rank>(Rank{absent_mesh(sizes, s), nullptr});
    const Backend backend{device, ops, rank->mesh, tuning, nullptr, on.network};
    if (s == 0) {
      rank->engine = make_engine(c, backend, true);
    } else {
      rank->engine = std::make_unique<Engine>(c.model, stages_[0]->engine->options(), backend);
      rank->engine->memory().require_fits(memory_capacity(c, device), runtime_reserve(c, device));
    }
    rank->engine->memory();  // performs and records the dry run
    stages_.push_back(std::move(rank));
  }
}

double RankPlan::measured_gemms(const Backend& here) const {
  double least = 0, seconds = 0;  // least: at the rates of large GEMMs
  for (const GemmUse& use : gemms_of_step(*stages_[0]->engine)) {
    const Factors factors = use.quantized ? here.ops.plan_scaled_gemm(*use.quantized).factors : Factors::matrices;
    least += double(use.launches) * use.op.cost().flops / limits_.most.flops_of(factors);
    seconds += double(use.launches) * time_gemm(here, use).seconds;
  }
  return seconds > 0 ? least / seconds : 1;
}

Prediction RankPlan::with(const Assumptions& assumed) const {
  Engine& engine = *stages_[0]->engine;
  ProcessMesh& mesh = stages_[0]->mesh;
  const Roofline limits = assumed.of(limits_);
  const Network network = assumed.of(network_);
  Prediction p;
  double launches = 0, end = 0;  // seconds of the slowest stage; end: the optimizer's part of it
  for (const auto& stage : stages_) {
    Engine& e = *stage->engine;
    const double gaps = assumed.launch * double(launches_of_step(e));
    launches = std::max(launches, least_sum(planned_rows(e, limits)) + gaps);
    p.launching = std::max(p.launching, gaps);
    end = std::max(end, least_update_seconds(e, limits) + assumed.launch * double(e.update_launches().size()));
    if (e.memory().total() <= p.memory) continue;
    p.memory = e.memory().total();
    for (int k = 0; k < kMemoryKinds; ++k) p.memory_by_kind[size_t(k)] = e.memory().total(MemoryKind(k));
  }
  const OffloadTime host = offload_time(engine, limits);
  const PipelineTime pipeline = pipeline_time(engine, network, launches - end, stride_);
  p.micro_batch_size = engine.options().micro_batch_size, p.micro_batches = engine.micro_batches();
  p.traffic = step_traffic(engine, mesh, network, alternates_ ? nullptr : &limits);
  p.sent_to_stages = sent_to_stages(engine);
  p.update = end + host.exposed;
  p.recompute = engine.options().recompute;
  p.flops_per_token = flops_per_token(engine, seq_length_).causal;
  const double concurrent = alternates_ ? 0 : launches;  // seconds of computation that communication can overlap with
  const double gemms = alternates_ ? 0 : min_update_gemm_seconds(engine, limits);
  p.waits.stages = pipeline.waits + pipeline.sending;
  const double exposed = p.traffic.exposed(concurrent, double(p.micro_batches), gemms);
  p.exposed = exposed + p.waits.stages;
  const double sending = p.traffic.seconds(), hidden = sending > 0 ? std::max(0.0, 1 - exposed / sending) : 0;
  p.slowed = assumed.interference * hidden * p.traffic.bytes();
  p.compute = launches + host.exposed + host.inputs_exposed + host.units_exposed + p.slowed;
  const bool alone = mesh.data_parallel().size() == 1;  // no data parallelism: all other ranks are tensor-parallel
  for (const auto& [of, seconds] : p.traffic.exposed_by_layer(concurrent, double(p.micro_batches), gemms))
    (of.group == "tp" || (of.group == "world" && alone) ? p.waits.tensor
     : of.group == "cp"                                 ? p.waits.context
     : of.group == "ep"                                 ? p.waits.experts
                                                        : p.waits.data) += seconds;
  p.context = context_figures(engine, p.traffic, p.step());
  return p;
}

Prediction predict(const Config& c, const Cluster& on) { return RankPlan(c, on).with({}); }

ProcessMesh absent_mesh(const MeshSizes& sizes, int stage) {
  const int of_stage = sizes.of_worker() / sizes.stages;
  return {std::make_unique<Absent>(sizes.ranks(), stage * of_stage, ProcessMesh::splits(sizes), stage), sizes};
}

MeshSizes first_mesh_sizes(const Config& c) {
  const int64_t shards = std::lcm(std::max<int64_t>(1, c.data_parallel_shard_size), c.expert_parallel_size);
  const int64_t data = c.data_parallel_replicate_size * shards;
  return mesh_sizes(c, int(data * c.pipeline_parallel_size * c.tensor_parallel_size * c.context_parallel_size));
}

}  // namespace athanor
