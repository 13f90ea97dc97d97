// ParamStore: all parameters of one model in flat buffers, one set per unit (embedding, each block, head): weights as
// GEMMs read them, master weights, gradients, optimizer states. Models hold Param handles; optimizers and checkpoints
// iterate over units. With ZeRO each data-parallel rank owns a shard of the buffers. In forward, use() and done()
// bracket the use of a unit; in backward, functions that they record on the tape do.
#pragma once
#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/memory_plan.h"
#include "param/flat_layout.h"
#include "param/packed_sum.h"
#include "param/placement.h"
#include "tape/ctx.h"

namespace athanor {

struct Param {
  int id = -1;
  explicit operator bool() const { return id >= 0; }
};

// LoRA adapters of a frozen matrix [Hu et al. 2021, "LoRA"]: y += scale x A^T B^T in some columns of y.
struct Adapters {
  struct Part {
    size_t slice;                    // of the matrix: ParamSpec::slices
    int64_t first = 0, outputs = 0;  // this rank's columns of y, after plan(). B's rows are in the order of the parts
  };
  Param a = {}, b = {};  // [parts * rank, inputs], [outputs of all parts, rank]
  Param magnitude = {};  // [outputs of all parts], for DoRA: y becomes y magnitude / norm of the adapted weight's row
  std::vector<Part> parts = {};
  int64_t rank = 0;
  float scale = 1, dropout = 0;
};

// Names of states that evaluations read instead of the weights: an average of the weights, or the average minus the
// weights.
inline constexpr const char* kEmaState = "ema";
inline constexpr const char* kAverageMinusWeightState = "average_minus_weight";
// States of local updates: the weights that all workers share since the last outer step, the outer optimizer's
// momentum, and the sum of the workers' deltas in flight. Evaluations and model files use global_weight.
inline constexpr const char* kGlobalWeightState = "global_weight";
inline constexpr const char* kOuterMomentumState = "outer_momentum";
inline constexpr const char* kOuterDeltaState = "outer_delta";
// With PackedTraffic::weights: the weights as sent to other ranks. All ranks compute with these.
inline constexpr const char* kSentWeightState = "sent_weight";

// Optimizer state of all or some weights.
struct StateSpec {
  std::string name;  // name in files: "<name>.<tensor>"
  DType dtype;
  std::vector<bool> pieces = {};  // true for pieces() with this state; empty: all have it
  // For each piece the number of values of the state, replicated on all ranks. Empty: one value per element, sharded.
  std::vector<int64_t> sizes = {};
  // Number of neighbouring elements that share a value. Above 1 the pieces are whole blocks, and units are laid out in
  // blocks so that no shard splits one.
  int64_t block = 1;
  int64_t aligned = 1;          // parameters begin, and shards are split, at multiples of this many elements
  bool of_all_workers = false;  // identical on all workers
  Shape shape_of(size_t piece, const Shape& whole) const {
    return !sizes.empty() ? Shape{sizes[piece]} : block > 1 ? Shape{whole.numel() / block} : whole;
  }
};

// Logical shards ("leaves") make the gradient reduction bitwise the same for any number of ranks. A step's
// micro-batches are divided among `count` leaves; each rank holds `mine` consecutive leaves (both powers of two).
// Gradients accumulate in place within a leaf. Leaves are added in a fixed binary tree, so each rank keeps whole
// gradients until the end of the step. count 0: gradients are summed in rank order.
struct LogicalShards {
  int64_t count = 0, mine = 0;
  int levels() const { return count > 0 ? std::countr_zero(uint64_t(mine)) : 0; }  // levels of the tree within a rank
};

// Pipeline stage of this rank and of each unit; by default one stage has all units.
struct StageUnits {
  int stages = 1, stage = 0;
  std::vector<int> stage_of = {};
  int head = 0;     // the stage that has the LM head
  int tied = -1;    // a unit that stage `head` also has: the embedding if tied to the LM head
  int on_all = -1;  // a unit that every stage has and updates alike: the router biases
  bool here(size_t unit) const {
    return stages == 1 || stage_of[unit] == stage || (int(unit) == tied && stage == head) || int(unit) == on_all;
  }
  bool on_one_stage(size_t unit) const { return stages == 1 || (int(unit) != tied && int(unit) != on_all); }
};

// This rank's worker, if workers do not all-reduce gradients: with local updates, or with an optimizer that sums
// compressed momentum (ProcessMesh::workers()).
struct WorkerRank {
  int workers = 1, worker = 0;
};

// Where master weights and optimizer states are stored, and, for host memory, how many elements of a unit an update has
// in device memory at once (param/state_stream.h). Always in device memory are master weights that are also the weights
// GEMMs read, and the small states with `sizes`.
struct StatesHome {
  Mem mem = Mem::device;               // device, or pinned host memory
  int64_t stretch = int64_t{1} << 23;  // elements, rounded up to whole cache lines and blocks
};

// What ProcessMesh::shards() shard [Rajbhandari et al. 2020, "ZeRO"]: stage 1 shards optimizer states and master
// weights, stage 2 also gradients, stage 3 also weights.
struct Sharding {
  int stage = 0;
  int shards = 1, index = 0;
  LogicalShards logical = {};
  TensorRank tensor = {};  // like experts, stages and worker also used without training
  ExpertRank experts = {};
  StageUnits stages = {};
  // If true, stages 0 and 1 reduce gradients after all micro-batches, because weight gradients are postponed
  // (Ctx::weight_half()); otherwise during the backward of the step's last micro-batch.
  bool reduces_late = false;
  WorkerRank worker = {};
  StatesHome states_home = {};
  // Number of units, evenly spread, whose weights and gradients are in pinned host memory while they are not in use
  // (param/host_units.cc). Only on a single rank, or at stage 3, where the weights and gradients are shards.
  int64_t host_units = 0;
  PackedTraffic packed = {};  // weights: at stages 1 and 2, with separate master weights
};

class ParamStore {
 public:
  // In elements. Each parameter starts on a cache line, whatever its dtype; if states have blocks, at the start of a
  // block.
  static constexpr int64_t kAlign = 64;
  struct Range {
    int64_t begin = 0, end = 0;  // elements of a unit
  };
  // Elements of a host-memory buffer that are currently in device memory, copied there by stream_states().
  struct Brought {
    Tensor t;
    int64_t first = 0;  // index in the buffer of the first element of `t`
    Tensor slice(int64_t begin, int64_t end) const {
      CHECK(t && first <= begin && end <= first + t.numel(), "elements ", begin, " to ", end,
            " are in host memory; in device memory are ", t ? t.numel() : 0, " from ", first, " on");
      return t.slice(begin - first, end - first);
    }
  };
  // Optimizer state of a unit: of the whole unit, of this rank's shard, or of some ranges; stored contiguously.
  struct State {
    struct Segment {
      int64_t begin, end, at;  // elements [begin, end) of the unit are stored at `at`; indices are divided by the block
    };
    Tensor t;
    int64_t block = 1;  // elements that share a value
    std::vector<Segment> segments;
    std::vector<std::pair<size_t, int64_t>> firsts = {};  // for states with sizes: pieces, offsets of their values
    Mem home = Mem::device;
    Brought here = {};                             // device copy, if home is host memory
    Tensor part(Range range) const;                // view in the home memory
    Tensor on_device(Range range) const;           // view in device memory
    Range stored(Range range) const;               // range of `t` that holds these elements
    std::vector<Range> within(Range range) const;  // parts of a range of the unit that have the state
    int64_t first_of(size_t piece) const;
  };
  struct Unit {
    std::vector<int> params;  // ids, in the order of layout.offset
    std::string name;         // common prefix of their names: "model.layers.3"
    bool frozen = false;      // its parameters are frozen or buffers: it has only values
    bool buffers = false;     // all its parameters have ParamSpec::buffer
    bool experts = false;     // weights of experts, which differ between expert-parallel ranks
    int shards = 1;           // number of ranks that shard it; 1: each rank has all of it
    // How all its parameters are stored. If not as `values`, the tensor `value` holds bytes, and the layout counts in
    // bytes.
    StoredAs stored = StoredAs::values;
    int next_together = -1;  // unit that is gathered, used and released together with this one: use_together()
    FlatLayout layout;       // layout of this rank's parts of the parameters
    Range shard;             // elements that this rank updates
    // Each of these tensors has the size of the whole unit [numel] or of this rank's shard, depending on the ZeRO
    // stage.
    Mem masters_home = Mem::device;
    Brought masters_here = {};  // device copy, if master weights are in host memory
    Mem home = Mem::device;     // home of weights and gradients
    // If `home` is host memory: the elements that an update has on the device; whether the gradients in host memory are
    // those of this step; and [1] f64, the squared norm of the gradients that were last copied there.
    Brought values_here = {}, grads_here = {};
    bool has_gradient = false;
    Tensor norm = {};
    Tensor master;  // i16: low halves of split master weights; the values are the upper halves (tensor/half.h)
    Tensor value;   // compute dtype; absent if GEMMs read the master weights
    // Only in a sharded unit whose matrices GEMMs read quantized: engine/quantized_state.h writes the quantized values
    // to own(quantized), one byte per element. `quantized` is whole at stages 1 and 2, else this rank's shard. `value`
    // is then this rank's shard at every stage, and `others` holds the whole values of the parameters that are not
    // quantized.
    Tensor quantized;                       // u8; absent elsewhere
    Tensor others;                          // dtype of the values
    std::vector<State::Segment> others_at;  // the elements that `others` holds, and their offsets
    Tensor grad;                            // f32 or bf16; absent without training
    std::vector<State> states;              // one per StateSpec
    std::vector<Tensor> joined;             // whole, in the dtype of `grad`: partial sums of 1, 2, 4, ... leaves
    // Whole buffers while the unit is in use: weights, or their quantized values, at stage 3 or from host memory;
    // gradients at stages 2 and 3 or if their home is host memory.
    Buffer gathered, whole_grad;
    Ctx::Ticket gathering;   // set until compute has waited for `gathered`
    Ctx::Ticket grad_comes;  // set until compute has waited for `whole_grad` from host memory

    bool is_shard(const Tensor& t) const { return t.numel() != layout.numel; }
    bool is_split() const { return master.dtype == DType::i16; }
    // Returns the intersection of [begin, end) with this rank's shard.
    Range owned(int64_t begin, int64_t end) const;
    // View of a range of the shard in any of the tensors above.
    Tensor part(const Tensor& t, Range range) const;
    Tensor own(const Tensor& t) const { return part(t, shard); }
    // part() of the master weights, values and gradients in device memory, which updates read and write.
    Tensor masters_on_device(Range range) const;
    Tensor values_on_device(Range range) const;
    Tensor grads_on_device(Range range) const;
    const Tensor& weights() const { return value ? value : master; }
    int64_t others_before(int64_t element) const;  // elements in `others` before this index in the unit
  };

  // A tensor in files, and the place of this rank's part of it, without gaps, in its unit's flat buffers.
  struct Piece {
    const HfSlice* slice;
    int unit;
    int64_t offset;  // elements
    int param;
    const Placement::Slice* part = nullptr;  // after plan(): which elements of the tensor this rank has
  };

  Param declare(ParamSpec spec);
  // Stops training parameters whose name contains `part`; throws an Error if there are none. Call before plan().
  void freeze(std::string_view part);
  void freeze(Param p) { specs_[size_t(p.id)].trainable = false; }
  void freeze_for_good(Param p) { specs_[size_t(p.id)].frozen = true, freeze(p); }
  // Stores frozen parameters in another form than `values`, in separate units. Call before plan().
  void store_as(StoredAs, const std::vector<Param>&);
  // Makes every use of `unit` include unit `added`, which holds more parameters of the same layers: adapters, experts,
  // or parameters that are stored in another form.
  void use_together(int unit, int added);
  bool is_added(int unit) const;               // true if another unit's uses include this one
  void read_two_of_four(Param, size_t slice);  // ParamSpec::two_of_four
  void adapt(Param w, Adapters adapters) { adapters_[w.id] = std::move(adapters); }
  const Adapters* adapters(Param w) const;  // null if the layer has none
  void read_in_low_precision(Param p) { specs_[size_t(p.id)].low_precision = true; }
  // Gathers the parameter quantized if ranks shard it and the unit's other parameters are few. Call before plan();
  // afterwards has_quantized() returns whether it is gathered quantized.
  void gather_quantized(Param p) { specs_[size_t(p.id)].gathered_quantized = true; }
  void belongs_to_router(Param p) { specs_[size_t(p.id)].router = true; }
  void belongs_to_experts(Param p, int64_t experts, int64_t chosen) {
    specs_[size_t(p.id)].experts = experts, specs_[size_t(p.id)].chosen = chosen;
  }
  // Moves experts into separate units, so that they can be sharded and reduced over other ranks than their blocks. Call
  // before plan().
  void separate_experts();
  void feeds_attention(Param p, int layer) { specs_[size_t(p.id)].attention = layer; }
  // Adds all buffers to the plan. Without training there are only weights (as `value`).
  void plan(MemoryPlan&, const Recipe&, bool training, std::vector<StateSpec> states, const Sharding& = {});
  // Initializes master weights and values from (seed, name, index): of all parameters, or of all except frozen ones.
  enum class Init : uint8_t { all, trained };
  void init(Ctx&, uint64_t seed, Init = Init::all);
  // Computes values from master weights after loading, or copies them from kSentWeightState; gets shards of values from
  // their owners.
  void refresh_values(Ctx&);
  // For PackedTraffic::weights: the state, in the dtype of the values; and the function that copies the values to it
  // when a run begins.
  StateSpec sent_weight_state(DType) const;
  void start_sent_weights(Ctx&);

  Tensor value(Param) const;
  // Returns the values that GEMMs read: value(), or a buffer with dequantized or sparsified values.
  Buffer gemm_value(Ctx&, Param) const;
  bool has_quantized(Param p) const {
    return spec(p).gathered_quantized && bool(units_[size_t(spec(p).unit)]->quantized);
  }
  // Returns the quantized values, u8 in the parameter's shape, if has_quantized(); like value(), valid while its unit
  // is in use.
  Tensor quantized(Param) const;
  int64_t offset(Param p) const { return offsets_[size_t(p.id)]; }  // offset of its first element in its unit
  Range owned_lines(Param) const;  // elements that this rank updates, and the padding after them: whole cache lines
  Tensor grad(Param) const;

  void use(Ctx&, int unit);       // forward: weights are needed from here on
  void done(Ctx&, int unit);      // forward: weights are no longer needed
  void use_last(Ctx&, int unit);  // forward, with backward right after: gradients are needed too
  void release(int unit);         // after use_last() if no backward follows
  // first: the next micro-batch is the first of a step, which matters for gradients in host memory. last: it is the
  // last, whose gradients may be reduced during backward. After backward, join() makes the compute stream wait for
  // these reductions.
  void begin_micro_batch(bool first, bool last);
  void join(Ctx&);
  // True if gradients are reduced during backward of a step's last micro-batch.
  bool reduces_early(const ProcessMesh&) const;

  // Call when the gradients of this rank's leaf number `leaf` are complete: adds them to those of its siblings in the
  // tree.
  void end_leaf(Ctx&, int64_t leaf);
  // reduce_gradients(): call before the optimizer; reduces gradients over all ranks. send_weights(): call after the
  // optimizer; gathers the updated weights. gather_weights(): gathers values that do not come from an update.
  void reduce_gradients(Ctx&);
  void send_weights(Ctx&);
  void gather_weights(Ctx&);
  void gather_quantized(Ctx&);  // call after all weights were quantized
  bool sharded() const { return sharding_.stage > 0; }
  const StatesHome& states_home() const { return sharding_.states_home; }
  bool has_host_units() const { return sharding_.host_units > 0; }
  int64_t movable_units() const;  // number of units that Sharding::host_units may count
  // Number of equal parts of each unit whose sums are added in order: the number of leaves with rank-invariant sums,
  // else 1.
  int64_t leaves() const { return std::max<int64_t>(1, sharding_.logical.count); }
  const TensorRank& tensor() const { return sharding_.tensor; }
  const ExpertRank& experts() const { return sharding_.experts; }
  const WorkerRank& worker() const { return sharding_.worker; }
  const Placement& placement(Param p) const { return placements_[size_t(p.id)]; }
  // Returns the tokens whose rows this rank has, for an embedding or a head that is sharded over the vocabulary; else
  // the default.
  VocabPart vocab_part(Param) const;
  // Returns the elements of a unit within `of` that this rank adds to the squared gradient norm: each gradient counts
  // on exactly one rank.
  std::vector<Range> counted(const ProcessMesh&, const Unit&, Range of) const;
  bool split() const { return split_; }
  bool has_values() const { return has_values_; }  // true if values are separate from master weights
  DType saved_dtype(const Piece& piece) const {    // dtype of master weights and buffers in files
    return specs_[size_t(piece.param)].buffer ? DType::f32 : saved_dtype_;
  }
  // True if a unit has memory on this pipeline stage; units of other stages are declared without memory.
  bool here(size_t unit) const { return sharding_.stages.here(unit); }
  const StageUnits& stages() const { return sharding_.stages; }

  const std::vector<ParamSpec>& specs() const { return specs_; }
  const ParamSpec& spec(Param p) const { return specs_[size_t(p.id)]; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const std::vector<StateSpec>& state_specs() const { return states_; }
  int64_t parameter_count() const;  // number of values in files, without padding
  int64_t trained_count() const;    // portion of parameter_count() that may change

  std::vector<Piece> pieces() const;
  // A parameter stored in int8.
  struct Int8Weight {
    Tensor quantized, scales;  // [outputs, inputs] u8, [outputs] f32, as Int8Gemm reads them
    float outlier = 0;         // Int8Gemm::outlier
  };
  std::optional<Int8Weight> int8_weight(Param) const;  // empty if it has another form
  // Quantizes a piece, which is a whole tensor of a file. values: f32, in the order of the file.
  void set_int8(Device&, const Piece& piece, std::span<const float> values) const;
  bool is_int8(const Piece& piece) const { return is_int8(specs_[size_t(piece.param)].stored); }
  bool has_record(const Piece& piece) const { return specs_[size_t(piece.param)].stored != StoredAs::values; }
  // For a piece that is stored as a record; Piece::offset is then the record's offset. set_record() copies this rank's
  // part of the record.
  Nf4Record record_of(const Piece&) const;
  void set_record(Device&, const Piece&, std::span<const std::byte>) const;
  bool is_saved(const Piece& piece) const { return !specs_[size_t(piece.param)].frozen; }
  bool keeps(size_t state, size_t piece) const;
  bool has_sizes(size_t state) const { return !states_[state].sizes.empty(); }
  // Returns the range of each piece, after plan(), including the padding after it; together they cover the unit.
  std::vector<Range> extents() const;

 private:
  void place_parts(Param w, Adapters&) const;
  static bool is_int8(StoredAs form) { return form == StoredAs::int8 || form == StoredAs::int8_outliers; }
  Tensor view(const Tensor& flat, Param) const;
  Shape stored_shape(int id) const;  // shape of a parameter in the unit's flat buffer
  struct OwnPiece {
    size_t number;  // index in pieces()
    Range extent;
  };
  void lay_out(Unit&);
  bool lay_out_quantized(Unit&) const;
  void gather_others(Ctx&, const Unit&);
  void cast_masters(Ctx&);
  void for_each_sent(const auto& fn);
  void take_sent_weights(Ctx&);
  std::vector<std::vector<OwnPiece>> pieces_by_unit() const;
  void plan_states(MemoryPlan&, size_t unit, const std::vector<OwnPiece>&);
  void plan_sizes(MemoryPlan&, size_t unit, size_t state, const std::vector<OwnPiece>&);
  static Communicator& copies_of(const ProcessMesh&, const Unit&);
  static Communicator& shards_of(const ProcessMesh&, const Unit&);
  std::vector<size_t> units_to_move() const;
  void start_bringing(Ctx&, Unit&);
  Ctx::Ticket bring_gradients(Ctx&, const Unit&, const Tensor& to, bool waits) const;
  void count_waited(const Ctx&, int unit) const;
  void start_gradients(Ctx&, int unit);
  void start_gradients_of(Ctx&, Unit&, bool waits);
  void send_gradients(Ctx&, Unit&, Buffer, Range of);
  void wait_for_sent(Ctx&);
  void begin_use(Ctx&, int unit);
  void start_gather(Ctx&, int unit);
  void init_piece(Ctx&, const Piece&, RandomNormal, Range within);
  void init_record(Ctx&, const Piece&, const RandomNormal&) const;
  Buffer sparse_value(Ctx&, Param) const;
  Nf4Record record_of(const ParamSpec&, size_t slice) const;
  int64_t record_offset(int id, size_t slice) const;
  void gather(Ctx&, int unit);
  void settle(Ctx&);
  DType packed_format(const ProcessMesh&) const;
  void reduce_copies(Ctx&, const Tensor& grad, bool sends = true);
  void clear_padding(Ctx&, const Unit&);
  void reduce_early(Ctx&, const Unit&);
  void reduce_whole(Ctx&, const Unit&);
  void begin_sum(Ctx&, const Unit&, bool sends);  // sends: false: only allocates the buffers
  void leave_early_room(Ctx&);
  void reduce_in_tree(Ctx&, const Unit&);
  void add_tied_gradients(Ctx&);
  void add_parts_of_gradients(Ctx&);
  void add_repeated_gradients(Ctx&, size_t id);
  void begin_gradients(Ctx&, int unit);
  void end_gradients(Ctx&, int unit);
  void end_gradients_of(Ctx&, Unit&, bool last);
  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;       // offset of each parameter in its unit
  std::vector<Placement> placements_;  // placement of each parameter
  std::vector<std::unique_ptr<Unit>> units_;
  std::map<int, Adapters> adapters_;  // keys: id of the adapted matrix
  std::vector<StateSpec> states_;
  Sharding sharding_;
  int64_t align_ = kAlign;
  bool split_ = false, has_values_ = false;
  DType saved_dtype_ = DType::f32;
  bool last_micro_batch_ = false;
  // The unit whose gradients of this micro-batch are being reduced (stages 2 and 3).
  struct {
    Unit* unit = nullptr;
    Buffer whole, workspace;  // workspace: scratch of Communicator::sum_workspace()
    Ctx::Ticket ticket;
    PackedScatter packed = {};
    Buffer shard = {};       // for gradients in host memory: this rank's shard, to which the sum is added
    Ctx::Ticket comes = {};  // set until compute has waited for `shard`
  } reducing_;
  // Gradients that are being copied to host memory.
  struct {
    Unit* unit = nullptr;
    Buffer grad;
    Ctx::Ticket ticket;
  } sending_;
  // Buffers of the unit whose gradients are being reduced during backward.
  struct {
    Buffer workspace, of_copies;
    Ctx::Ticket ticket;
    PackedScatter packed = {};  // reduces `unit` over the shards; copies are summed afterwards
    const Unit* unit = nullptr;
  } early_;
};

}  // namespace athanor
