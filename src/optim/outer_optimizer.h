// OuterOptimizer: local updates [Douillard et al. 2023, "DiLoCo"; Therien et al. 2025, "MuLoCo"]. Each worker trains
// its own weights w for a round of H steps. At the end of a round the workers average their distances from the global
// weights, in f32, and Nesterov momentum updates the global weights:
//   d = mean over workers of (theta - w);  v = mu v + d;  theta -= eta (d + mu v);  w = theta
// Streaming DiLoCo [Douillard et al. 2025, alg. 2]: with fragments, the rounds of different units end at different
// steps; with a delay, d is computed at the end of a round and used that many steps later, and sending it overlaps
// these steps; with mixing alpha the last assignment is w = alpha w + (1 - alpha) theta; and workers may send their
// distances in 4 bits (packed_groups.h). The caller decides when to save or evaluate.
#pragma once
#include <vector>

#include "base/choices.h"
#include "device/memory_plan.h"
#include "param/param_store.h"

namespace athanor {

struct OuterOptions {
  int64_t steps = 0;  // H: steps per round; 0 = no local updates
  double learning_rate = 0.7, momentum = 0.9;
  int64_t fragments = 1;  // unit u belongs to fragment u % fragments
  int64_t delay = 0;      // steps from the end of a fragment's round to its outer step; below `steps`
  double mixing = 0;      // alpha
  DeltaDtype deltas = DeltaDtype::fp32;
};

class OuterOptimizer {
 public:
  // overlaps: delayed deltas are sent by ProcessMesh::deltas() in Stream::workers, or in the background, concurrently
  // with the following steps.
  OuterOptimizer(const OuterOptions&, ParamStore&, bool overlaps);
  ~OuterOptimizer();
  OuterOptimizer(const OuterOptimizer&) = delete;
  OuterOptimizer& operator=(const OuterOptimizer&) = delete;
  // States of the trained weights: kGlobalWeightState; kOuterMomentumState unless momentum is 0; with a delay also
  // kOuterDeltaState, the sum of the workers' deltas, zero if none is in flight.
  std::vector<StateSpec> states() const;
  void plan(MemoryPlan&);      // call after the parameters' plan()
  void commit(Device&) const;  // call after the plan's commit()
  int64_t fragments() const { return options_.fragments; }
  // True if a fragment's round ends with this step, counted from 1; the ends of the fragments' rounds are evenly
  // spaced.
  bool round_ends(int64_t fragment, int64_t step) const;
  // True if the fragment's deltas are in flight and its outer step is due after this step.
  bool is_due(int64_t fragment, int64_t step) const {
    return is_in_flight(fragment) && round_ends(fragment, step - options_.delay);
  }
  // The functions below skip collectives in a dry run; all ranks call them together.
  void start(Ctx&);                         // sets the global weights to this worker's weights
  void end_round(Ctx&, int64_t fragment);   // with a delay, only starts to send deltas
  void outer_step(Ctx&, int64_t fragment);  // only with a delay; otherwise end_round() runs the outer step
  // True if the fragment's deltas were sent and are not used yet.
  bool is_in_flight(int64_t fragment) const { return in_flight_[size_t(fragment)]; }
  std::vector<int64_t> in_flight() const;
  void set_in_flight(const std::vector<int64_t>& fragments);  // call after loading the states
  // Makes the compute stream wait for all deltas in flight, so that the states may be read or written.
  void receive(Ctx&);

 private:
  // Range of trained elements on this rank.
  struct Part {
    const ParamStore::Unit& unit;
    ParamStore::Range range;
    Tensor theta, momentum, delta;  // [n] f32; momentum and delta are optional
    Tensor packed;                  // u8: deltas of all workers in 4 bits, if they must outlive a phase
    Tensor master() const { return unit.masters_on_device(range); }
  };
  struct Used {
    bool momentum = false, delta = false, writes_masters = false;
  };
  // Calls fn for the parts of one fragment, or of all units if fragment is -1, with master weights and states in device
  // memory. Works on whole units, so that the collective calls do not depend on where master weights and states are
  // stored.
  template <class Fn>
  void for_each(Ctx&, int64_t fragment, const Used&, const Fn& fn) const;
  static void read_weights(Ctx&, const Part&, const Tensor& to);
  // Collectives of a fragment whose deltas are in flight.
  struct Sent {
    std::vector<Ctx::Ticket> tickets = {};
    Communicator* background = nullptr;
    int64_t calls = 0;  // number of collectives started on `background`
    void wait(Ctx&);
  };
  void send(Ctx&, const Part&, const Tensor& delta, Sent&) const;
  void sum_packed(Ctx&, const Tensor& delta, const Tensor& packed) const;
  void receive(Ctx&, int64_t fragment);
  void update(Ctx&, const Part&, const Tensor& delta) const;
  size_t momentum_state() const { return first_state_ + 1; }
  size_t delta_state() const { return first_state_ + (options_.momentum > 0 ? 2 : 1); }

  OuterOptions options_;
  ParamStore& params_;
  bool overlaps_;
  size_t first_state_ = 0;       // index of the first outer state among the parameters' states
  Tensor rates_;                 // StepState that the update rule reads
  std::vector<Tensor> packed_;   // for each unit: 4-bit deltas of all workers that are in flight
  std::vector<bool> in_flight_;  // one per fragment
  std::vector<Sent> sent_;       // one per fragment
};

}  // namespace athanor
