#include "perf/offload_time.h"

#include <algorithm>
#include <cmath>

namespace athanor {
namespace {

// A pass of a micro-batch: `waited`, a portion of `in`, is copied before it computes; the rest of `in`, and `out`, are
// copied in both directions at once while it computes. `grows`: seconds of additional copies to the device that grow
// with the micro-batch.
struct Pass {
  double compute, in, waited, out, grows = 0;
  double exposed() const { return waited + std::max(0.0, std::max(in + grows - waited, out) - compute); }
  // Smallest multiple of the micro-batch that hides the copies of both directions.
  double hides() const {
    const double behind = in - waited, each = compute - grows;
    const double incoming = behind <= 0 ? 0 : each > 0 ? behind / each : INFINITY;
    return std::max(incoming, out > 0 ? out / compute : 0);
  }
};

// Returns the fraction of a micro-batch's compute in forward; blocks that are recomputed whole run forward twice.
double forward_share(const Recompute& recompute) {
  const double again = recompute.granularity == Recompute::Granularity::full ? 1.0 / double(recompute.every) : 0;
  return 1 / (3 + again);
}

void add_units(OffloadTime& time, const Engine& engine, double host_bytes, double compute) {
  const UnitTraffic& t = engine.unit_traffic();
  const double micros = double(engine.micro_batches()), later = (micros - 1) / micros;
  const auto seconds = [&](int64_t bytes) { return double(bytes) / host_bytes; };
  const double share = forward_share(engine.options().recompute), inputs = time.inputs / micros;
  const Pass forward{compute * share, seconds(t.forward.bytes), seconds(t.forward.waited), inputs};
  const Pass backward{.compute = compute * (1 - share),
                      .in = seconds(t.backward.bytes) + later * seconds(t.gradients.bytes),
                      .waited = seconds(t.backward.waited) + later * seconds(t.gradients.waited),
                      .out = seconds(t.gradients_out),
                      .grows = inputs};
  time.units = micros * (forward.in + std::max(backward.in, backward.out));
  time.units_exposed = micros * (forward.exposed() + backward.exposed());
  time.hiding_micro_batch = std::max({Pass{forward.compute, forward.in, forward.waited, 0}.hides(), backward.hides()});
  time.inputs_exposed = 0;
}

}  // namespace

OffloadTime offload_time(const Engine& engine, const Roofline& limits) {
  const StateTraffic& bytes = engine.state_traffic();
  if (limits.host_bytes == 0) return {};
  const double link = double(std::max(bytes.in, bytes.out)) / limits.host_bytes;
  OffloadTime time{.link = link, .exposed = std::max(0.0, link - least_update_seconds(engine, limits))};
  const double micros = double(engine.micro_batches()), inputs = double(engine.offloaded_inputs()) / limits.host_bytes;
  const bool units = engine.unit_traffic().forward.bytes > 0;
  if (inputs == 0 && !units) return time;
  time.inputs = inputs * micros;
  const double compute = (least_sum(planned_rows(engine, limits)) - least_update_seconds(engine, limits)) / micros;
  if (units) add_units(time, engine, limits.host_bytes, compute);
  if (units) return time;
  const double forward = compute * forward_share(engine.options().recompute);
  time.inputs_exposed = micros * (std::max(0.0, inputs - forward) + std::max(0.0, inputs - (compute - forward)));
  return time;
}

double hiding_batch(const OffloadTime& offload, double share, double batch, double micro_seconds, double end_seconds) {
  const double step = offload.exposed / share;  // step time of which `exposed` is exactly that fraction
  return std::max(0.0, step - offload.exposed - end_seconds) / (micro_seconds / batch);
}

}  // namespace athanor
