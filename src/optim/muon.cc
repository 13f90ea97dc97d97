// Muon [Jordan et al. 2024; Liu et al. 2025, "Muon is scalable for LLM training"]: orthogonalizes the momentum of each
// matrix by Newton-Schulz iterations; NorMuon [Li et al. 2025] then equalizes the size of its outputs. Queries, keys
// and values, stored as one tensor, are separate matrices. With sharding each rank orthogonalizes whole matrices,
// balanced by cost, of as many units as there are ranks; momenta are gathered before and updates scattered after.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "optim/rule.h"

namespace athanor {
namespace {

struct Coefficients {
  double a, b, c;
};
// [Jordan et al. 2024]: five equal iterations; raises small singular values fast and leaves all in [0.68, 1.14].
constexpr std::array<Coefficients, 5> kQuintic = {{{3.4445, -4.7750, 2.0315},
                                                   {3.4445, -4.7750, 2.0315},
                                                   {3.4445, -4.7750, 2.0315},
                                                   {3.4445, -4.7750, 2.0315},
                                                   {3.4445, -4.7750, 2.0315}}};
// [Amsel et al. 2025, "The Polar Express"], for a matrix divided by 1.02 times its norm.
constexpr std::array<Coefficients, 5> kPolarExpress = {
    {{8.156554524902461, -22.48329292557795, 15.878769915207462},
     {4.042929935166739, -2.808917465908714, 0.5000178451051316},
     {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
     {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
     {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}}};

// Rows and columns of a unit's flat buffer that Muon treats as one matrix.
struct Matrix {
  int64_t offset, rows, cols, stride;
  bool in_out;
  int64_t numbers;  // start of its outputs' numbers in the unit's state
  int owner = 0;
  int64_t outputs() const { return in_out ? cols : rows; }
  int64_t inputs() const { return in_out ? rows : cols; }
  double cost() const {
    return double(std::max(rows, cols)) * double(std::min(rows, cols)) * double(std::min(rows, cols));
  }
  // As a view of a tensor of the whole unit.
  Tensor in(const Tensor& flat) const { return {flat.at(offset), flat.dtype, {rows, cols}, stride}; }
};

// The first of the weights that are cut, as the ranks of a tensor-parallel group would, along columns.
void add_matrices(const ParamStore& params, const ParamStore::Piece& piece, int64_t numbers, std::vector<Matrix>& all) {
  const ParamSpec& spec = params.specs()[size_t(piece.param)];
  const Shape& shape = piece.slice->shape;
  const std::vector<int64_t> columns = spec.cut.axis == 1 ? spec.cut.parts : std::vector<int64_t>{shape[1]};
  int64_t at = 0;
  for (const int64_t cols : columns) {
    all.push_back({piece.offset + at, shape[0], cols, shape[1], spec.in_out, numbers + (spec.in_out ? at : 0)});
    at += cols;
  }
}

// Matrices of a unit, and the ranges of the unit that they cover.
struct UnitMatrices {
  size_t unit;
  std::vector<ParamStore::Range> ranges = {};
  std::vector<Matrix> matrices = {};
  std::vector<ParamStore::Range> numbers = {};  // of all its outputs, in the unit's state
};
// A batch: as many units as there are ranks.
using Batch = std::vector<UnitMatrices>;

// Assigns each matrix to a rank, most expensive first, to the least loaded.
void give_to_owners(Batch& batch, int ranks) {
  std::vector<Matrix*> order;
  for (UnitMatrices& unit : batch)
    for (Matrix& m : unit.matrices) order.push_back(&m);
  std::ranges::stable_sort(order, std::greater{}, [](const Matrix* m) { return m->cost(); });
  std::vector<double> load(static_cast<size_t>(ranks));
  for (Matrix* m : order) {
    const auto least = std::ranges::min_element(load);
    *least += m->cost();
    m->owner = int(least - load.begin());
  }
}

std::vector<Batch> make_batches(const ParamStore& params, const Placed& placed, int ranks) {
  const auto pieces = params.pieces();
  std::vector<Batch> batches;
  for (const UpdateRange& r : placed.ranges) {
    if (batches.empty() || batches.back().back().unit != r.unit) {
      if (batches.empty() || batches.back().size() == size_t(ranks)) batches.emplace_back();
      batches.back().push_back({.unit = r.unit});
    }
    UnitMatrices& unit = batches.back().back();
    unit.ranges.push_back(r.range);
    const bool numbered = placed.states.size() > 1;
    const int64_t numbers = numbered ? params.units()[r.unit]->states[placed.states[1]].first_of(r.piece) : 0;
    add_matrices(params, pieces[r.piece], numbers, unit.matrices);
    if (!numbered) continue;
    if (unit.numbers.empty() || round_up(unit.numbers.back().end, ParamStore::kAlign) != numbers)
      unit.numbers.push_back({numbers, numbers});
    unit.numbers.back().end = numbers + params.state_specs()[placed.states[1]].sizes[r.piece];
  }
  for (Batch& batch : batches) give_to_owners(batch, ranks);
  return batches;
}

// A whole unit and, with sharding, this rank's shard of it: source and destination of an exchange.
struct Exchanged {
  Buffer whole, share;
  Exchanged(Ctx& c, const ParamStore& params, const ParamStore::Unit& unit, DType type, const char* name,
            const char* share_name)
      : whole(c.alloc(name, type, {unit.layout.numel})) {
    if (params.sharded()) share = c.alloc(share_name, type, {unit.shard.end - unit.shard.begin});
  }
  Tensor part(const ParamStore::Unit& unit, ParamStore::Range range) const {
    return unit.part(share ? share.t : whole.t, range);
  }
};

// Of each piece: one for each output of a matrix.
std::vector<int64_t> outputs_of(const ParamStore& params) {
  std::vector<int64_t> sizes;
  for (const auto& piece : params.pieces()) {
    const ParamSpec& spec = params.specs()[size_t(piece.param)];
    const Shape& shape = piece.slice->shape;
    sizes.push_back(spec.role == Role::matrix ? shape[spec.in_out ? 1 : 0] : 0);
  }
  return sizes;
}

class MuonRule final : public UpdateRule {
 public:
  explicit MuonRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override {
    std::vector<KeptState> kept{{"m", o_.m}};
    if (normalizes()) kept.push_back({"v_neuron", DType::f32, outputs_of});
    return kept;
  }
  bool exchanges() const override { return true; }

  void step(Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    Sgd move = move_along(o_, params, placed, step_state);
    average(c, move.parts, step_state);
    Communicator& group = params.sharded() ? c.mesh.shards() : c.mesh.data_parallel();
    if (batches_.empty()) batches_ = make_batches(params, placed, group.size());
    for (const Batch& batch : batches_) {
      std::vector<Buffer> mine = collect(c, params, batch, group);
      size_t i = 0;
      for (const UnitMatrices& unit : batch)
        for (const Matrix& matrix : unit.matrices) {
          mine[i] = orthogonal(c, std::move(mine[i]), matrix);
          if (normalizes()) normalize(c, numbers_of(params, unit, placed), matrix, mine[i], step_state);
          ++i;
        }
      if (normalizes() && group.size() > 1) share_numbers(c, params, placed, batch, group);
      spread(c, params, batch, mine, group);
    }
    for (UpdatePart& part : move.parts) part.m = {};
    if (!move.parts.empty()) c.run(move);
  }

 private:
  // Replaces this rank's shard of the gradients by the momenta.
  void average(Ctx& c, const std::vector<UpdatePart>& parts, Tensor step_state) const {
    Momentum op{.parts = {}, .state = step_state, .beta = o_.momentum, .nesterov = o_.nesterov, .seed = o_.seed};
    for (const UpdatePart& p : parts)
      op.parts.push_back({.m = p.m, .grad = p.grad, .moment_stream = p.moment_stream, .first = p.first});
    if (!op.parts.empty()) c.run(op);
  }

  // Mean squares of a unit's outputs.
  static Tensor numbers_of(const ParamStore& params, const UnitMatrices& unit, const Placed& placed) {
    return params.units()[unit.unit]->states[placed.states[1]].t;
  }
  bool normalizes() const { return o_.rule == RuleName::normuon; }

  // Normalizes the outputs in the update of a matrix of this rank; the state of other ranks' matrices becomes 0.
  void normalize(Ctx& c, const Tensor& numbers, const Matrix& matrix, const Buffer& x, Tensor step_state) const {
    const Tensor v = numbers.slice(matrix.numbers, matrix.numbers + matrix.outputs());
    if (!x) return c.run(Fill{.x = v});
    c.run(NormalizeNeurons{
        .x = x.t, .v = v, .state = step_state, .columns = matrix.in_out, .beta = o_.beta2, .scale = scale(matrix)});
  }

  // Sums over ranks: each number is nonzero only on the rank that owns its matrix, so the sum is exact. The state of
  // matrices in other groups is unchanged.
  static void share_numbers(Ctx& c, const ParamStore& params, const Placed& placed, const Batch& batch,
                            Communicator& group) {
    for (const UnitMatrices& unit : batch) {
      const CollectiveSubject subject(params.units()[unit.unit]->name);
      const Tensor all = numbers_of(params, unit, placed);
      for (const ParamStore::Range& range : unit.numbers) c.all_reduce(group, all.slice(range.begin, range.end));
    }
  }

  // Products are in bf16, or in f32 if all products of the run are.
  static DType product_type(const Ctx& c) { return c.recipe.compute == DType::f32 ? DType::f32 : DType::bf16; }

  // fn(a range of the gradients in this rank's shard, the matching range of the exchange)
  template <class Fn>
  static void for_owned(const ParamStore::Unit& unit, const UnitMatrices& of, const Exchanged& exchanged,
                        const Fn& fn) {
    for (const ParamStore::Range& r : of.ranges)
      if (const ParamStore::Range range = unit.owned(r.begin, r.end); range.begin < range.end)
        fn(unit.part(unit.grad, range), exchanged.part(unit, range));
  }

  // Momenta of the matrices assigned to this rank, divided by their norms. Rounded before they are sent, so they do not
  // depend on the number of ranks.
  std::vector<Buffer> collect(Ctx& c, const ParamStore& params, const Batch& batch, Communicator& group) const {
    std::vector<Buffer> mine;
    const DType type = product_type(c);
    const double margin = o_.coefficients == MuonCoefficients::polar_express ? 1.02 : 1;
    for (const UnitMatrices& of : batch) {
      const ParamStore::Unit& unit = *params.units()[of.unit];
      const Exchanged averages(c, params, unit, type, "averages of a unit", "averages of a shard");
      for_owned(unit, of, averages, [&](const Tensor& grad, const Tensor& part) { c.run(Cast{.y = part, .x = grad}); });
      const CollectiveSubject subject(unit.name);
      if (averages.share) c.all_gather(group, averages.whole.t, averages.share.t);
      for (const Matrix& matrix : of.matrices) {
        Buffer& own = mine.emplace_back();
        if (matrix.owner != group.rank()) continue;
        own = c.alloc("matrix", type, {matrix.rows, matrix.cols});
        c.run(NormalizeMatrix{.y = own.t, .x = matrix.in(averages.whole.t), .margin = margin});
      }
    }
    return mine;
  }

  // rows and columns in the order of products: an [out, in] matrix.
  double scale(const Matrix& m) const {
    const auto out = double(m.outputs()), in = double(m.inputs());
    if (o_.scale == MuonScale::match_rms) return 0.2 * std::sqrt(std::max(out, in));
    return std::sqrt(o_.scale == MuonScale::spectral ? out / in : std::max(1.0, out / in));
  }

  // X <- a X + b (X X') X + c (X X')^2 X per iteration, the last one times the scale; uses the smaller of X X' and X'
  // X.
  Buffer orthogonal(Ctx& c, Buffer x, const Matrix& matrix) const {
    if (!x) return x;
    const bool wide = matrix.rows <= matrix.cols;
    const int64_t side = std::min(matrix.rows, matrix.cols);
    const auto& turns = o_.coefficients == MuonCoefficients::polar_express ? kPolarExpress : kQuintic;
    const bool tf32 = c.recipe.tf32;
    const Buffer gram = c.alloc("gram matrix", x.t.dtype, {side, side});
    const Buffer square = c.alloc("square of the gram matrix", x.t.dtype, {side, side});
    Buffer y = c.alloc("next matrix", x.t.dtype, x.t.shape);
    for (size_t turn = 0; turn < turns.size(); ++turn) {
      const double by = turn + 1 == turns.size() && !normalizes() ? scale(matrix) : 1;
      const auto [p, q, r] = turns[turn];
      c.run(Gemm{.d = gram.t, .a = x.t, .b = x.t, .ta = !wide, .tb = wide, .tf32 = tf32, .symmetric = true});
      c.run(Gemm{.d = square.t, .a = gram.t, .b = gram.t, .tb = true, .tf32 = tf32, .symmetric = true});
      c.run(Combine{.y = square.t, .a = gram.t, .b = square.t, .alpha = float(by * q), .beta = float(by * r)});
      c.run(Combine{.y = y.t, .a = x.t, .alpha = float(by * p)});
      const Tensor& left = wide ? square.t : x.t;
      const Tensor& right = wide ? x.t : square.t;
      c.run(Gemm{.d = y.t, .a = left, .b = right, .accumulate = true, .tf32 = tf32});
      std::swap(x, y);
    }
    return x;
  }

  // Replaces the gradients of this rank's shard by the updates, from the ranks that computed them.
  void spread(Ctx& c, const ParamStore& params, const Batch& batch, std::vector<Buffer>& mine,
              Communicator& group) const {
    size_t i = 0;
    for (const UnitMatrices& of : batch) {
      const ParamStore::Unit& unit = *params.units()[of.unit];
      const Exchanged updates(c, params, unit, product_type(c), "updates of a unit", "updates of a shard");
      c.run(Fill{.x = updates.whole.t});  // padding stays 0; adding another rank's result to zeros is exact
      for (const Matrix& matrix : of.matrices) {
        const Buffer made = std::move(mine[i++]);
        if (made) c.run(Combine{.y = matrix.in(updates.whole.t), .a = made.t});
      }
      const CollectiveSubject subject(unit.name);
      if (updates.share)
        c.reduce_scatter(group, updates.share.t, updates.whole.t);
      else if (group.size() > 1)
        c.all_reduce(group, updates.whole.t);
      for_owned(unit, of, updates, [&](const Tensor& grad, const Tensor& part) { c.run(Cast{.y = grad, .x = part}); });
    }
  }

  RuleOptions o_;
  std::vector<Batch> batches_;  // from the plan: the same in every step
};

}  // namespace

std::unique_ptr<UpdateRule> make_muon(const RuleOptions& options) { return std::make_unique<MuonRule>(options); }

}  // namespace athanor
