// ParamStore: all parameters of one model in flat buffers, one set per unit (embedding, each block, head): weights as
// products read them, masters, gradients, optimizer states. Models hold Param handles; optimizers and checkpoints walk
// the units. Ranks of the data-parallel axes may own a shard each of some or all of this: use() and done() bracket a
// unit's use in forward, their duals on the tape bracket it in backward.
#pragma once
#include <bit>
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

// What an optimizer keeps beside weights, of all of them or of some.
struct StateSpec {
  std::string name;  // in files: "<name>.<tensor>"
  DType dtype;
  std::vector<bool> pieces = {};  // by number of ParamStore::pieces(), which of them it is kept of; none: of all
  // By number of the piece: so many numbers belong to it, not one to each of its elements, and every rank has all of
  // them. None: one to each element.
  std::vector<int64_t> sizes = {};
  Shape shape_of(size_t piece, const Shape& whole) const { return sizes.empty() ? whole : Shape{sizes[piece]}; }
};

// The leaves of the sums that are the same bits for any number of ranks: the micro-batches of a step are dealt out to
// `count` of them, which the ranks hold in order, `mine` each, both powers of two. The gradients of a leaf are
// accumulated in place; leaves are joined in a fixed binary tree, so whole gradients stay on all ranks until the end of
// the step. count 0: sums in the order of the ranks.
struct LogicalShards {
  int64_t count = 0, mine = 0;
  int levels() const { return count > 0 ? std::countr_zero(uint64_t(mine)) : 0; }  // of the tree within a rank
};

// What each rank of the dp_shard axis holds a shard of instead of the whole [Rajbhandari et al. 2020, "ZeRO"]:
// stage 1 optimizer states and masters, 2 also gradients, 3 also weights.
struct Sharding {
  int stage = 0;
  int shards = 1, index = 0;
  LogicalShards logical = {};
};

class ParamStore {
 public:
  static constexpr int64_t kAlign = 64;  // elements: every parameter starts on a cache line, whatever its dtype
  struct Range {
    int64_t begin = 0, end = 0;  // elements of a unit
  };
  // An optimizer state of a unit: of a whole unit or a rank's shard of it, or of some ranges of these, in a row.
  struct State {
    struct Segment {
      int64_t begin, end, at;  // elements [begin, end) of the unit lie from `at` on
    };
    Tensor t;
    std::vector<Segment> segments;
    bool everything = true;                               // nothing of the unit, or of the rank's shard, is left out
    bool of_any = false;                                  // it is kept of a piece of the unit, on whatever rank
    std::vector<std::pair<size_t, int64_t>> firsts = {};  // with sizes: pieces and where their numbers begin
    Tensor part(Range range) const;
    int64_t first_of(size_t piece) const;
  };
  struct Unit {
    std::vector<int> params;  // ids, in the order of layout.offset
    std::string name;         // what their names begin with: "model.layers.3"
    FlatLayout layout;
    Range shard;  // what this rank updates
    // Each is whole [numel] or this rank's shard, by the stage.
    Tensor master;               // of i16: the rests of masters whose upper halves are the values (tensor/half.h)
    Tensor value;                // compute dtype; absent where it is the master itself
    Tensor grad;                 // f32; absent without training
    std::vector<State> states;   // in the order of the StateSpecs
    std::vector<Tensor> joined;  // f32, whole: sums of 1, 2, 4, ... leaves that wait for as many more
    // Whole, while the unit is in use: weights at stage 3, gradients from stage 2 on.
    Buffer gathered, whole_grad;
    Ctx::Ticket gathering;  // until compute has waited for `gathered`
    int uses = 0;           // in forward, whose backward is to come

    bool is_shard(const Tensor& t) const { return t.numel() != layout.numel; }
    bool is_split() const { return master.dtype == DType::i16; }
    DType saved_dtype() const { return is_split() ? DType::f32 : master.dtype; }  // of masters in files
    // The part of [begin, end) that this rank updates.
    Range owned(int64_t begin, int64_t end) const;
    // A range, within the shard, of any of the tensors above.
    Tensor part(const Tensor& t, Range range) const;
    Tensor own(const Tensor& t) const { return part(t, shard); }
  };

  Param declare(ParamSpec spec);
  // Parameters whose name contains `part` are not trained. Before plan(); an Error if there is none.
  void freeze(std::string_view part);
  void freeze(Param p) { specs_[size_t(p.id)].trainable = false; }
  void read_in_eight_bits(Param p) { specs_[size_t(p.id)].eight_bits = true; }
  // Adds all buffers to the plan. Without training there are only weights (as values).
  void plan(MemoryPlan&, const Recipe&, bool training, std::vector<StateSpec> states, const Sharding& = {});
  void init(Ctx&, uint64_t seed);  // masters and values from (seed, name, index)
  void refresh_values(Ctx&);       // values from masters, after loading; shards of values from their owners

  Tensor value(Param) const;
  Tensor grad(Param) const;

  void use(Ctx&, int unit);       // forward: weights are needed from here
  void done(Ctx&, int unit);      // forward: and no longer
  void use_last(Ctx&, int unit);  // forward, where its backward follows at once: gradients are needed too
  void release(int unit);         // after use_last without backward
  // Of the micro-batch to come: whether it is a step's last, whose gradients may be summed over the ranks while
  // backward goes on. After its backward, join() makes compute wait for that.
  void begin_micro_batch(bool last) { last_micro_batch_ = last; }
  void join(Ctx&);
  // Whether a step's last micro-batch differs from the others.
  bool reduces_early(const ProcessMesh&) const;

  // The gradients of this rank's leaf number `leaf` are complete: joins them with those that they make a pair with.
  void end_leaf(Ctx&, int64_t leaf);
  // Ends of a step, before and after the optimizer: the sum of all ranks' gradients, and the weights that they updated.
  void reduce_gradients(Ctx&);
  void gather_weights(Ctx&);
  // One tensor of a unit whole, of `shard` from all ranks: for checkpoints. [numel]
  Buffer whole(Ctx&, int unit, const Tensor& shard);
  Buffer whole_state(Ctx&, int unit, size_t state);  // of one that is kept of some weights; elsewhere 0
  Buffer whole_master(Ctx&, int unit);               // of split ones. [numel] f32
  bool sharded() const { return sharding_.stage > 0; }
  bool split() const { return units_.front()->is_split(); }
  bool keeps_everything() const;  // there is no state that is kept of some weights only

  const std::vector<ParamSpec>& specs() const { return specs_; }
  const ParamSpec& spec(Param p) const { return specs_[size_t(p.id)]; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const std::vector<StateSpec>& state_specs() const { return states_; }
  int64_t parameter_count() const;  // trained values in files: no padding

  // One contiguous piece of every HF tensor: where it is in a flat buffer of its unit.
  struct Piece {
    const HfSlice* slice;
    int unit;
    int64_t offset;  // elements
    int param;
  };
  std::vector<Piece> pieces() const;
  bool keeps(size_t state, size_t piece) const;
  bool has_sizes(size_t state) const { return !states_[state].sizes.empty(); }
  // What belongs to each piece of a planned store: itself and the padding behind it, so that those of a unit fill it.
  std::vector<Range> extents() const;

 private:
  Tensor view(const Tensor& flat, const ParamSpec&, int64_t offset) const;
  struct OwnPiece {
    size_t number;  // in pieces()
    Range extent;
  };
  void lay_out(Unit&);
  std::vector<std::vector<OwnPiece>> pieces_by_unit() const;
  void plan_states(MemoryPlan&, size_t unit, const std::vector<OwnPiece>&);
  void plan_sizes(MemoryPlan&, size_t unit, size_t state, const std::vector<OwnPiece>&);
  void begin_use(Ctx&, int unit);
  void start_gather(Ctx&, int unit);
  void init_split(Ctx&, const Unit&, Range, RandomNormal);
  void gather(Ctx&, int unit);
  void settle(Ctx&);
  void reduce_early(Ctx&, const Unit&);
  void reduce_in_tree(Ctx&, const Unit&);
  void begin_gradients(Ctx&, int unit);
  void end_gradients(Ctx&, int unit);
  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;  // of each param in its unit
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<StateSpec> states_;
  Sharding sharding_;
  bool last_micro_batch_ = false;
  // A unit's gradients on their way to their owners.
  struct {
    Unit* unit = nullptr;
    Buffer whole;
    Ctx::Ticket ticket;
  } reducing_;
};

}  // namespace athanor
