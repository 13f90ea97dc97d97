#include "perf/traffic.h"

#include <algorithm>

#include "comm/network.h"
#include "engine/engine.h"

namespace athanor {
namespace {

constexpr double kBackward = 2.0 / 3;  // fraction of a micro-batch's time

}  // namespace

void Traffic::add(double sent, double time, double times, bool end) {
  bytes += sent * times, seconds += time * times;
  if (end) ends += time;
}

double Traffic::exposed(double room) const { return ends + std::max(0.0, seconds - ends - room); }

double StepTraffic::bytes() const { return early.bytes + backward.bytes + gathers.bytes + ends.bytes; }
double StepTraffic::seconds() const { return early.seconds + backward.seconds + gathers.seconds + ends.seconds; }
double StepTraffic::exposed(double compute, double micro_batches) const {
  return early.exposed(compute * kBackward / micro_batches) + backward.exposed(compute * kBackward) +
         gathers.exposed(compute) + ends.seconds;
}

StepTraffic step_traffic(const Engine& engine, ProcessMesh& mesh, const Network& net) {
  const auto& units = engine.model().params().units();
  const int shards = mesh[Axis::dp_shard].size(), copies = mesh[Axis::dp_replicate].size();
  const int stage = engine.options().zero_stage;
  const double value = double(size_of(engine.options().recipe.compute)), grad = 4;
  const auto micros = double(engine.micro_batches());
  const auto share = [](int n) { return double(n - 1) / n; };
  const std::vector<bool> exchanges =
      engine.optimizer() ? engine.optimizer()->exchanges(engine.model().params()) : std::vector<bool>(units.size());
  StepTraffic t;
  for (size_t u = 0; u < units.size(); ++u) {
    const auto n = double(units[u]->layout.numel);
    const bool last = u + 1 == units.size(), first = u == 0;
    const double gather = share(shards) * n * value, scatter = share(shards) * n * grad;
    const double gather_s = net.seconds(gather, shards, 1), scatter_s = net.seconds(scatter, shards, 1);
    const double copied = 2 * share(copies) * n / shards * grad, copied_s = net.seconds(copied, copies, shards);
    (stage < 2 ? t.early : t.ends).add(copied, copied_s, 1, first);
    if (stage == 1) t.early.add(scatter, scatter_s, 1, first);
    if (stage >= 2) t.backward.add(scatter, scatter_s, micros, first);
    if (stage == 3) t.gathers.add(gather, gather_s, 2 * micros, first || last);
    if (stage == 1 || stage == 2) t.ends.add(gather, gather_s, 1, false);
    if (!exchanges[u]) continue;
    const double exchanged = (value < 4 ? 2 : 4) * n;  // averages to those who need them whole, and updates back
    const double sent = stage == 0 ? share(copies) * exchanged : share(shards) * exchanged;
    t.ends.add(2 * sent, 2 * net.seconds(sent, stage == 0 ? copies : shards, 1), 1, false);
  }
  return t;
}

}  // namespace athanor
