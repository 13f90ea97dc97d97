#include "command/plan_ranks.h"

#include <algorithm>
#include <cstdio>

#include "command/plan_meshes.h"
#include "metrics/format.h"
#include "perf/described_gpu.h"
#include "perf/traffic.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr int kMostRanks = 1024;

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
  int64_t room_of_sum(DType dtype, int64_t n) const override { return room_of_bf16_sum(dtype, n, size_); }
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
  const Prediction p = predict(c, gpu, ranks, many.on_nodes(ranks));
  const double tokens = double(c.global_batch_size * c.seq_length);
  std::printf("%6d %5d %4lld x %-4lld %11s %12s %11.2f %11.2f %11.2f %11.2f %11s\n", ranks, many.on_nodes(ranks),
              static_cast<long long>(p.micro_batch_size), static_cast<long long>(p.micro_batches),
              format_bytes(p.memory).c_str(), format_bytes(uint64_t(p.traffic.bytes())).c_str(), p.compute * 1e3,
              p.update * 1e3, p.traffic.seconds() * 1e3, p.exposed * 1e3, format_count(tokens / p.step()).c_str());
}

void print_links(const GpuSpec& gpu) {
  std::printf(
      "\nlinks of a GPU: %.4g GB/s to others of its node, %.4g GB/s to other nodes, of which %.0f %% are reached; for "
      "each collective %.0f us, and %.0f us more per doubling of its ranks\n",
      gpu.link_bytes / 1e9, gpu.network_bytes / 1e9, 100 * Network::kBandwidthShare, 1e6 * Network::kStart,
      1e6 * Network::kHop);
}

}  // namespace

int ManyRanks::on_nodes(int count) const { return nodes > 0 ? nodes : (count + kGpusPerNode - 1) / kGpusPerNode; }

Prediction predict(const Config& c, const GpuSpec& gpu, int ranks, int nodes) {
  ProcessMesh mesh = absent_mesh(mesh_sizes(c, ranks));
  const DescribedBackend described = describe(gpu, c.context_parallel_size == 1 ? c.seq_length : 0);
  const Network network{gpu.link_bytes, gpu.network_bytes, std::max(1, ranks / nodes)};
  const auto engine =
      make_engine(c, {*described.device, *described.ops, mesh, described.tuning, nullptr, network}, true);
  const Roofline limits = limits_of(gpu, c.model.head_dim, c.seq_length);
  Prediction p{.micro_batch_size = engine->options().micro_batch_size,
               .micro_batches = engine->micro_batches(),
               .memory = engine->memory().total(),
               .traffic = step_traffic(*engine, mesh, network, &limits),
               .compute = least_sum(planned_rows(*engine, limits)),
               .update = least_update_seconds(*engine, limits)};
  for (int k = 0; k < kMemoryKinds; ++k) p.memory_by_kind[size_t(k)] = engine->memory().total(MemoryKind(k));
  p.exposed = p.traffic.exposed(p.compute, double(p.micro_batches), least_update_product_seconds(*engine, limits));
  p.context = context_figures(*engine, p.traffic, p.step());
  return p;
}

ProcessMesh absent_mesh(const MeshSizes& sizes) {
  return {std::make_unique<Absent>(sizes.ranks(), ProcessMesh::splits(sizes)), sizes};
}

void print_many_ranks(const Config& config, const std::string& name, const ManyRanks& many) {
  GpuSpec gpu = find_gpu(name);
  if (many.link > 0) gpu.link_bytes = many.link * 1e9;
  if (many.network > 0) gpu.network_bytes = many.network * 1e9;
  if (many.nodes > 0 && many.ranks > 0 && many.ranks % many.nodes != 0)
    throw Error(cat("plan: ", many.ranks, " ranks do not divide among ", many.nodes, " nodes"), Exit::usage);
  const std::string groups =
      cat(config.tensor_parallel_size > 1 ? cat("tensor_parallel_size ", config.tensor_parallel_size, ", ") : "",
          config.context_parallel_size > 1 ? cat("context_parallel_size ", config.context_parallel_size, ", ") : "");
  std::printf("%s, zero_stage %d, %sa step of %lld sequences; at best, by the model of docs/distributed.md\n",
              gpu.title, zero_stage(config), groups.c_str(), static_cast<long long>(config.global_batch_size));
  std::printf("%6s %5s %11s %11s %12s %11s %11s %11s %11s %11s\n", "ranks", "nodes", "micro", "memory", "sent/step",
              "compute ms", "update ms", "sending ms", "exposed ms", "tokens/s");
  if (many.ranks > 0) {
    const auto others = [&] {
      if (many.ranks == 1) return;
      print_links(gpu);
      print_meshes(config, gpu, many.ranks, many.on_nodes(many.ranks));
    };
    try {
      print_row(config, gpu, many, many.ranks);
    } catch (const Error&) {  // not as configured: what would fit is below
      others();
      throw;
    }
    return others();
  }
  const auto together = int(config.tensor_parallel_size * config.context_parallel_size);
  for (int ranks = together; ranks <= kMostRanks; ranks *= 2) {
    const int64_t once = ranks / together * std::max<int64_t>(1, config.micro_batch_size);
    if (config.global_batch_size % once != 0) break;
    print_row(config, gpu, many, ranks);
  }
}

}  // namespace athanor
