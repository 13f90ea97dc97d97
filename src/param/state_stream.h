// Streams master weights, optimizer states, values and gradients from pinned host memory to device memory while an
// update computes with them: one stretch of a unit at a time, while the next stretch is copied in and the previous one
// out. Tensors whose home is device memory are not copied.
#pragma once
#include <functional>
#include <vector>

#include "param/param_store.h"

namespace athanor {

// A range of a unit's elements, and the master weights and states of that range that are used.
struct StateStretch {
  size_t unit;
  ParamStore::Range range;
  struct Part {
    size_t state;  // index into Unit::states
    ParamStore::Range range;
  };
  std::vector<ParamStore::Range> masters = {}, values = {}, grads = {};
  std::vector<Part> states = {};
  // False: tensors are only read, so they are not copied back. Gradients are never copied back: the next step starts
  // without them.
  bool writes_masters = true, writes_values = true, writes_states = true;
};

struct StatesUsed {
  bool masters = false, values = false, grads = false;
  std::vector<size_t> states = {};
  bool whole_units = false;  // false: a unit may be split into stretches of StatesHome::stretch elements
};

// Returns stretches of all units of this rank, with the used tensors whose home is not device memory. A unit without
// such tensors is one stretch.
std::vector<StateStretch> state_stretches(const ParamStore&, const StatesUsed&);

// Calls run(stretch) for each stretch, in order. During the call Unit::masters_on_device(), values_on_device(),
// grads_on_device() and State::on_device() return the tensors named by the stretch.
void stream_states(Ctx&, ParamStore&, const std::vector<StateStretch>&,
                   const std::function<void(const StateStretch&)>& run);

}  // namespace athanor
