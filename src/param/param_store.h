// ParamStore: all parameters of one model in flat buffers, one set per unit (embedding, each block, head): weights as
// products read them, masters, gradients, optimizer states. Models hold Param handles; optimizers and checkpoints walk
// the units. use() and done() bracket a unit's use in forward; their duals run in backward (the hooks of sharding).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/memory_plan.h"
#include "param/flat_layout.h"
#include "tape/ctx.h"

namespace athanor {

struct Param {
  int id = -1;
  explicit operator bool() const { return id >= 0; }
};

struct StateSpec {
  std::string name;  // in files: "<name>.<tensor>"
  DType dtype;
};

class ParamStore {
 public:
  struct Unit {
    std::vector<int> params;  // ids, in the order of layout.offset
    FlatLayout layout;
    Tensor master;               // [numel]
    Tensor value;                // [numel] compute dtype; the same memory as master where dtypes agree
    Tensor grad;                 // [numel] f32; absent without training
    std::vector<Tensor> states;  // [numel] each, in the order of the StateSpecs
  };

  Param declare(ParamSpec spec);
  // Parameters whose name contains `part` are not trained. Before plan(); an Error if there is none.
  void freeze(std::string_view part);
  // Adds all buffers to the plan. Without training there are only weights (as values).
  void plan(MemoryPlan&, const Recipe&, bool training, std::vector<StateSpec> states);
  void init(Ctx&, uint64_t seed);  // masters and values from (seed, name, index)
  void refresh_values(Ctx&);       // values from masters, after loading

  Tensor value(Param) const;
  Tensor grad(Param) const;

  void use(Ctx&, int unit);   // forward: weights are needed from here
  void done(Ctx&, int unit);  // forward: and no longer

  const std::vector<ParamSpec>& specs() const { return specs_; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const std::vector<StateSpec>& state_specs() const { return states_; }
  int64_t parameter_count() const;  // trained values in files: no padding

  // One contiguous piece of every HF tensor: where it is in a flat buffer of its unit.
  struct Piece {
    const HfSlice* slice;
    int unit;
    int64_t offset;  // elements
  };
  std::vector<Piece> pieces() const;

 private:
  Tensor view(const Tensor& flat, const ParamSpec&, int64_t offset) const;
  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;  // of each param in its unit
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<StateSpec> states_;
};

}  // namespace athanor
