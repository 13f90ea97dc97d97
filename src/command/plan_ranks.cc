#include "command/plan.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/format.h"
#include "perf/described_gpu.h"
#include "plan/forecast.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr int kMostRanks = 1024;

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
    throw Error(cat("plan: the table ends at ", kMostRanks,
                    " ranks, but the nodes and groups of pipeline_parallel_size x tensor_parallel_size x "
                    "context_parallel_size x data_parallel_replicate_size (",
                    together * c.data_parallel_replicate_size, " ranks) need at least ", fewest,
                    "; reduce them, or set --ranks"),
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
    throw Error(cat("plan: global_batch_size ", c.global_batch_size, " cannot be divided among ", fewest, ", ",
                    2 * fewest, ", ", 4 * fewest, " ... ranks up to ", kMostRanks, "; change it, or set --ranks"),
                Exit::usage);
}

// Prints the GPU figures that the model uses.
void print_rates(const Config& c, const Cluster& on) {
  const Recipe recipe = engine_options(c, true).recipe;
  const Roofline limits = limits_of(on.gpu, c.model.head_dim, c.seq_length, recipe);
  const auto memory = [&](size_t bytes) { return format_bytes(bytes); };
  const bool quantized = recipe.low_precision() && limits.most.quantized > 0;
  print("of a GPU: GEMMs ", format_count(limits.most.flops), " FLOP/s",
        quantized ? cat(" and in FP8 ", format_count(limits.most.quantized)) : "", ", attention ",
        format_count(limits.attention_forward), " forward and ", format_count(limits.attention_backward),
        " backward, copies ", format_count(limits.most.bytes), " B/s; ",
        memory(memory_capacity(c, *describe(on.gpu).device)), " of memory may be used, ",
        memory(runtime_reserve(c, *describe(on.gpu).device)), " of it by runtime_reserve_mib\n");
  const Network& net = on.network;
  std::printf(
      "its links: %.4g GB/s to others of its node, %.4g GB/s to other nodes, of which %.4g %% are reached; for each "
      "collective %.4g us, and %.4g us more per doubling of its ranks\n",
      net.link_bytes / 1e9, net.network_bytes / 1e9, 100 * net.bandwidth_share, 1e6 * net.start, 1e6 * net.hop);
}

}  // namespace

Cluster print_cluster_of(const Config& config, const std::string& name, const ManyRanks& many, const std::string& how) {
  const GpuSpec& gpu = find_gpu(name);
  const Cluster on = many.cluster(gpu, many.ranks > 0 ? many.ranks : std::max(1, many.nodes));
  print(gpu.title, ", ", how, "a step of ", config.global_batch_size,
        " sequences, by the model of docs/distributed.md\n");
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
    print("\n", to_text(forecast(plan)));
  } catch (const Error&) {  // the configured ranks do not fit; the table below shows what would
    others();
    throw;
  }
  others();
}

}  // namespace athanor
