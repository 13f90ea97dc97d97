#include "command/plan_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "command/machine.h"
#include "cpu/make_cpu.h"
#include "metrics/format.h"
#include "train/setup.h"

namespace athanor {
namespace {

// Manufacturers' data sheets: dense products without sparsity, NVLink and one network card per GPU, one direction.
struct Gpu {
  const char* name;
  double bf16, tf32;     // FLOP/s
  double memory;         // bytes
  double link, network;  // bytes/s
};
constexpr Gpu kGpus[] = {{"a100", 312e12, 156e12, 80e9, 300e9, 25e9},
                         {"h100", 989e12, 494e12, 80e9, 450e9, 50e9},
                         {"h200", 989e12, 494e12, 141e9, 450e9, 50e9}};
constexpr int kGpusPerNode = 8, kMostRanks = 1024;
constexpr double kUtilization = 0.45;          // of the peak, by a step's products and all that is between them
constexpr double kBandwidthShare = 0.8;        // of the data sheet, by large messages
constexpr double kStart = 20e-6, kHop = 5e-6;  // seconds: of a collective, and of each doubling of its ranks

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
  void broadcast(Tensor, int, Lane) override { refuse(); }
  void barrier() override { refuse(); }

 private:
  [[noreturn]] static void refuse() { check_failed(__FILE__, __LINE__, "plan", "a plan talks to no rank"); }
  int size_;
  std::vector<int> splits_;  // sizes of the groups, in the order in which ProcessMesh asks for them
  size_t next_ = 0;
};

ProcessMesh absent_mesh(const std::array<int, kAxes>& sizes) {
  int world = 1;
  std::vector<int> splits(sizes.begin(), sizes.end());
  for (const int s : sizes) world *= s;
  splits.push_back(sizes[size_t(Axis::dp_replicate)] * sizes[size_t(Axis::dp_shard)]);
  return {std::make_unique<Absent>(world, splits), sizes};
}

struct Network {
  const Gpu& gpu;
  int per_node;
  // Seconds of a collective over `ranks` ranks that are `stride` apart, when each sends `bytes`.
  double seconds(double bytes, int ranks, int stride) const {
    if (ranks == 1) return 0;
    const double rate = (int64_t(ranks) * stride <= per_node ? gpu.link : gpu.network) * kBandwidthShare;
    return kStart + kHop * std::ceil(std::log2(ranks)) + bytes / rate;
  }
};

struct Traffic {
  double bytes = 0, seconds = 0;  // sent by a rank in a step
  double ends = 0;  // seconds of it that have nothing to hide behind: the first gather, the last reduction
  void add(double sent, double time, double times, bool at_end) {
    bytes += sent * times, seconds += time * times;
    if (at_end) ends += time;
  }
};

// As ParamStore communicates: see docs/distributed.md, "The model of plan --gpu".
Traffic traffic(Engine& engine, const Config& c, const std::array<int, kAxes>& mesh, const Network& net) {
  const auto& units = engine.model().params().units();
  const int shards = mesh[size_t(Axis::dp_shard)], copies = mesh[size_t(Axis::dp_replicate)];
  const double value = double(size_of(engine.options().recipe.compute)), grad = 4,
               micros = double(engine.micro_batches());
  const auto share = [](int n) { return double(n - 1) / n; };
  Traffic t;
  for (size_t u = 0; u < units.size(); ++u) {
    const auto n = double(units[u]->layout.numel);
    const bool last = u + 1 == units.size(), first = u == 0;
    const double gather = share(shards) * n * value, scatter = share(shards) * n * grad;
    const double gather_s = net.seconds(gather, shards, 1), scatter_s = net.seconds(scatter, shards, 1);
    if (c.zero_stage == 0) {
      const double sent = 2 * share(copies) * n * grad;
      t.add(sent, net.seconds(sent, copies, 1), 1, first);
      continue;
    }
    if (c.zero_stage == 1 && shards > 1) t.add(scatter, scatter_s, 1, first);
    if (c.zero_stage >= 2 && shards > 1) t.add(scatter, scatter_s, micros, first);
    if (c.zero_stage == 3 && shards > 1) t.add(gather, gather_s, 2 * micros, last);
    if (c.zero_stage < 3 && shards > 1) t.add(gather, gather_s, 1, last);
    const double copied = 2 * share(copies) * n / shards * grad;
    if (copies > 1) t.add(copied, net.seconds(copied, copies, shards), 1, first);
  }
  return t;
}

void print_row(const Config& config, const ManyRanks& many, const Gpu& gpu, int ranks) {
  Config c = config;
  if (ranks % c.data_parallel_replicate_size != 0) return;
  if (many.ranks == 0) c.data_parallel_shard_size = 0;
  const auto sizes = mesh_sizes(c, ranks);
  ProcessMesh mesh = absent_mesh(sizes);
  c.memory_limit_gib = gpu.memory / double(1 << 30);
  CpuBackend cpu = make_cpu({.threads = 1, .memory_limit = 0, .onednn = false});
  const auto engine = make_engine(c, {*cpu.device, *cpu.ops, mesh, nullptr, nullptr}, true);
  const int nodes = many.nodes > 0 ? many.nodes : (ranks + kGpusPerNode - 1) / kGpusPerNode;
  const Network net{gpu, std::max(1, ranks / nodes)};
  const Traffic t = traffic(*engine, c, sizes, net);
  const double tokens = double(c.global_batch_size * c.seq_length) / ranks;
  const double peak = size_of(engine->options().recipe.compute) == 2 ? gpu.bf16 : gpu.tf32;
  const double compute = flops_per_token(engine->model(), c.seq_length).causal * tokens / peak / kUtilization;
  // At best all but the ends hides behind computing.
  const double best = t.ends + std::max(0.0, t.seconds - t.ends - compute);
  const double step = compute + t.seconds;
  std::printf("%6d %5d %4lld x %-4lld %11s %12s %11.2f %11.2f %11.2f %11s\n", ranks, nodes,
              static_cast<long long>(engine->options().micro_batch_size),
              static_cast<long long>(engine->micro_batches()), format_bytes(engine->memory().total()).c_str(),
              format_bytes(uint64_t(t.bytes)).c_str(), compute * 1e3, t.seconds * 1e3, best * 1e3,
              format_count(tokens * ranks / step).c_str());
}

}  // namespace

void print_many_ranks(const Config& config, const ManyRanks& many) {
  const auto gpu = std::find_if(std::begin(kGpus), std::end(kGpus), [&](const Gpu& g) { return many.gpu == g.name; });
  if (gpu == std::end(kGpus)) throw Error(cat("plan: --gpu: expected a100, h100 or h200, got ", many.gpu), Exit::usage);
  if (many.nodes > 0 && many.ranks > 0 && many.ranks % many.nodes != 0)
    throw Error(cat("plan: ", many.ranks, " ranks do not divide among ", many.nodes, " nodes"), Exit::usage);
  std::printf("%s, zero_stage %lld, a step of %lld sequences; times by the model of docs/distributed.md\n", gpu->name,
              static_cast<long long>(config.zero_stage), static_cast<long long>(config.global_batch_size));
  std::printf("%6s %5s %11s %11s %12s %11s %11s %11s %11s\n", "ranks", "nodes", "micro", "memory", "sent/step",
              "compute ms", "exposed ms", "at best ms", "tokens/s");
  if (many.ranks > 0) return print_row(config, many, *gpu, many.ranks);
  for (int ranks = 1; ranks <= kMostRanks; ranks *= 2) {
    if (config.global_batch_size % (ranks * std::max<int64_t>(1, config.micro_batch_size)) != 0) break;
    print_row(config, many, *gpu, ranks);
  }
}

}  // namespace athanor
