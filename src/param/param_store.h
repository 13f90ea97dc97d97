// ParamStore: all parameters of one model in flat buffers, one set per unit (embedding, each block, head): weights as
// products read them, masters, gradients, optimizer states. Models hold Param handles; optimizers and checkpoints
// iterate over units. Data-parallel ranks may each own a shard of these: use() and done() bracket a unit's use in
// forward, and their counterparts on the tape in backward.
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
#include "param/placement.h"
#include "tape/ctx.h"

namespace athanor {

struct Param {
  int id = -1;
  explicit operator bool() const { return id >= 0; }
};

// The low-rank update of a frozen matrix [Hu et al. 2021, "LoRA"]: y += scale x A^T B^T in some columns of y.
struct Adapters {
  struct Part {
    int64_t first, outputs;  // columns of y; rows of B come in the order of the parts
  };
  Param a = {}, b = {};  // [parts * rank, inputs], [outputs of all parts, rank]
  Param magnitude = {};  // [outputs of all parts], of DoRA: y becomes y magnitude / norm of the adapted weight's row
  std::vector<Part> parts = {};
  int64_t rank = 0;
  float scale = 1, dropout = 0;
};

// States that say what evaluations read instead of the weights: an average of them, or such an average minus them.
inline constexpr const char* kEmaState = "ema";
inline constexpr const char* kAverageMinusWeightState = "average_minus_weight";
// With local updates: the weights that workers have in common since a round's end, and their momentum. Evaluations and
// model files have the former.
inline constexpr const char* kGlobalWeightState = "global_weight";
inline constexpr const char* kOuterMomentumState = "outer_momentum";

// An optimizer state of all weights or of some.
struct StateSpec {
  std::string name;  // in files: "<name>.<tensor>"
  DType dtype;
  std::vector<bool> pieces = {};  // indexed as ParamStore::pieces(): which have this state; empty: all
  // Indexed by piece: the number of values of the state, replicated on all ranks. Empty: one value per element,
  // sharded.
  std::vector<int64_t> sizes = {};
  // So many neighbouring elements share a value; above 1 the pieces are whole blocks and units are laid out in blocks,
  // so that no shard cuts one.
  int64_t block = 1;
  int64_t aligned = 1;          // parameters begin, and shards are cut, at multiples of so many elements
  bool of_all_workers = false;  // the same on all workers
  Shape shape_of(size_t piece, const Shape& whole) const {
    return !sizes.empty() ? Shape{sizes[piece]} : block > 1 ? Shape{whole.numel() / block} : whole;
  }
};

// Leaves of the reduction that is bitwise the same for any number of ranks. A step's micro-batches are divided among
// `count` leaves; each rank holds `mine` consecutive ones (both powers of two). Gradients accumulate in place within a
// leaf; leaves are added in a fixed binary tree, so whole gradients stay on all ranks until the end of the step. count
// 0: sums in rank order.
struct LogicalShards {
  int64_t count = 0, mine = 0;
  int levels() const { return count > 0 ? std::countr_zero(uint64_t(mine)) : 0; }  // of the tree within a rank
};

// This rank among the stages of a pipeline, and which stage has each unit; none: this rank has all.
struct StageUnits {
  int stages = 1, stage = 0;
  std::vector<int> stage_of = {};
  int head = 0;   // the stage that has the model's last part
  int tied = -1;  // a unit that `head` has too: the embedding, where it is the head's weight
  bool here(size_t unit) const {
    return stages == 1 || stage_of[unit] == stage || (int(unit) == tied && stage == head);
  }
  bool on_one_stage(size_t unit) const { return int(unit) != tied || stages == 1; }
};

// This rank's worker among those whose gradients are not summed: of local updates, or of an optimizer that sums
// compressed momentum (ProcessMesh::workers()).
struct WorkerRank {
  int workers = 1, worker = 0;
};

// Where masters and optimizer states are, and how much of a unit an update of elements has in device memory at once
// where that is host memory (param/state_stream.h). Masters that are the weights themselves, and states with `sizes`,
// which are small, are in device memory in any case.
struct StatesHome {
  Mem mem = Mem::device;               // or pinned
  int64_t stretch = int64_t{1} << 23;  // elements, rounded up to whole cache lines and blocks
};

// What is sharded over ProcessMesh::shards() [Rajbhandari et al. 2020, "ZeRO"]: stage 1 optimizer states and masters, 2
// also gradients, 3 also weights.
struct Sharding {
  int stage = 0;
  int shards = 1, index = 0;
  LogicalShards logical = {};
  TensorRank tensor = {};  // these also without training
  ExpertRank experts = {};
  StageUnits stages = {};
  // Stages 0 and 1 reduce gradients during the backward of the step's last micro-batch; or after all micro-batches,
  // where weights' gradients are put off (Ctx::weight_half()).
  bool reduces_late = false;
  WorkerRank worker = {};
  StatesHome states_home = {};
  // Weights and gradients of so many units, evenly spread, are in pinned host memory while nobody computes with them
  // (param/host_units.cc). Of one rank alone, or at stage 3, where these are shards.
  int64_t host_units = 0;
};

class ParamStore {
 public:
  // Elements: every parameter starts on a cache line, whatever its dtype; where states have blocks, with a block.
  static constexpr int64_t kAlign = 64;
  struct Range {
    int64_t begin = 0, end = 0;  // elements of a unit
  };
  // What is in device memory of a buffer whose home is host memory: some elements of it, while StateStream has them
  // there.
  struct Brought {
    Tensor t;
    int64_t first = 0;  // of these, in the buffer
    Tensor slice(int64_t begin, int64_t end) const {
      CHECK(t && first <= begin && end <= first + t.numel(), "elements ", begin, " to ", end,
            " are in host memory; in device memory are ", t ? t.numel() : 0, " from ", first, " on");
      return t.slice(begin - first, end - first);
    }
  };
  // An optimizer state of a unit: of the whole unit or this rank's shard, or of some ranges of it, stored contiguously.
  struct State {
    struct Segment {
      int64_t begin, end, at;  // elements [begin, end) of the unit are stored at `at`, divided by the block
    };
    Tensor t;
    int64_t block = 1;  // elements that share a value
    std::vector<Segment> segments;
    std::vector<std::pair<size_t, int64_t>> firsts = {};  // with sizes: pieces, and where their values begin
    Mem home = Mem::device;
    Brought here = {};                             // with another home
    Tensor part(Range range) const;                // at home
    Tensor on_device(Range range) const;           // the same in device memory
    Range stored(Range range) const;               // where t has a range of elements
    std::vector<Range> within(Range range) const;  // what of a unit's elements has the state
    int64_t first_of(size_t piece) const;
  };
  struct Unit {
    std::vector<int> params;  // ids, in the order of layout.offset
    std::string name;         // common prefix of their names: "model.layers.3"
    bool frozen = false;      // as its parameters, or buffers: there are values, and nothing else
    bool buffers = false;     // ParamSpec::buffer of all of them
    bool experts = false;     // of ranks that have other ones
    int shards = 1;           // ranks that share it out; 1: each rank has all of it
    // As its parameters. Not `values`: `value` has bytes, and so have offsets and sizes of the layout.
    StoredAs stored = StoredAs::values;
    int beside = -1;    // a unit that is gathered, used and released together with this one: use_together()
    FlatLayout layout;  // of this rank's parts of the parameters
    Range shard;        // the elements that this rank updates
    // Each is whole [numel] or this rank's shard, depending on the stage.
    Mem masters_home = Mem::device;
    Brought masters_here = {};  // with another home
    Mem home = Mem::device;     // of weights and gradients
    // With another home: what an update has of them; whether the gradients there are of this step; and [1] f64, the
    // squared norm of the gradients that were last copied there.
    Brought values_here = {}, grads_here = {};
    bool has_gradient = false;
    Tensor norm = {};
    Tensor master;  // of i16: the rests of masters whose upper halves are the values (tensor/half.h)
    Tensor value;   // compute dtype; absent where it is the master itself
    // For a sharded unit whose matrices GEMMs read quantized; engine/code_state.h writes them to own(codes), a byte
    // for each element: whole at stages 1 and 2, else this rank's shard. The values are then this
    // rank's shard at every stage, and `others` has those of the parameters without codes, whole.
    Tensor codes;                           // u8; absent elsewhere
    Tensor others;                          // of the type of the values
    std::vector<State::Segment> others_at;  // where the elements of `others` lie
    Tensor grad;                            // f32 or bf16; absent without training
    std::vector<State> states;              // in the order of the StateSpecs
    std::vector<Tensor> joined;             // f32, whole: partial sums of 1, 2, 4, ... leaves
    // Whole, while the unit is in use: weights, or their codes, at stage 3 or from another home; gradients at stages 2
    // and 3 or with another home.
    Buffer gathered, whole_grad;
    Ctx::Ticket gathering;   // set until compute has waited for `gathered`
    Ctx::Ticket grad_comes;  // likewise for `whole_grad`, from another home

    bool is_shard(const Tensor& t) const { return t.numel() != layout.numel; }
    bool is_split() const { return master.dtype == DType::i16; }
    // The intersection of [begin, end) with this rank's shard.
    Range owned(int64_t begin, int64_t end) const;
    // A range within the shard, as a view of any of the tensors above.
    Tensor part(const Tensor& t, Range range) const;
    Tensor own(const Tensor& t) const { return part(t, shard); }
    // part(master, range), of the values and of the gradients in device memory, where updates compute with them
    Tensor masters_on_device(Range range) const;
    Tensor values_on_device(Range range) const;
    Tensor grads_on_device(Range range) const;
    const Tensor& weights() const { return value ? value : master; }
    int64_t others_before(int64_t element) const;  // elements in `others` that lie before this one
  };

  // A tensor in files, and where in its unit's flat buffers this rank's part of it lies, without gaps.
  struct Piece {
    const HfSlice* slice;
    int unit;
    int64_t offset;  // elements
    int param;
    const Placement::Slice* part = nullptr;  // of a planned store: which elements of the tensor this rank has
  };

  Param declare(ParamSpec spec);
  // Stops training parameters whose name contains `part`. Call before plan(); an Error if there is none.
  void freeze(std::string_view part);
  void freeze(Param p) { specs_[size_t(p.id)].trainable = false; }
  void freeze_for_good(Param p) { specs_[size_t(p.id)].frozen = true, freeze(p); }
  // Stores frozen parameters in another form than values, in units of such beside their own. Before plan().
  void store_as(StoredAs, const std::vector<Param>&);
  // Where some of a unit's parameters are another unit, frozen or stored unlike the rest: whoever uses `unit` uses
  // `beside` too.
  void use_together(int unit, int beside);
  void read_two_of_four(Param, size_t slice);  // ParamSpec::two_of_four
  void adapt(Param w, Adapters adapters) { adapters_[w.id] = std::move(adapters); }
  const Adapters* adapters(Param w) const;  // null: none
  void read_in_low_precision(Param p) { specs_[size_t(p.id)].low_precision = true; }
  // Where ranks shard it, and the unit's other parameters are few. Before plan(); has_codes() tells afterwards.
  void gather_as_codes(Param p) { specs_[size_t(p.id)].as_codes = true; }
  void belongs_to_experts(Param p, int64_t experts, int64_t chosen) {
    specs_[size_t(p.id)].experts = experts, specs_[size_t(p.id)].chosen = chosen;
  }
  // Experts become units of their own, beside those of their blocks, so that ranks may have other ones and sum their
  // gradients over others. Before plan().
  void separate_experts();
  void feeds_attention(Param p, int layer) { specs_[size_t(p.id)].attention = layer; }
  // Adds all buffers to the plan. Without training there are only weights (as values).
  void plan(MemoryPlan&, const Recipe&, bool training, std::vector<StateSpec> states, const Sharding& = {});
  // Masters and values from (seed, name, index); those of frozen parameters too, or only the others.
  enum class Init : uint8_t { all, trained };
  void init(Ctx&, uint64_t seed, Init = Init::all);
  void refresh_values(Ctx&);  // values from masters, after loading; shards of values from their owners

  Tensor value(Param) const;
  // The values as GEMMs read them: value(), or a buffer that they are dequantized or made sparse to.
  Buffer gemm_value(Ctx&, Param) const;
  bool has_codes(Param p) const { return spec(p).as_codes && bool(units_[size_t(spec(p).unit)]->codes); }
  Tensor codes(Param) const;  // [as the parameter] u8, where has_codes(); as value(), while its unit is in use
  int64_t offset(Param p) const { return offsets_[size_t(p.id)]; }  // of its first element in its unit
  Range owned_lines(Param) const;  // the elements that this rank updates, and the padding after them: whole cache lines
  Tensor grad(Param) const;

  void use(Ctx&, int unit);       // forward: weights are needed from here on
  void done(Ctx&, int unit);      // forward: weights are no longer needed
  void use_last(Ctx&, int unit);  // forward, with the backward right after: gradients are needed too
  void release(int unit);         // after use_last() if no backward follows
  // Tells whether the coming micro-batch is the first of a step, which gradients in host memory need to know; and the
  // last, whose gradients may be reduced while backward runs. After backward, join() makes the compute stream wait for
  // that.
  void begin_micro_batch(bool first, bool last);
  void join(Ctx&);
  // Whether the last micro-batch of a step is treated differently.
  bool reduces_early(const ProcessMesh&) const;

  // The gradients of this rank's leaf number `leaf` are complete: adds them to those of its siblings in the tree.
  void end_leaf(Ctx&, int64_t leaf);
  // Called before and after the optimizer: reduces all ranks' gradients; gathers the updated weights.
  void reduce_gradients(Ctx&);
  void gather_weights(Ctx&);
  void gather_codes(Ctx&);  // after those of all weights were made
  bool sharded() const { return sharding_.stage > 0; }
  const StatesHome& states_home() const { return sharding_.states_home; }
  bool has_host_units() const { return sharding_.host_units > 0; }
  int64_t movable_units() const;  // units that Sharding::host_units may count
  // Equal parts of every unit, whose sums are added in order: with rank-invariant sums as many as leaves, else one.
  int64_t leaves() const { return std::max<int64_t>(1, sharding_.logical.count); }
  const TensorRank& tensor() const { return sharding_.tensor; }
  const ExpertRank& experts() const { return sharding_.experts; }
  const WorkerRank& worker() const { return sharding_.worker; }
  const Placement& placement(Param p) const { return placements_[size_t(p.id)]; }
  // The tokens whose rows this rank has of an embedding or a head that is cut; else the default.
  VocabPart vocab_part(Param) const;
  // Elements of a unit within `of` that this rank adds to the squared gradient norm: every gradient counts on one rank.
  std::vector<Range> counted(const ProcessMesh&, const Unit&, Range of) const;
  bool split() const { return split_; }
  bool has_values() const { return has_values_; }  // apart from the masters
  DType saved_dtype(const Piece& piece) const {    // of masters in files, and of buffers
    return specs_[size_t(piece.param)].buffer ? DType::f32 : saved_dtype_;
  }
  // Whether a unit has memory here: a pipeline's units of other stages are declared, but have none.
  bool here(size_t unit) const { return sharding_.stages.here(unit); }
  const StageUnits& stages() const { return sharding_.stages; }

  const std::vector<ParamSpec>& specs() const { return specs_; }
  const ParamSpec& spec(Param p) const { return specs_[size_t(p.id)]; }
  const std::vector<std::unique_ptr<Unit>>& units() const { return units_; }
  const std::vector<StateSpec>& state_specs() const { return states_; }
  int64_t parameter_count() const;  // values in files, without padding
  int64_t trained_count() const;    // of these, those that may change

  std::vector<Piece> pieces() const;
  // A parameter stored as int8.
  struct Int8Weight {
    Tensor codes, scales;  // [outputs, inputs] u8, [outputs] f32, as Int8Gemm reads them
    float outlier = 0;     // Int8Gemm::outlier
  };
  std::optional<Int8Weight> int8_weight(Param) const;  // none where it is stored otherwise
  // values: of the piece, which is a whole tensor of a file, as f32 in the order of the file. Quantizes them.
  void set_int8(Device&, const Piece& piece, std::span<const float> values) const;
  bool is_int8(const Piece& piece) const { return is_int8(specs_[size_t(piece.param)].stored); }
  bool has_record(const Piece& piece) const { return specs_[size_t(piece.param)].stored != StoredAs::values; }
  // Of a piece that has one, whose Piece::offset is then its place: copies what this rank has of the record.
  Nf4Record record_of(const Piece&) const;
  void set_record(Device&, const Piece&, std::span<const std::byte>) const;
  bool is_saved(const Piece& piece) const { return !specs_[size_t(piece.param)].frozen; }
  bool keeps(size_t state, size_t piece) const;
  bool has_sizes(size_t state) const { return !states_[state].sizes.empty(); }
  // The range of each piece of a planned store including the padding after it; together they cover the unit.
  std::vector<Range> extents() const;

 private:
  static bool is_int8(StoredAs form) { return form == StoredAs::int8 || form == StoredAs::int8_outliers; }
  Tensor view(const Tensor& flat, Param) const;
  Shape stored_shape(int id) const;  // of what the unit's flat buffer has of a parameter
  struct OwnPiece {
    size_t number;  // in pieces()
    Range extent;
  };
  void lay_out(Unit&);
  bool lay_out_codes(Unit&) const;
  void gather_others(Ctx&, const Unit&);
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
  int64_t record_offset(const ParamSpec&, size_t slice) const;
  void gather(Ctx&, int unit);
  void settle(Ctx&);
  void reduce_early(Ctx&, const Unit&);
  void reduce_whole(Ctx&, const Unit&);
  void begin_sum(Ctx&, const Unit&, bool sends);  // sends: or only takes the buffers
  void leave_early_room(Ctx&);
  void reduce_in_tree(Ctx&, const Unit&);
  void add_tied_gradients(Ctx&);
  void add_parts_of_gradients(Ctx&);
  void add_repeated_gradients(Ctx&, size_t id);
  void begin_gradients(Ctx&, int unit);
  void end_gradients(Ctx&, int unit);
  void end_gradients_of(Ctx&, Unit&, bool last);
  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;       // of each param in its unit
  std::vector<Placement> placements_;  // of each param
  std::vector<std::unique_ptr<Unit>> units_;
  std::map<int, Adapters> adapters_;  // by the matrix
  std::vector<StateSpec> states_;
  Sharding sharding_;
  int64_t align_ = kAlign;
  bool split_ = false, has_values_ = false;
  DType saved_dtype_ = DType::f32;
  bool last_micro_batch_ = false;
  // A unit's gradients that are being reduced.
  struct {
    Unit* unit = nullptr;
    Buffer whole, room;  // room: Communicator::room_of_sum()
    Ctx::Ticket ticket;
    Buffer shard = {};       // of gradients in host memory: this rank's, which the sum is added to
    Ctx::Ticket comes = {};  // likewise: until compute has waited for `shard`
  } reducing_;
  // Gradients on their way to host memory.
  struct {
    Unit* unit = nullptr;
    Buffer grad;
    Ctx::Ticket ticket;
  } sending_;
  // Buffers of the unit whose whole gradients are being reduced.
  struct {
    Buffer room, of_copies;
    Ctx::Ticket ticket;
  } early_;
};

}  // namespace athanor
