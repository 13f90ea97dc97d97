#include "train/routing_report.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/moe.h"

namespace athanor {

bool routing_due(const Config& c, int64_t step) {
  const int64_t interval = c.log_routing_interval;
  return c.model.num_experts > 0 && interval > 0 && (step == c.train_iters || step % interval == 0);
}

int64_t routing_size(const ModelConfig& m) {
  return m.num_experts > 0 ? m.num_hidden_layers * RouterStatistics{m.num_experts}.size() : 0;
}

void add_routing(std::vector<double>& sums, std::span<const double> more) {
  if (sums.empty()) sums.resize(more.size());
  CHECK(sums.size() == more.size(), "statistics of ", more.size(), " are added to ", sums.size());
  for (size_t i = 0; i < more.size(); ++i) sums[i] += more[i];
}

std::vector<double> with_dropped(const ModelConfig& m, std::vector<double> sums) {
  const int64_t layers = m.num_hidden_layers, before = RouterStatistics{m.num_experts}.dropped();
  if (m.num_experts == 0 || int64_t(sums.size()) != layers * before) return sums;
  for (int64_t layer = layers; layer > 0; --layer) sums.insert(sums.begin() + layer * before, 0.0);
  return sums;
}

std::vector<RoutingMetrics> routing_records(const ModelConfig& m, std::span<const double> sums, int64_t step) {
  const RouterStatistics at{m.num_experts};
  std::vector<RoutingMetrics> records;
  for (size_t layer = 0; (layer + 1) * size_t(at.size()) <= sums.size(); ++layer) {
    const std::span<const double> mine = sums.subspan(layer * size_t(at.size()), size_t(at.size()));
    const auto counts = mine.first(size_t(m.num_experts));
    double rows = 0;
    for (const double count : counts) rows += count;
    const double tokens = rows / double(m.num_experts_per_tok);
    if (tokens == 0) continue;
    const auto [least, most] = std::ranges::minmax(counts);
    records.push_back(
        {.step = step,
         .layer = int64_t(layer),
         .tokens = int64_t(tokens),
         .largest_share = most / tokens,
         .smallest_share = least / tokens,
         .dead_experts = std::ranges::count(counts, 0.0),
         .entropy = mine[size_t(at.entropy())] / tokens / std::log(double(std::max<int64_t>(2, m.num_experts))),
         .balance_loss = mine[size_t(at.balance())] / tokens,
         .z_loss = mine[size_t(at.squares())] / tokens,
         .dropped_share = mine[size_t(at.dropped())] / rows});
  }
  return records;
}

// Min rows per expert for the alarm: with fewer an expert may get none by chance. With 30 the probability is e^-30.
constexpr double kEnoughRows = 30;
// Fraction of tokens that choose one expert at which the alarm is raised, unless an equal share is near this fraction.
constexpr double kMostShare = 0.9;

// Fraction of dropped choices at which the alarm is raised.
constexpr double kMostDropped = 0.25;

namespace {

// Names the options of this run that balance its routing.
std::string balancing_options(const Config& c, bool dropped) {
  const bool moves_bias = has_router_bias(c.model.model_type) && c.lora_rank == 0;
  return cat("raise model.router_aux_loss_coef, ", moves_bias ? "or moe.router_bias_update_rate, " : "",
             dropped ? "or moe.expert_capacity_factor, " : "", "or lower learning_rate");
}

}  // namespace

std::string routing_alarm(std::span<const RoutingMetrics> layers, const Config& c) {
  const int64_t experts = c.model.num_experts;
  std::string dead, full, dropped;
  const auto add = [](std::string& to, int64_t layer, const auto&... detail) {
    to += cat(to.empty() ? "" : ", ", layer, " (", detail..., ")");
  };
  const double equal = double(c.model.num_experts_per_tok) / double(experts);
  for (const RoutingMetrics& m : layers) {
    if (m.dead_experts > 0 && double(m.tokens) * equal >= kEnoughRows)
      add(dead, m.layer, m.dead_experts, " of ", experts);
    if (m.largest_share > kMostShare && equal < kMostShare / 2)
      add(full, m.layer, std::round(100 * m.largest_share), " %");
    if (m.dropped_share > kMostDropped) add(dropped, m.layer, std::round(100 * m.dropped_share), " %");
  }
  std::string text;
  if (!dead.empty()) text += cat("experts that no token chose, by layer: ", dead, "; ");
  if (!full.empty()) text += cat("one expert is chosen by nearly all tokens, by layer: ", full, "; ");
  if (!dropped.empty()) text += cat("many choices are dropped, by layer: ", dropped, "; ");
  return text.empty() ? text : cat("routing: ", text, balancing_options(c, !dropped.empty()));
}

}  // namespace athanor
