#include "perf/traffic.h"

#include <algorithm>
#include <limits>

#include "comm/network.h"
#include "engine/engine.h"
#include "ops/one_bit.h"
#include "ops/packed_groups.h"

namespace athanor {
namespace {

constexpr double kBackward = 2.0 / 3;  // fraction of a micro-batch's time

// Collectives on their own stream, one after the other: each overlaps the launches of a micro-batch that earlier
// collectives do not yet overlap.
class Overlap {
 public:
  Overlap(std::span<const Launch> launches, const Roofline* limits) : launches_(launches), limits_(limits) {}
  // Returns the exposed seconds of a collective of `seconds` that runs concurrently with launches [from, to).
  double exposed(int64_t from, int64_t to, double seconds) {
    if (from >= used_to_) left_ = 0;
    for (int64_t i = std::max(from, used_to_); limits_ && i < to; ++i)
      left_ += least_seconds(launches_[size_t(i)], *limits_);
    used_to_ = std::max(used_to_, to);
    const double rest = std::max(0.0, seconds - left_);
    left_ = std::max(0.0, left_ - seconds);
    return rest;
  }

 private:
  std::span<const Launch> launches_;
  const Roofline* limits_;
  int64_t used_to_ = 0;  // launches before this one already overlap collectives
  double left_ = 0;      // seconds of these launches that no collective uses yet
};

// Subtracts from the exposed time of the collectives the part hidden by the launches that overlap them, as the dry run
// recorded. seconds_of(overlap): time of the collective.
void hide_overlaps(Traffic& traffic, const char* group, const Engine& engine, const TensorSums& sums,
                   const Roofline* limits, const auto& seconds_of) {
  Overlap launches(engine.micro_launches(), limits);
  for (const TensorSums::Overlap& b : sums.overlaps) {
    const double seconds = seconds_of(b), hidden = seconds - launches.exposed(b.from, b.to, seconds);
    traffic.add({layer_of(engine.model().params(), b.subject), group}, 0, 0, 0,
                -hidden * double(engine.micro_batches()));
  }
}

// Adds all-gathers and reduce-scatters of keys, values and their gradients; neighbours are `near` ranks apart.
void add_context_sums(StepTraffic& t, const Engine& engine, const Network& net, int ranks, int near) {
  for (const auto& [subject, sums] : engine.micro_context_sums().by_subject) {
    const double each = double(ranks - 1) / ranks * double(sums.row_bytes) / double(sums.row_calls);
    const double seconds = net.seconds(each, ranks, near);
    const double calls = double(sums.row_calls) * double(engine.micro_batches());
    t.context.add({layer_of(engine.model().params(), subject), "cp"}, each, seconds, calls, seconds * calls);
  }
}

// Adds rows sent to experts and back, in equal parts to each rank; neighbours are `near` ranks apart.
void add_expert_exchanges(StepTraffic& t, const Engine& engine, const Network& net, const Roofline* limits, int ranks,
                          int near) {
  const int within = std::clamp(net.per_machine / near, 1, ranks);  // ranks on one machine
  const auto seconds_of = [&](double of_rank) {
    return net.seconds_to_all(of_rank * (within - 1), of_rank * (ranks - within), ranks);
  };
  hide_overlaps(t.experts, "ep", engine, engine.micro_expert_sums(), limits,
                [&](const TensorSums::Overlap& b) { return seconds_of(double(b.bytes) / ranks); });
  for (const auto& [subject, sums] : engine.micro_expert_sums().by_subject) {
    const double of_rank = double(sums.row_bytes) / double(sums.row_calls) / ranks, seconds = seconds_of(of_rank);
    const double calls = double(sums.row_calls) * double(engine.micro_batches());
    t.experts.add({layer_of(engine.model().params(), subject), "ep"}, of_rank * (ranks - 1), seconds, calls,
                  seconds * calls);
  }
}

// Adds ring attention. Returning gradients share the network with the next keys, so passes run one after the other.
void add_context_passes(StepTraffic& t, const Engine& engine, const Network& net, const Roofline* limits, int ranks,
                        int near) {
  const bool within = net.within_machines(ranks, near);
  Overlap launches(engine.micro_launches(), limits);
  const auto micros = double(engine.micro_batches());
  for (const ContextPasses::Pass& pass : engine.micro_context_passes().all) {
    const auto bytes = double(pass.bytes);
    const double seconds = within ? net.seconds_to_all(bytes, 0, 2) : net.seconds_to_all(0, bytes, 2);
    t.context.add({layer_of(engine.model().params(), pass.subject), "cp"}, bytes, seconds, micros,
                  launches.exposed(pass.from, pass.to, seconds) * micros);
  }
}

// Adds the traffic of tensor-parallel ranks: in each micro-batch as the dry run recorded it, and once per step
// gradients of which each rank has a partial sum.
void add_tensor_sums(StepTraffic& t, const Engine& engine, const Network& net, const Roofline* limits, int ranks) {
  if (ranks == 1) return;
  const double sent_of = 2.0 * (ranks - 1) / ranks;  // bytes sent per byte summed
  const auto micros = double(engine.micro_batches());
  const ParamStore& params = engine.model().params();
  const auto add = [&](const std::string& subject, int64_t calls, double sent) {
    const double each = sent / double(std::max<int64_t>(1, calls)), seconds = net.seconds(each, ranks, 1);
    const double times = double(calls) * micros;
    t.tensor.add({layer_of(params, subject), "tp"}, each, seconds, times, seconds * times);
  };
  const TensorSums& sums = engine.micro_tensor_sums();
  for (const auto& [subject, sent] : sums.by_subject) {
    add(subject, sent.calls, sent_of * double(sent.bytes));
    add(subject, sent.row_calls, sent_of / 2 * double(sent.row_bytes));
  }
  hide_overlaps(t.tensor, "tp", engine, sums, limits, [&](const TensorSums::Overlap& b) {
    return net.seconds((b.rows ? 0.5 : 1) * sent_of * double(b.bytes), ranks, 1);
  });
  for (int id = 0; id < int(params.specs().size()); ++id) {
    const Placement& placement = params.placement({id});
    const int64_t repeated = placement.shape.numel() - placement.repeated_from;
    const double pieces = placement.repeats > 1 ? double(ranks) / placement.repeats * double(repeated) : 0;
    const double summed = placement.sums_parts() ? double(placement.shape.numel()) : pieces;
    if (summed == 0) continue;
    const double sent = sent_of * double(size_of(engine.options().recipe.gradients)) * summed;
    t.ends.add({layer_of(params, params.spec({id}).name), "tp"}, sent, net.seconds(sent, ranks, 1), 1, 0);
  }
}

// Returns the name of the group ProcessMesh::weights().
const char* of_weights(ProcessMesh& mesh) {
  if (&mesh.weights() == &mesh.data_parallel()) return "dp";
  return &mesh.weights() == &mesh.world() ? "world" : "weights";
}

// Adds the all-reduces of optimizers that need sums over whole tensors, and of QK-clip.
void add_update_sums(StepTraffic& t, const Engine& engine, ProcessMesh& mesh, const Network& net, int near) {
  const int shards = mesh.shards().size(), all = mesh.data_parallel().size(), weights = mesh.weights().size();
  const auto add = [&](const char* group, double bytes, int64_t calls, int ranks, int apart) {
    const double each = 2.0 * (ranks - 1) / ranks * bytes / double(std::max<int64_t>(1, calls));
    if (each > 0) t.ends.add({"", group}, each, net.seconds(each, ranks, apart), double(calls), 0);
  };
  const UpdateSums& sums = engine.update_sums();
  add("dp_shard", double(sums.bytes), sums.calls, shards, near);
  add(of_weights(mesh), double(sums.numbers_bytes), sums.numbers_calls, weights, 1);
  add("dp", double(engine.score_bytes()), 1, all, near);
  add("dp", double(engine.expert_count_bytes()), 1, all, near);
  if (!engine.quantized()) return;
  add("dp_shard", double(engine.quantized()->amax_of_shards()), 1, shards, near);
  add("dp", double(engine.quantized()->amax_of_all()), 1, all, near);
  add("tp", double(engine.quantized()->amax_of_all()), 1, mesh.tensor().size(), 1);
}

// Adds whole matrices sent to the ranks that update them, and back. A call takes as long as the rank that sends or
// receives the most.
void add_matrices(StepTraffic& t, const Engine& engine, ProcessMesh& mesh, const Network& net) {
  struct Load {
    double link = 0, network = 0;
    double all() const { return link + network; }
  };
  const int ranks = mesh.weights().size();
  const auto machine = [&](int rank) { return rank / std::max(1, net.per_machine); };
  for (const MatrixExchange& exchange : engine.update_sums().exchanges) {
    std::vector<Load> sent(static_cast<size_t>(ranks)), received(sent.size());
    for (const auto& [from, to, bytes] : exchange.parts) {
      const auto part = machine(from) == machine(to) ? &Load::link : &Load::network;
      sent[size_t(from)].*part += double(bytes), received[size_t(to)].*part += double(bytes);
    }
    double seconds = 0;
    for (const std::vector<Load>& loads : {sent, received})
      for (const Load& load : loads) seconds = std::max(seconds, net.seconds_to_all(load.link, load.network, ranks));
    const double most = std::ranges::max(sent, {}, &Load::all).all();
    t.matrices.add({"", of_weights(mesh)}, most, seconds, 1, exchange.exposed ? seconds : 0);
  }
}

// Adds the traffic between workers: deltas at the ends of rounds of local updates, averaged over the steps of a round,
// which may overlap the steps of a delay; or records of compressed momentum in each step.
void add_workers(StepTraffic& t, const Engine& engine, ProcessMesh& mesh, const Network& net) {
  const int workers = mesh.workers().size(), of_worker = mesh.world().size() / workers;
  if (workers == 1) return;
  const bool compressed = engine.optimizer() && engine.optimizer()->compresses();
  const OuterOptions& outer = engine.options().outer;
  const double steps = compressed ? 1 : double(outer.steps);
  const bool overlaps = engine.overlaps_rounds();
  if (overlaps) t.in_flight = std::min(1.0, double(outer.fragments * outer.delay) / steps);
  const double all_reduced = 2.0 * (workers - 1) / workers;  // bytes sent per byte
  for (const auto& unit : engine.model().params().units()) {
    const int64_t n = unit->shard.end - unit->shard.begin;
    const double sent = compressed ? all_reduced * double(sizeof(OneBitRecord)) / double(kOneBitBlock) * double(n)
                        : outer.deltas == DeltaDtype::fp4
                            ? double(workers - 1) * double(packed_bytes(DType::f4_e2m1, n))
                            : all_reduced * 4 * double(n);
    const double seconds = net.seconds(sent, workers, of_worker);
    (overlaps ? t.rounds : t.ends)
        .add({unit->name, "workers"}, sent, seconds, 1 / steps, overlaps ? 0 : seconds / steps);
  }
}

// Returns the bytes per element of packed groups in this format, including scales.
double bytes_per_element(DType format) { return double(packed_bytes(format, kPackedGroup)) / double(kPackedGroup); }

}  // namespace

std::string layer_of(const ParamStore& params, const std::string& subject) {
  for (const ParamSpec& spec : params.specs())
    if (spec.name == subject) return params.units()[size_t(spec.unit)]->name;
  for (const auto& unit : params.units())
    if (unit->name == subject) return subject;
  return "";
}

void Traffic::add(const LayerGroup& of, double sent, double time, double times, double waits_for) {
  if (time * times == 0 && waits_for == 0) return;
  bytes += sent * times, seconds += time * times, waits += waits_for;
  Part& part = parts[of];
  part.bytes += sent * times, part.seconds += time * times, part.waits += waits_for;
}

double Traffic::exposed(double overlapped) const { return waits + std::max(0.0, seconds - waits - overlapped); }

void Traffic::add_exposed(std::map<LayerGroup, double>& all, double overlapped) const {
  const double hideable = seconds - waits, left = hideable > 0 ? std::max(0.0, hideable - overlapped) / hideable : 0;
  for (const auto& [of, part] : parts) all[of] += part.waits + (part.seconds - part.waits) * left;
}

double StepTraffic::bytes() const {
  double sum = 0;
  for (const Traffic* one : all()) sum += one->bytes;
  return sum;
}
double StepTraffic::bytes_of(std::string_view group) const {
  double sum = 0;
  for (const Traffic* one : all())
    for (const auto& [of, part] : one->parts)
      if (of.group == group) sum += part.bytes;
  return sum;
}
double StepTraffic::seconds() const {
  double sum = 0;
  for (const Traffic* one : all()) sum += one->seconds;
  return sum;
}

std::vector<std::pair<const Traffic*, double>> StepTraffic::concurrent(double compute, double micro_batches,
                                                                       double gemms) const {
  constexpr double kAll = std::numeric_limits<double>::infinity();
  const double micros = compute - gemms, micro = micros / micro_batches;
  return {{&early, micro * kBackward},
          {&backward, micros * kBackward},
          {&gathers, micros},
          {&matrices, gemms},
          {&ends, 0},
          {&rounds, compute * in_flight},
          {&tensor, kAll},
          {&context, kAll},
          {&experts, kAll}};
}

double StepTraffic::exposed(double compute, double micro_batches, double gemms) const {
  double sum = 0;
  for (const auto& [traffic, overlapped] : concurrent(compute, micro_batches, gemms))
    sum += traffic->exposed(overlapped);
  return sum;
}

std::map<LayerGroup, double> StepTraffic::exposed_by_layer(double compute, double micro_batches, double gemms) const {
  std::map<LayerGroup, double> all;
  for (const auto& [traffic, overlapped] : concurrent(compute, micro_batches, gemms))
    traffic->add_exposed(all, overlapped);
  return all;
}

StepTraffic step_traffic(const Engine& engine, ProcessMesh& mesh, const Network& links, const Roofline* limits) {
  Network net = links;
  net.per_machine = std::min(net.per_machine, mesh.world().size());
  const ParamStore& params = engine.model().params();
  const auto& units = params.units();
  const int head = params.spec(engine.model().head()).unit;
  const int near = mesh.tensor().size();  // distance between neighbouring shards
  const int stage = engine.options().zero_stage;
  const double value = double(size_of(engine.options().recipe.compute));
  const double grad = double(size_of(engine.options().recipe.gradients));
  const auto micros = double(engine.micro_batches());
  const auto share = [](int n) { return double(n - 1) / n; };
  const PackedTraffic& packed = engine.options().packed;
  const double fp4 = bytes_per_element(DType::f4_e2m1);
  const double scattered = !packed.gradients          ? grad
                           : mesh.copies().size() > 1 ? bytes_per_element(DType::f8_e4m3)
                                                      : fp4;
  const double gathered = packed.weights ? fp4 : value;
  StepTraffic t;
  for (size_t u = 0; u < units.size(); ++u) {
    if (units[u]->buffers) continue;  // replicated on all ranks
    // All parameters of a unit have the same placement, except how they are sliced.
    const Placement& placement = params.placement({units[u]->params.front()});
    const int shards = mesh.size(placement.shards);
    const int copies = placement.copies(mesh);
    const auto n = double(units[u]->layout.numel);
    const bool last = u == size_t(engine.model().config().num_hidden_layers) + 1, first = u == 0;
    const bool frozen = units[u]->frozen;
    const double gather =
        share(shards) * n * (units[u]->quantized || units[u]->stored != StoredAs::values ? 1 : gathered);
    const double scatter = frozen ? 0 : share(shards) * n * scattered;
    const double gather_s = net.seconds(gather, shards, near), scatter_s = net.seconds(scatter, shards, near);
    // With 4 bits each copy sends to all others.
    const double per_element = packed.gradients ? (copies - 1) * fp4 : 2 * share(copies) * grad;
    const double copied = frozen ? 0 : n / shards * per_element;
    const double copied_s = net.seconds(copied, copies, shards * near);
    // at_end: nothing hides the first or the last of these collectives.
    const auto of_shards = [&](Traffic& kind, double sent, double seconds, double calls, bool at_end) {
      kind.add({units[u]->name, units[u]->experts ? "expert_dp_shard" : "dp_shard"}, sent, seconds, calls,
               at_end ? seconds : 0);
    };
    (stage < 2 ? t.early : t.ends)
        .add({units[u]->name, stage > 0           ? "dp_replicate"
                              : units[u]->experts ? "expert_dp_replicate"
                                                  : "dp"},
             copied, copied_s, 1, first ? copied_s : 0);
    if (stage == 1) of_shards(t.early, scatter, scatter_s, 1, first);
    // The head's weights stay gathered between forward and backward: the last unit's, or those of an embedding that is
    // tied to the head.
    const bool shared = int(u) == head && !last;
    if (stage >= 2) of_shards(t.backward, scatter, scatter_s, (shared ? 2 : 1) * micros, first);
    if (stage == 3) of_shards(t.gathers, gather, gather_s, (last ? 1 : shared ? 3 : 2) * micros, first || last);
    if ((stage == 1 || stage == 2) && !frozen) of_shards(t.ends, gather, gather_s, 1, false);
    if (!units[u]->others) continue;
    const double others = share(shards) * double(units[u]->others.bytes());
    of_shards(t.ends, others, net.seconds(others, shards, near), 1, false);
  }
  add_tensor_sums(t, engine, net, limits, near);
  add_update_sums(t, engine, mesh, net, near);
  add_matrices(t, engine, mesh, net);
  add_workers(t, engine, mesh, net);
  add_context_sums(t, engine, net, mesh.context().size(), near);
  add_context_passes(t, engine, net, limits, mesh.context().size(), near);
  add_expert_exchanges(t, engine, net, limits, mesh.experts().size(), near * mesh.context().size());
  return t;
}

}  // namespace athanor
