// Muon [Jordan et al. 2024; Liu et al. 2025, "Muon is scalable for LLM training"]: the average of a matrix's gradients,
// made orthogonal by Newton-Schulz iterations, is its update. What files and buffers hold as one tensor but products
// use as several (queries, keys and values) are several matrices. Ranks that share out a unit each orthogonalize whole
// matrices of as many units as there are ranks, so that each matrix is done once, the matrices balanced by their cost;
// averages are gathered before, results scattered after.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "base/rng.h"
#include "optim/rule.h"

namespace athanor {
namespace {

struct Coefficients {
  double a, b, c;
};
// [Jordan et al. 2024]: five times the same, which lifts small singular values fast and leaves all in [0.68, 1.14].
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
  size_t unit;
  int64_t offset, rows, cols, stride;
  bool in_out;
  int owner = 0;
  int64_t outputs() const { return in_out ? cols : rows; }
  int64_t inputs() const { return in_out ? rows : cols; }
  double cost() const {
    return double(std::max(rows, cols)) * double(std::min(rows, cols)) * double(std::min(rows, cols));
  }
  // As a view of a tensor that holds the unit's elements from `first` on.
  Tensor in(const Tensor& flat, int64_t first = 0) const {
    return {flat.at(offset - first), flat.dtype, {rows, cols}, stride};
  }
};

// The first of the weights that are cut, as the ranks of a tensor-parallel group would, along columns.
void add_matrices(const ParamStore& params, const ParamStore::Piece& piece, std::vector<Matrix>& all) {
  const ParamSpec& spec = params.specs()[size_t(piece.param)];
  const Shape& shape = piece.slice->shape;
  const std::vector<int64_t> columns = spec.cut.axis == 1 ? spec.cut.parts : std::vector<int64_t>{shape[1]};
  int64_t at = 0;
  for (const int64_t cols : columns) {
    all.push_back({size_t(piece.unit), piece.offset + at, shape[0], cols, shape[1], spec.in_out});
    at += cols;
  }
}

class MuonRule final : public UpdateRule {
 public:
  explicit MuonRule(const RuleOptions& options) : o_(options) {}
  std::vector<KeptState> states() const override { return {{"m", o_.m}}; }
  bool exchanges() const override { return true; }

  void step(Ctx& c, ParamStore& params, std::span<const UpdateRange> ranges, const Placed& placed,
            Tensor step_state) override {
    average(c, params, ranges, placed, step_state);
    Communicator* group = &c.mesh.data_parallel();
    if (params.sharded()) group = &c.mesh[Axis::dp_shard];
    for (auto& [first, matrices] : batches(params, ranges, group->size())) {
      std::vector<Buffer> mine = collect(c, params, ranges, matrices, *group);
      for (size_t i = 0; i < mine.size(); ++i) mine[i] = orthogonal(c, std::move(mine[i]), matrices[i]);
      spread(c, params, ranges, matrices, mine, *group);
    }
    const Sgd move{.parts = update_parts(params, ranges, {}),
                   .state = step_state,
                   .weight_decay = o_.weight_decay,
                   .seed = o_.seed,
                   .rate = o_.lr_factor,
                   .direction = true};
    if (!move.parts.empty()) c.run(move);
  }

 private:
  using Batches = std::map<size_t, std::vector<Matrix>>;  // by number of the batch

  // Replaces this rank's shard of the gradients by the averages.
  void average(Ctx& c, const ParamStore& params, std::span<const UpdateRange> ranges, const Placed& placed,
               Tensor step_state) const {
    Momentum op{.parts = {}, .state = step_state, .beta = o_.momentum, .nesterov = o_.nesterov, .seed = o_.seed};
    for (const UpdatePart& p : update_parts(params, ranges, placed))
      op.parts.push_back({.m = p.m, .grad = p.grad, .moment_stream = p.moment_stream, .first = p.first});
    if (!op.parts.empty()) c.run(op);
  }

  // Batches of as many units as there are ranks; assigns each matrix to a rank, most expensive first, to the least
  // loaded.
  static Batches batches(const ParamStore& params, std::span<const UpdateRange> ranges, int ranks) {
    const auto pieces = params.pieces();
    Batches all;
    std::map<size_t, size_t> numbers;  // of the units that have matrices
    for (const UpdateRange& r : ranges) {
      const size_t number = numbers.try_emplace(r.unit, numbers.size()).first->second;
      add_matrices(params, pieces[r.piece], all[number / size_t(ranks)]);
    }
    for (auto& [first, matrices] : all) {
      std::vector<Matrix*> order;
      for (Matrix& m : matrices) order.push_back(&m);
      std::ranges::stable_sort(order, std::greater{}, [](const Matrix* m) { return m->cost(); });
      std::vector<double> load(static_cast<size_t>(ranks));
      for (Matrix* m : order) {
        const auto least = std::ranges::min_element(load);
        *least += m->cost();
        m->owner = int(least - load.begin());
      }
    }
    return all;
  }

  // Products are in bf16, or in f32 if all products of the run are.
  static DType product_type(const Ctx& c) { return c.recipe.compute == DType::f32 ? DType::f32 : DType::bf16; }

  template <class Fn>
  static void for_units(const std::vector<Matrix>& matrices, const Fn& fn) {
    for (size_t i = 0; i < matrices.size(); ++i)
      if (i == 0 || matrices[i].unit != matrices[i - 1].unit) fn(matrices[i].unit);
  }

  // The averages of the matrices assigned to this rank, divided by their norms. Rounded before they are sent, so they
  // do not depend on the number of ranks.
  std::vector<Buffer> collect(Ctx& c, const ParamStore& params, std::span<const UpdateRange> ranges,
                              const std::vector<Matrix>& matrices, Communicator& group) const {
    std::vector<Buffer> mine(matrices.size());
    const DType type = product_type(c);
    for_units(matrices, [&](size_t u) {
      const ParamStore::Unit& unit = *params.units()[u];
      Buffer whole = c.alloc("averages of a unit", type, {unit.layout.numel});
      const bool sharded = params.sharded();
      const Buffer share =
          sharded ? c.alloc("averages of a shard", type, {unit.shard.end - unit.shard.begin}) : Buffer{};
      for (const UpdateRange& r : ranges) {
        const ParamStore::Range range = unit.owned(r.range.begin, r.range.end);
        if (r.unit != u || range.begin == range.end) continue;
        const Tensor to = sharded ? share.t.slice(range.begin - unit.shard.begin, range.end - unit.shard.begin)
                                  : whole.t.slice(range.begin, range.end);
        c.run(Cast{.y = to, .x = unit.part(unit.grad, range)});
      }
      const CollectiveSubject subject(unit.name);
      if (sharded) c.all_gather(group, whole.t, share.t);
      const double margin = o_.coefficients == MuonCoefficients::polar_express ? 1.02 : 1;
      for (size_t i = 0; i < matrices.size(); ++i) {
        if (matrices[i].unit != u || matrices[i].owner != group.rank()) continue;
        mine[i] = c.alloc("matrix", type, {matrices[i].rows, matrices[i].cols});
        c.run(NormalizeMatrix{.y = mine[i].t, .x = matrices[i].in(whole.t), .margin = margin});
      }
    });
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
      const double by = turn + 1 == turns.size() ? scale(matrix) : 1;
      const auto [p, q, r] = turns[turn];
      c.run(Gemm{.d = gram.t, .a = x.t, .b = x.t, .ta = !wide, .tb = wide, .tf32 = tf32});
      c.run(Gemm{.d = square.t, .a = gram.t, .b = gram.t, .tb = true, .tf32 = tf32});
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
  void spread(Ctx& c, const ParamStore& params, std::span<const UpdateRange> ranges,
              const std::vector<Matrix>& matrices, std::vector<Buffer>& mine, Communicator& group) const {
    for_units(matrices, [&](size_t u) {
      const ParamStore::Unit& unit = *params.units()[u];
      const Buffer whole = c.alloc("updates of a unit", product_type(c), {unit.layout.numel});
      c.run(Fill{.x = whole.t});  // padding stays 0; adding another rank's result to zeros is exact
      for (size_t i = 0; i < matrices.size(); ++i) {
        if (matrices[i].unit != u || !mine[i]) continue;
        c.run(Combine{.y = matrices[i].in(whole.t), .a = mine[i].t});
        mine[i] = {};
      }
      const CollectiveSubject subject(unit.name);
      const bool sharded = params.sharded();
      const Buffer share =
          sharded ? c.alloc("updates of a shard", whole.t.dtype, {unit.shard.end - unit.shard.begin}) : Buffer{};
      if (sharded)
        c.reduce_scatter(group, share.t, whole.t);
      else if (group.size() > 1)
        c.all_reduce(group, whole.t);
      for (const UpdateRange& r : ranges) {
        const ParamStore::Range range = unit.owned(r.range.begin, r.range.end);
        if (r.unit != u || range.begin == range.end) continue;
        const Tensor from = sharded ? share.t.slice(range.begin - unit.shard.begin, range.end - unit.shard.begin)
                                    : whole.t.slice(range.begin, range.end);
        c.run(Cast{.y = unit.part(unit.grad, range), .x = from});
      }
    });
  }

  RuleOptions o_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_muon(const RuleOptions& options) { return std::make_unique<MuonRule>(options); }

}  // namespace athanor
