#include "command/plan_ranks.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/format.h"
#include "command/plan_forecast.h"
#include "command/plan_meshes.h"
#include "perf/described_gpu.h"
#include "perf/offload_time.h"
#include "perf/pipeline_time.h"
#include "perf/product_times.h"
#include "perf/traffic.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr int kMostRanks = 1024;

// A communicator of ranks that do not exist: for plans, which record collectives but run none.
class Absent final : public Communicator {
 public:
  Absent(int size, int rank, std::vector<int> splits, int stage = 0)
      : size_(size), rank_(rank), splits_(std::move(splits)), stage_(stage) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Communicator> split(int, int) override {
    if (splits_.empty())
      return std::make_unique<Absent>(size_, rank_, std::vector<int>{});  // of a group: all its ranks
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

void print_row(const Config& c, const Cluster& on, const Prediction& p) {
  const double tokens = double(c.global_batch_size * c.seq_length);
  std::printf("%6d %5d %4lld x %-4lld %11s %12s %11.2f %11.2f %11.2f %11.2f %11s\n", on.ranks, on.nodes,
              static_cast<long long>(p.micro_batch_size), static_cast<long long>(p.micro_batches),
              format_bytes(p.memory).c_str(), format_bytes(uint64_t(p.traffic.bytes() + p.sent_to_stages)).c_str(),
              p.compute * 1e3, p.update * 1e3, p.traffic.seconds() * 1e3, p.exposed * 1e3,
              format_count(tokens / p.step()).c_str());
}

// Prints the plans of 1, 2, 4 ... times the smallest number of ranks with whole tensor- and context-parallel groups,
// whole replicas and full nodes, as long as the batch divides among them.
void print_table(const Config& config, const GpuSpec& gpu, const ManyRanks& many) {
  Config c = config;
  c.data_parallel_shard_size = 0;
  const int64_t together = c.pipeline_parallel_size * c.tensor_parallel_size * c.context_parallel_size;
  const int64_t fewest = std::lcm(together * c.data_parallel_replicate_size, int64_t{std::max(1, many.nodes)});
  if (fewest > kMostRanks)
    throw Error(cat("plan: the table ends at ", kMostRanks, " ranks, and ", fewest,
                    " are the fewest that divide among the nodes, in groups of pipeline_parallel_size times "
                    "tensor_parallel_size times context_parallel_size times data_parallel_replicate_size ",
                    together * c.data_parallel_replicate_size, "; take fewer, or say how many with --ranks"),
                Exit::usage);
  int rows = 0;
  for (auto ranks = int(fewest); ranks <= kMostRanks; ranks *= 2) {
    const int64_t once = ranks / together * std::max<int64_t>(1, c.micro_batch_size);
    if (c.global_batch_size % once != 0) break;
    const Cluster on = many.cluster(gpu, ranks);
    ++rows;
    try {
      print_row(c, on, predict(c, on));
    } catch (const Error& e) {
      const std::string why = e.what();
      std::printf("%6d %5d  does not fit: %s\n", on.ranks, on.nodes, why.substr(0, why.find('\n')).c_str());
    }
  }
  if (rows == 0)
    throw Error(
        cat("plan: global_batch_size ", c.global_batch_size, " divides among none of ", fewest, ", ", 2 * fewest, ", ",
            4 * fewest, " ... ranks up to ", kMostRanks, "; change it, or say how many with --ranks"),
        Exit::usage);
}

// Prints the GPU figures that the model uses.
void print_rates(const Config& c, const Cluster& on) {
  const Roofline limits = limits_of(on.gpu, c.model.head_dim, c.seq_length);
  const auto memory = [&](size_t bytes) { return format_bytes(bytes); };
  const bool quantized = engine_options(c, true).recipe.low_precision() && limits.most.quantized > 0;
  std::printf(
      "of a GPU: products %s FLOP/s%s, attention %s forward and %s backward, copies %s B/s; %s of memory may be "
      "used, %s of it by runtime_reserve_mib\n",
      format_count(limits.most.flops).c_str(),
      quantized ? cat(" and in FP8 ", format_count(limits.most.quantized)).c_str() : "",
      format_count(limits.attention_forward).c_str(), format_count(limits.attention_backward).c_str(),
      format_count(limits.most.bytes).c_str(), memory(memory_capacity(c, *describe(on.gpu).device)).c_str(),
      memory(runtime_reserve(c, *describe(on.gpu).device)).c_str());
  const Network& net = on.network;
  std::printf(
      "its links: %.4g GB/s to others of its node, %.4g GB/s to other nodes, of which %.4g %% are reached; for each "
      "collective %.4g us, and %.4g us more per doubling of its ranks\n",
      net.link_bytes / 1e9, net.network_bytes / 1e9, 100 * net.bandwidth_share, 1e6 * net.start, 1e6 * net.hop);
}

}  // namespace

// If the number of nodes is not given: the fewest that are filled evenly.
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

// The stages whose plans differ: first, second and last; all of them if there are few or the layout is given.
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
      limits_(limits_of(on.gpu, c.model.head_dim, c.seq_length)),
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
  in_turns_ = device.unified();
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

double RankPlan::measured_products(const Backend& here) const {
  double flops = 0, seconds = 0;
  for (const ProductUse& use : products_of_step(*stages_[0]->engine)) {
    flops += double(use.launches) * use.op.cost().flops;
    seconds += double(use.launches) * time_product(here, use).seconds;
  }
  return seconds > 0 ? flops / seconds / limits_.most.flops : 1;
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
  p.traffic = step_traffic(engine, mesh, network, in_turns_ ? nullptr : &limits);
  p.sent_to_stages = sent_to_stages(engine);
  p.update = end + host.exposed;
  p.recompute = engine.options().recompute;
  p.flops_per_token = flops_per_token(engine.model(), seq_length_).causal;
  const double concurrent = in_turns_ ? 0 : launches;  // seconds of computation that communication can overlap with
  const double products = in_turns_ ? 0 : least_update_product_seconds(engine, limits);
  p.waits.stages = pipeline.waits + pipeline.sending;
  const double exposed = p.traffic.exposed(concurrent, double(p.micro_batches), products);
  p.exposed = exposed + p.waits.stages;
  const double sending = p.traffic.seconds(), hidden = sending > 0 ? std::max(0.0, 1 - exposed / sending) : 0;
  p.slowed = assumed.interference * hidden * p.traffic.bytes();
  p.compute = launches + host.exposed + host.inputs_exposed + host.units_exposed + p.slowed;
  const bool alone = mesh.data_parallel().size() == 1;  // no data parallelism: all other ranks are tensor-parallel
  for (const auto& [of, seconds] : p.traffic.exposed_by_layer(concurrent, double(p.micro_batches), products))
    (of.group == "tensor" || (of.group == "world" && alone) ? p.waits.tensor
     : of.group == "context"                                ? p.waits.context
     : of.group == "experts"                                ? p.waits.experts
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

Cluster print_cluster_of(const Config& config, const std::string& name, const ManyRanks& many, const std::string& how) {
  const GpuSpec& gpu = find_gpu(name);
  const Cluster on = many.cluster(gpu, many.ranks > 0 ? many.ranks : std::max(1, many.nodes));
  std::printf("%s, %sa step of %lld sequences, by the model of docs/distributed.md\n", gpu.title, how.c_str(),
              static_cast<long long>(config.global_batch_size));
  print_rates(config, on);
  return on;
}

void print_many_ranks(const Config& config, const std::string& name, const ManyRanks& many) {
  const std::string how = cat(
      "zero_stage ", zero_stage(config), ", ",
      config.pipeline_parallel_size > 1
          ? cat("pipeline_parallel_size ", config.pipeline_parallel_size, ", ", name_of(config.pipeline_schedule), ", ")
          : "",
      config.tensor_parallel_size > 1 ? cat("tensor_parallel_size ", config.tensor_parallel_size, ", ") : "",
      config.context_parallel_size > 1 ? cat("context_parallel_size ", config.context_parallel_size, ", ") : "",
      config.sequence_parallel ? "sequence_parallel, " : "");
  const Cluster on = print_cluster_of(config, name, many, how);
  std::printf("at best\n%6s %5s %11s %11s %12s %11s %11s %11s %11s %11s\n", "ranks", "nodes", "micro", "memory",
              "sent/step", "compute ms", "update ms", "sending ms", "exposed ms", "tokens/s");
  if (many.ranks == 0) return print_table(config, on.gpu, many);
  const auto others = [&] {
    if (on.ranks > 1) print_meshes(config, on);
  };
  try {
    const RankPlan plan(config, on);
    print_row(config, on, plan.with({}));
    std::printf("\n%s", to_text(forecast(plan)).c_str());
  } catch (const Error&) {  // the configured ranks do not fit; the table below shows what would
    others();
    throw;
  }
  others();
}

}  // namespace athanor
