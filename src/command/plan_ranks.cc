#include "command/plan_ranks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "metrics/format.h"
#include "train/described_gpu.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr int kGpusPerNode = 8, kMostRanks = 1024;
constexpr double kBandwidthShare = 0.8;        // of the data sheet, by large messages
constexpr double kStart = 20e-6, kHop = 5e-6;  // seconds: of a collective, and of each doubling of its ranks
constexpr double kBackward = 2.0 / 3;          // of a micro-batch's time

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
  const GpuDescription& gpu;
  int per_node;
  // Seconds of a collective over `ranks` ranks that are `stride` apart, when each sends `bytes`.
  double seconds(double bytes, int ranks, int stride) const {
    if (ranks == 1) return 0;
    const double rate = int64_t(ranks) * stride <= per_node ? gpu.link_bytes : gpu.network_bytes;
    return kStart + kHop * std::ceil(std::log2(ranks)) + bytes / (rate * kBandwidthShare);
  }
};

// Collectives of one kind in a step: sent by a rank, and their time.
struct Traffic {
  double bytes = 0, seconds = 0, ends = 0;
  // `end`: this one has nothing to run beside.
  void add(double sent, double time, double times, bool end) {
    bytes += sent * times, seconds += time * times;
    if (end) ends += time;
  }
  // Seconds that computing of `room` seconds beside it does not hide.
  double exposed(double room) const { return ends + std::max(0.0, seconds - ends - room); }
};

// As ParamStore communicates: see docs/distributed.md, "The model of plan --ranks".
struct StepTraffic {
  Traffic early;     // beside the last micro-batch's backward
  Traffic backward;  // beside every micro-batch's backward
  Traffic gathers;   // beside forward and backward
  Traffic ends;      // before or after the optimizer, beside nothing

  double bytes() const { return early.bytes + backward.bytes + gathers.bytes + ends.bytes; }
  double seconds() const { return early.seconds + backward.seconds + gathers.seconds + ends.seconds; }
  double exposed(double compute, double micros) const {
    return early.exposed(compute * kBackward / micros) + backward.exposed(compute * kBackward) +
           gathers.exposed(compute) + ends.seconds;
  }
};

StepTraffic traffic(const Engine& engine, const Config& c, const std::array<int, kAxes>& mesh, const Network& net) {
  const auto& units = engine.model().params().units();
  const int shards = mesh[size_t(Axis::dp_shard)], copies = mesh[size_t(Axis::dp_replicate)];
  const double value = double(size_of(engine.options().recipe.compute)), grad = 4;
  const auto micros = double(engine.micro_batches());
  const auto share = [](int n) { return double(n - 1) / n; };
  StepTraffic t;
  for (size_t u = 0; u < units.size(); ++u) {
    const auto n = double(units[u]->layout.numel);
    const bool last = u + 1 == units.size(), first = u == 0;
    const double gather = share(shards) * n * value, scatter = share(shards) * n * grad;
    const double gather_s = net.seconds(gather, shards, 1), scatter_s = net.seconds(scatter, shards, 1);
    const double copied = 2 * share(copies) * n / shards * grad, copied_s = net.seconds(copied, copies, shards);
    (c.zero_stage < 2 ? t.early : t.ends).add(copied, copied_s, 1, first);
    if (c.zero_stage == 1) t.early.add(scatter, scatter_s, 1, first);
    if (c.zero_stage >= 2) t.backward.add(scatter, scatter_s, micros, first);
    if (c.zero_stage == 3) t.gathers.add(gather, gather_s, 2 * micros, first || last);
    if (c.zero_stage == 1 || c.zero_stage == 2) t.ends.add(gather, gather_s, 1, false);
  }
  return t;
}

void print_row(const Config& config, const GpuDescription& gpu, const ManyRanks& many, int ranks) {
  Config c = config;
  if (ranks % c.data_parallel_replicate_size != 0) return;
  if (many.ranks == 0) c.data_parallel_shard_size = 0;
  const auto sizes = mesh_sizes(c, ranks);
  ProcessMesh mesh = absent_mesh(sizes);
  const DescribedBackend described = describe(gpu);
  const auto engine = make_engine(c, {*described.device, *described.ops, mesh}, true);
  const int nodes = many.nodes > 0 ? many.nodes : (ranks + kGpusPerNode - 1) / kGpusPerNode;
  const StepTraffic t = traffic(*engine, c, sizes, {gpu, std::max(1, ranks / nodes)});
  const double tokens = double(c.global_batch_size * c.seq_length);
  const double compute = least_sum(planned_rows(*engine, limits_of(gpu, c.model.head_dim, c.seq_length)));
  const double exposed = t.exposed(compute, double(engine->micro_batches()));
  std::printf("%6d %5d %4lld x %-4lld %11s %12s %11.2f %11.2f %11.2f %11s\n", ranks, nodes,
              static_cast<long long>(engine->options().micro_batch_size),
              static_cast<long long>(engine->micro_batches()), format_bytes(engine->memory().total()).c_str(),
              format_bytes(uint64_t(t.bytes())).c_str(), compute * 1e3, t.seconds() * 1e3, exposed * 1e3,
              format_count(tokens / (compute + exposed)).c_str());
}

}  // namespace

void print_many_ranks(const Config& config, const std::string& name, const ManyRanks& many) {
  const GpuDescription& gpu = find_gpu(name);
  if (many.nodes > 0 && many.ranks > 0 && many.ranks % many.nodes != 0)
    throw Error(cat("plan: ", many.ranks, " ranks do not divide among ", many.nodes, " nodes"), Exit::usage);
  std::printf("%s, zero_stage %lld, a step of %lld sequences; at best, by the model of docs/distributed.md\n",
              gpu.title, static_cast<long long>(config.zero_stage), static_cast<long long>(config.global_batch_size));
  std::printf("%6s %5s %11s %11s %12s %11s %11s %11s %11s\n", "ranks", "nodes", "micro", "memory", "sent/step",
              "compute ms", "sending ms", "exposed ms", "tokens/s");
  if (many.ranks > 0) return print_row(config, gpu, many, many.ranks);
  for (int ranks = 1; ranks <= kMostRanks; ranks *= 2) {
    if (config.global_batch_size % (ranks * std::max<int64_t>(1, config.micro_batch_size)) != 0) break;
    print_row(config, gpu, many, ranks);
  }
}

}  // namespace athanor
