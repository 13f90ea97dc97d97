// Model of the communication between ranks in a step and the time it adds: docs/distributed.md, "The model of plan
// --ranks". Used to compare plans, and to stand beside what a profile measures; measures nothing.
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

// What collectives are for, in the words of a profile: a unit, "" for what is of the whole step, and a group of ranks
// (group_name() of comm/observed.h).
struct LayerGroup {
  std::string layer, group;
  auto operator<=>(const LayerGroup&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};
// The unit of that name or with a weight of that name, as CollectiveSubject says it; "": none.
std::string layer_of(const ParamStore&, const std::string& subject);

// Collectives of one kind in a step: bytes sent by a rank, and their time.
struct Traffic {
  struct Part {
    double bytes = 0, seconds = 0, waits = 0;
  };
  double bytes = 0, seconds = 0;
  double waits = 0;  // part of `seconds` that nothing can hide
  std::map<LayerGroup, Part> parts = {};
  // So many that send `sent` bytes in `time` seconds each; of all their seconds, `waits_for` that nothing can hide.
  void add(const LayerGroup&, double sent, double time, double times, double waits_for);
  // Seconds not hidden by `room` seconds of concurrent computation.
  double exposed(double room) const;
  // exposed() by part: `room` hides the same share of every part.
  void add_exposed(std::map<LayerGroup, double>&, double room) const;
};

// Follows the communication of ParamStore and of layers whose products or sequences ranks share.
struct StepTraffic {
  Traffic early;     // overlaps with the last micro-batch's backward
  Traffic backward;  // overlaps with every micro-batch's backward
  Traffic gathers;   // overlaps with forward and backward
  Traffic ends;      // before or after the optimizer, not overlapped
  Traffic matrices;  // whole matrices to those that update them, and back; overlaps with the products of an update
  // These wait for what they take longer than the launches beside them, if there are any.
  Traffic tensor;   // sums between the products that ranks share
  Traffic context;  // keys and values of ranks that share sequences, and their gradients
  Traffic experts;  // rows of tokens to the ranks that have their experts, and back

  double bytes() const;
  double bytes_of(std::string_view group) const;  // bytes sent within process groups of that name
  double seconds() const;
  // Seconds added to a step that computes for `compute` seconds in total, `products` of them in products of the update.
  double exposed(double compute, double micro_batches, double products) const;
  std::map<LayerGroup, double> exposed_by_layer(double compute, double micro_batches, double products) const;

 private:
  std::array<const Traffic*, 8> all() const {
    return {&early, &backward, &gathers, &ends, &matrices, &tensor, &context, &experts};
  }
  // With the seconds of computation beside each. Each is taken to have them for itself.
  std::vector<std::pair<const Traffic*, double>> beside(double compute, double micro_batches, double products) const;
};

// Roofline: how long launches take beside hops of a ring and sums of products; without it these hide nothing.
StepTraffic step_traffic(const Engine&, ProcessMesh&, const Network&, const Roofline* = nullptr);

}  // namespace athanor
