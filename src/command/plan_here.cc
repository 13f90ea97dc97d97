#include "command/plan.h"

#include <cstdio>

#include "base/format.h"
#include "command/machine.h"
#include "perf/attention_rates.h"
#include "plan/forecast.h"
#include "train/setup.h"

namespace athanor {
namespace {

// The configuration of a single process, which measures the rates.
Config alone(const Config& config) {
  Config c = config;
  c.pipeline_parallel_size = c.tensor_parallel_size = c.context_parallel_size = c.expert_parallel_size = 1;
  c.data_parallel_replicate_size = 1, c.data_parallel_shard_size = 0;
  c.sequence_parallel = false;
  return c;
}

Roofline measured_rates(const Config& c, const Backend& here) {
  const Recipe recipe = make_recipe(name_of(c.precision), DType::f32);
  const DType compute = recipe.compute;
  const AttentionShape shape{c.model.num_attention_heads, c.model.num_key_value_heads, c.model.head_dim};
  const AttentionRates attention = measure_attention(here, shape, compute, c.seq_length);
  return {.most = measure_ceilings(here, compute, recipe.low_precision()),
          .attention_forward = attention.forward,
          .attention_backward = attention.backward};
}

}  // namespace

void print_ranks_here(const Config& config, const ManyRanks& many, bool json) {
  if (many.ranks < 1)
    throw Error("plan --ranks 0: the table of ranks needs a described GPU; name one with --gpu", Exit::usage);
  Machine machine(alone(config), RankInfo{}, WithoutLibraries::use_cpu);
  const Backend here = machine.backend();
  if (!here.device.unified())
    throw Error("plan --ranks: needs --gpu, or device \"cpu\" for ranks of this machine's CPU", Exit::usage);
  const Roofline limits = measured_rates(config, here);
  Network network = here.network;
  network.per_machine = many.ranks;
  if (many.link > 0) network.link_bytes = many.link * 1e9;
  const Cluster on{.gpu = {}, .ranks = many.ranks, .nodes = 1, .network = network, .assumed = {}};
  RankPlan plan(config, on, here, limits);
  plan.assume(many.assumed({.gemms = plan.measured_gemms(here)}));
  const Forecast f = forecast(plan);
  if (json) {
    print(to_json(config, on, f, 1), "\n");
    return;
  }
  std::printf(
      "%s; %d %s, each with %d %s; measured: GEMMs %s FLOP/s, those of a "
      "step %.0f %% of that, attention %s forward and %s backward, copies %s B/s; "
      "%.4g GB/s between ranks, assumed\n%s",
      machine.description().c_str(), on.ranks, on.ranks == 1 ? "rank" : "ranks", machine.threads(),
      machine.threads() == 1 ? "thread" : "threads", format_count(limits.most.flops).c_str(),
      100 * plan.assumed().gemms, format_count(limits.attention_forward).c_str(),
      format_count(limits.attention_backward).c_str(), format_count(limits.most.bytes).c_str(),
      network.link_bytes / 1e9, to_text(f).c_str());
}

}  // namespace athanor
