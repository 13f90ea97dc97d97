// Model of the communication between ranks in a step and of the time it adds: docs/distributed.md, "The model of plan
// --ranks". Used to compare plans, and printed next to measured times; measures nothing itself.
#pragma once
#include <array>
#include <compare>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "perf/roofline.h"

namespace athanor {

class Engine;
class ParamStore;
class ProcessMesh;
struct Network;

// Subject of collectives as named in a profile: a unit, or "" for the whole step, and a group of ranks (group_name() of
// comm/observed.h).
struct LayerGroup {
  std::string layer, group;
  auto operator<=>(const LayerGroup&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};
// Returns the unit with the name `subject`, or with a weight of that name (CollectiveSubject); "" if there is none.
std::string layer_of(const ParamStore&, const std::string& subject);

// Collectives of one kind in a step: bytes sent by a rank, and their time.
struct Traffic {
  struct Part {
    double bytes = 0, seconds = 0, waits = 0;
  };
  double bytes = 0, seconds = 0;
  double waits = 0;  // portion of `seconds` that nothing can hide
  std::map<LayerGroup, Part> parts = {};
  // Adds `times` collectives that send `sent` bytes in `time` seconds each; of their total seconds nothing can hide
  // `waits_for`.
  void add(const LayerGroup&, double sent, double time, double times, double waits_for);
  // Seconds not hidden by `overlapped` seconds of concurrent computation.
  double exposed(double overlapped) const;
  // exposed() by part; `overlapped` hides the same fraction of every part.
  void add_exposed(std::map<LayerGroup, double>&, double overlapped) const;
};

// Mirrors the communication of ParamStore and of tensor-, context- and expert-parallel layers.
struct StepTraffic {
  Traffic early;         // overlaps with the last micro-batch's backward
  Traffic backward;      // overlaps with every micro-batch's backward
  Traffic gathers;       // overlaps with forward and backward
  Traffic ends;          // before or after the optimizer, not overlapped
  Traffic matrices;      // whole matrices to the ranks that update them, and back; overlaps with GEMMs of the update
  Traffic rounds;        // deltas of workers; overlaps with the steps of their delay
  double in_flight = 0;  // fraction of the steps in which deltas of some fragment are in flight
  // Of the next three, only the time beyond the overlapping launches, if any, counts as exposed.
  Traffic tensor;   // collectives of tensor-parallel layers
  Traffic context;  // keys and values of context-parallel ranks, and their gradients
  Traffic experts;  // rows of tokens to the ranks that have their experts, and back

  double bytes() const;
  double bytes_of(std::string_view group) const;  // bytes sent within process groups of that name
  double seconds() const;
  // Seconds added to a step that computes for `compute` seconds in total, `gemms` of them in GEMMs of the update.
  double exposed(double compute, double micro_batches, double gemms) const;
  std::map<LayerGroup, double> exposed_by_layer(double compute, double micro_batches, double gemms) const;

 private:
  std::array<const Traffic*, 9> all() const {
    return {&early, &backward, &gathers, &ends, &matrices, &rounds, &tensor, &context, &experts};
  }
  // Returns each kind with the seconds of computation that overlap it, as if no other kind overlapped them.
  std::vector<std::pair<const Traffic*, double>> concurrent(double compute, double micro_batches, double gemms) const;
};

// Roofline: times of the launches that overlap hops of ring attention and tensor-parallel collectives; null: nothing
// hides them.
StepTraffic step_traffic(const Engine&, ProcessMesh&, const Network&, const Roofline* = nullptr);

}  // namespace athanor
