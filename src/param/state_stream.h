// Masters and optimizer states whose home is pinned host memory, and likewise values and gradients, in device memory
// for as long as an update computes with them: a stretch of a unit at a time, while the next one is on its way there
// and the one before on its way back. What has its home in device memory stays there, and nothing moves.
#pragma once
#include <functional>
#include <vector>

#include "param/param_store.h"

namespace athanor {

// A range of a unit's elements, and what of its masters and states somebody computes with there.
struct StateStretch {
  size_t unit;
  ParamStore::Range range;
  struct Part {
    size_t state;  // index into Unit::states
    ParamStore::Range range;
  };
  std::vector<ParamStore::Range> masters = {}, values = {}, grads = {};
  std::vector<Part> states = {};
  // False: only read, so they need not go back. Gradients never do: the next step begins without.
  bool writes_masters = true, writes_values = true, writes_states = true;
};

struct StatesUsed {
  bool masters = false, values = false, grads = false;
  std::vector<size_t> states = {};
  bool whole_units = false;  // else a unit may be cut into stretches of StatesHome::stretch elements
};

// All units of this rank: with what is used, as far as its home is not device memory. A unit of which nothing is there
// is one stretch.
std::vector<StateStretch> state_stretches(const ParamStore&, const StatesUsed&);

// run(stretch) for each, in their order; meanwhile Unit::masters_on_device(), values_on_device(), grads_on_device() and
// State::on_device() have what it names.
void stream_states(Ctx&, ParamStore&, const std::vector<StateStretch>&,
                   const std::function<void(const StateStretch&)>& run);

}  // namespace athanor
