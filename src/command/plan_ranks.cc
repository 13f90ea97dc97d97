#include "command/plan_ranks.h"

#include <algorithm>
#include <cstdio>

#include "metrics/format.h"
#include "perf/described_gpu.h"
#include "perf/traffic.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr int kGpusPerNode = 8, kMostRanks = 1024;

// Rank 0 of ranks that are not there: for plans, which record calls and make none.
class Absent final : public Communicator {
 public:
  Absent(int size, std::vector<int> splits) : size_(size), splits_(std::move(splits)) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  std::unique_ptr<Communicator> split(int, int) override {
    CHECK(next_ < splits_.size(), "split ", next_, " of ", splits_.size());
    return std::make_unique<Absent>(splits_[next_++], std::vector<int>{});
  }
  void all_reduce(Tensor, Reduce, Lane) override { refuse(); }
  void all_gather(Tensor, Tensor, Lane) override { refuse(); }
  void reduce_scatter(Tensor, Tensor, Reduce, Lane) override { refuse(); }
  void send(Tensor, int, Lane) override { refuse(); }
  void recv(Tensor, int, Lane) override { refuse(); }
  void exchange(Tensor, Tensor, int, Lane) override { refuse(); }
  void all_to_all(std::span<const Tensor>, std::span<const Tensor>, Lane) override { refuse(); }
  void broadcast(Tensor, int, Lane) override { refuse(); }
  void barrier() override { refuse(); }

 private:
  [[noreturn]] static void refuse() { check_failed(__FILE__, __LINE__, "plan", "a plan talks to no rank"); }
  int size_;
  std::vector<int> splits_;  // sizes of the groups, in the order in which ProcessMesh asks for them
  size_t next_ = 0;
};

void print_row(const Config& config, const GpuSpec& gpu, const ManyRanks& many, int ranks) {
  Config c = config;
  if (many.ranks == 0 &&
      ranks % (c.data_parallel_replicate_size * c.tensor_parallel_size * c.context_parallel_size) != 0)
    return;
  if (many.ranks == 0) c.data_parallel_shard_size = 0;
  const auto sizes = mesh_sizes(c, ranks);
  ProcessMesh mesh = absent_mesh(sizes);
  const DescribedBackend described = describe(gpu);
  const int nodes = many.nodes > 0 ? many.nodes : (ranks + kGpusPerNode - 1) / kGpusPerNode;
  const Network network{gpu.link_bytes, gpu.network_bytes, std::max(1, ranks / nodes)};
  const auto engine =
      make_engine(c, {*described.device, *described.ops, mesh, described.tuning, nullptr, network}, true);
  const StepTraffic t = step_traffic(*engine, mesh, network);
  const double tokens = double(c.global_batch_size * c.seq_length);
  const Roofline limits = limits_of(gpu, c.model.head_dim, c.seq_length);
  const double compute = least_sum(planned_rows(*engine, limits)), update = least_update_seconds(*engine, limits);
  const double exposed =
      t.exposed(compute, double(engine->micro_batches()), least_update_product_seconds(*engine, limits));
  std::printf("%6d %5d %4lld x %-4lld %11s %12s %11.2f %11.2f %11.2f %11.2f %11s\n", ranks, nodes,
              static_cast<long long>(engine->options().micro_batch_size),
              static_cast<long long>(engine->micro_batches()), format_bytes(engine->memory().total()).c_str(),
              format_bytes(uint64_t(t.bytes())).c_str(), compute * 1e3, update * 1e3, t.seconds() * 1e3, exposed * 1e3,
              format_count(tokens / (compute + exposed)).c_str());
}

}  // namespace

ProcessMesh absent_mesh(const std::array<int, kAxes>& sizes) {
  int world = 1;
  std::vector<int> splits(sizes.begin(), sizes.end());
  for (const int s : sizes) world *= s;
  const int parts = sizes[size_t(Axis::cp)], shards = sizes[size_t(Axis::dp_shard)] * parts;
  splits.push_back(sizes[size_t(Axis::dp_replicate)] * shards);
  if (parts > 1) splits.push_back(shards);
  return {std::make_unique<Absent>(world, splits), sizes};
}

void print_many_ranks(const Config& config, const std::string& name, const ManyRanks& many) {
  const GpuSpec& gpu = find_gpu(name);
  if (many.nodes > 0 && many.ranks > 0 && many.ranks % many.nodes != 0)
    throw Error(cat("plan: ", many.ranks, " ranks do not divide among ", many.nodes, " nodes"), Exit::usage);
  const std::string groups =
      cat(config.tensor_parallel_size > 1 ? cat("tensor_parallel_size ", config.tensor_parallel_size, ", ") : "",
          config.context_parallel_size > 1 ? cat("context_parallel_size ", config.context_parallel_size, ", ") : "");
  std::printf("%s, zero_stage %d, %sa step of %lld sequences; at best, by the model of docs/distributed.md\n",
              gpu.title, zero_stage(config), groups.c_str(), static_cast<long long>(config.global_batch_size));
  std::printf("%6s %5s %11s %11s %12s %11s %11s %11s %11s %11s\n", "ranks", "nodes", "micro", "memory", "sent/step",
              "compute ms", "update ms", "sending ms", "exposed ms", "tokens/s");
  if (many.ranks > 0) return print_row(config, gpu, many, many.ranks);
  const auto together = int(config.tensor_parallel_size * config.context_parallel_size);
  for (int ranks = together; ranks <= kMostRanks; ranks *= 2) {
    const int64_t once = ranks / together * std::max<int64_t>(1, config.micro_batch_size);
    if (config.global_batch_size % once != 0) break;
    print_row(config, gpu, many, ranks);
  }
}

}  // namespace athanor
