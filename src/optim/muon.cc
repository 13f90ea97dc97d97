// Muon [Jordan et al. 2024; Liu et al. 2025, "Muon is scalable for LLM training"]: orthogonalizes the momentum of each
// matrix by Newton-Schulz iterations; NorMuon [Li et al. 2025] then equalizes the size of its outputs. Queries, keys
// and values, stored as one tensor, are separate matrices. Each matrix is orthogonalized by only one rank, its owner
// (matrix_owners.h): momenta are sent to the owner before and updates are sent back after, overlapped with other GEMMs.
// The owner assembles a matrix from the parts of several ranks, and cuts its update into the same parts.
#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>

#include "optim/matrix_owners.h"

namespace athanor {
namespace {

using Coefficients = Orthogonalize::Coefficients;
// [Jordan et al. 2024]: five equal iterations; amplifies small singular values quickly and leaves all in [0.68, 1.14].
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

// Returns the number of outputs of each piece's matrix, for the second moment of NorMuon.
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

  std::vector<UpdatePass> passes() const override {
    using Of = UpdatePass::Of;
    using Use = UpdatePass::Use;
    return {{.masters = Use::no}, {Of::everything, Use::no, Use::no}, {.states = Use::no}};
  }
  void run(size_t pass, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    if (pass == 0) return average(c, params, placed, step_state);
    if (pass == 1) return make_orthogonal(c, params, placed, step_state);
    move_along(c, o_, params, placed, step_state);
  }

 private:
  // Replaces the gradients in this rank's shard by updates.
  void make_orthogonal(Ctx& c, const ParamStore& params, const Placed& placed, Tensor step_state) {
    Communicator& group = c.mesh.weights();
    if (!owners_)
      owners_.emplace(params, placed, c.mesh, o_.elements_at_once, normalizes() ? int(placed.states[1]) : -1);
    if (c.update_sums)
      std::ranges::move(owners_->exchanges(size_of(gemm_type(c))), std::back_inserter(c.update_sums->exchanges));
    const auto& groups = owners_->groups();
    std::vector<Sent> next, back;
    if (!groups.empty()) next = collect(c, params, groups[0]);
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<Sent> now = std::exchange(next, {});
      if (g + 1 < groups.size()) next = collect(c, params, groups[g + 1]);
      for (Sent& sent : now) c.wait(std::move(sent.ticket));
      std::vector<Buffer> updates = updates_of(c, params, placed, groups[g], now, step_state);
      now.clear();
      std::vector<Sent> spreading;
      for (size_t j = groups[g].first; j < groups[g].last; ++j)
        spreading.push_back(spread(c, params, j, std::move(updates[j - groups[g].first])));
      for (Sent& sent : std::exchange(back, std::move(spreading))) take(c, std::move(sent));
    }
    for (Sent& sent : back) take(c, std::move(sent));
    if (normalizes() && group.size() > 1) share_numbers(c, params, placed);
  }

  // Exchange that may overlap with the GEMMs of another round.
  struct Sent {
    struct Part {
      Tensor grad, update;  // range of this rank's shard; the received update
    };
    Buffer out, in;
    Ctx::Ticket ticket;
    std::vector<Part> parts;
  };

  // Replaces the gradients in this rank's shard by momenta.
  void average(Ctx& c, const ParamStore& params, const Placed& placed, Tensor step_state) const {
    Momentum op{.parts = {}, .state = step_state, .beta = o_.momentum, .nesterov = o_.nesterov, .seed = o_.seed};
    for (const UpdatePart& p : update_parts(params, placed, PartsOf::states))
      op.parts.push_back({.m = p.m, .grad = p.grad, .moment_stream = p.moment_stream, .first = p.first});
    if (!op.parts.empty()) c.run(op);
  }

  // Returns NorMuon's state of a unit: mean squares per output.
  static Tensor numbers_of(const ParamStore& params, size_t unit, const Placed& placed) {
    return params.units()[unit]->states[placed.states[1]].t;
  }
  bool normalizes() const { return o_.rule == RuleName::normuon; }

  // GEMMs are in bf16, or in f32 if the whole run is in f32.
  static DType gemm_type(const Ctx& c) { return c.recipe.compute == DType::f32 ? DType::f32 : DType::bf16; }

  static Ctx::Ticket exchange(Ctx& c, const std::vector<Tensor>& out, const std::vector<Tensor>& in) {
    const CollectiveSubject subject("whole matrices");
    return c.overlap([&](Stream stream) { c.mesh.weights().all_to_all(out, in, stream); });
  }

  // Assembles a tensor from its concatenated parts; or, with `cut`, the reverse.
  static Buffer rearranged(Ctx& c, const MatrixTensor& t, Buffer from, bool cut) {
    if (t.in_order) return from;
    Buffer to = c.alloc(cut ? "updates in parts" : "averages in their places", from.t.dtype, {t.numel});
    const Tensor &whole = cut ? from.t : to.t, &parts = cut ? to.t : from.t;
    for (size_t rank = 0; rank < t.parts.size(); ++rank) {
      const MatrixTensor::Part& part = t.parts[rank];
      if (part.first != int(rank)) continue;
      for (const Strips& s : part.strips) {
        const Shape shape{s.count, s.length};
        const Tensor in_whole{whole.at(s.at), whole.dtype, shape, s.step};
        const Tensor in_part{parts.at(part.at + s.part_at), parts.dtype, shape, s.part_step};
        c.run(Combine{.y = cut ? in_part : in_whole, .a = cut ? in_whole : in_part});
      }
    }
    return to;
  }

  std::vector<Sent> collect(Ctx& c, const ParamStore& params, MatrixOwners::Group group) const {
    std::vector<Sent> all;
    for (size_t j = group.first; j < group.last; ++j) all.push_back(collect(c, params, j));
    return all;
  }
  // Starts sending the momenta of a round's tensors to the owners within this replica of the weights. Momenta are
  // rounded before they are sent, so results do not depend on the number of ranks.
  Sent collect(Ctx& c, const ParamStore& params, size_t j) const {
    const MatrixOwners& owners = *owners_;
    const auto& round = owners.round(j);
    const int me = c.mesh.weights().rank();
    std::vector<Tensor> out(round.size()), in(round.size());
    Sent sent;
    int64_t count = 0;
    for (int owner = 0; owner < owners.ranks(); ++owner)
      if (const MatrixTensor* t = round[size_t(owner)]; t && owner != me && owners.gives(*t, owner, me))
        count += owners.held(*t, me).size();
    if (count > 0) sent.out = c.alloc("averages of others' matrices", gemm_type(c), {count});
    const MatrixTensor* mine = round[size_t(me)];
    if (mine) sent.in = c.alloc("averages of a matrix", gemm_type(c), {mine->numel});
    int64_t at = 0;
    for (int k = 0; k < owners.ranks(); ++k) {
      if (const MatrixTensor* t = round[size_t(k)]; t && owners.gives(*t, k, me)) {
        const MatrixOwners::Held held = owners.held(*t, me);
        const ParamStore::Unit& unit = *params.units()[t->unit];
        if (const int64_t size = held.size(); size > 0) {
          const Tensor part = k == me ? held.of(sent.in.t) : sent.out.t.slice(at, at + size);
          c.run(Cast{.y = part, .x = unit.part(unit.grad, held.range)});
          if (k != me) out[size_t(k)] = part, at += size;
        }
      }
      if (!mine || k == me || !owners.gives(*mine, me, k)) continue;
      if (const MatrixOwners::Held held = owners.held(*mine, k); held.size() > 0) in[size_t(k)] = held.of(sent.in.t);
    }
    if (owners.gathers()) sent.ticket = exchange(c, out, in);
    return sent;
  }

  // Computes the updates [numel] of this rank's tensors in a group of rounds from their momenta, in the order of the
  // parts to send. Frees the momenta.
  std::vector<Buffer> updates_of(Ctx& c, const ParamStore& params, const Placed& placed, MatrixOwners::Group group,
                                 std::vector<Sent>& momenta, Tensor step_state) const {
    const auto me = size_t(c.mesh.weights().rank());
    std::vector<Buffer> averages(momenta.size()), updates(momenta.size());
    const bool polar = o_.coefficients == MuonCoefficients::polar_express;
    Orthogonalize op{.matrices = {},
                     .iterations = polar ? kPolarExpress : kQuintic,
                     .margin = polar ? 1.02 : 1,
                     .tf32 = c.recipe.tf32};
    const auto for_each = [&](const auto& fn) {  // calls fn(index within the group, tensor) for this rank's tensors
      for (size_t i = 0; i < momenta.size(); ++i)
        if (const MatrixTensor* mine = owners_->round(group.first + i)[me]) fn(i, *mine);
    };
    for_each([&](size_t i, const MatrixTensor& mine) {
      averages[i] = rearranged(c, mine, std::move(momenta[i].in), false);
      updates[i] = c.alloc("updates of matrices", gemm_type(c), {mine.numel});
      int64_t at = 0;  // offset of the matrix; matrices follow each other
      for (const WholeMatrix& m : mine.matrices) {
        const Tensor y = updates[i].t.slice(at, at + m.rows * m.cols).view({m.rows, m.cols});
        op.matrices.push_back({.y = y, .x = m.in(averages[i].t), .scale = normalizes() ? 1 : scale(m)});
        at += m.rows * m.cols;
      }
    });
    if (!op.matrices.empty()) c.run(op);
    auto done = op.matrices.begin();
    for_each([&](size_t i, const MatrixTensor& mine) {
      for (const WholeMatrix& m : mine.matrices) {
        const Tensor y = (done++)->y;
        if (normalizes()) normalize(c, params, placed, mine, m, y, step_state);
        if (mine.matrices.size() > 1) c.run(Combine{.y = m.in(averages[i].t), .a = y});
      }
      if (mine.matrices.size() > 1) std::swap(updates[i], averages[i]);
      averages[i] = {};
      updates[i] = rearranged(c, mine, std::move(updates[i]), true);
    });
    return updates;
  }

  void normalize(Ctx& c, const ParamStore& params, const Placed& placed, const MatrixTensor& tensor,
                 const WholeMatrix& matrix, Tensor x, Tensor step_state) const {
    const Tensor v = numbers_of(params, tensor.unit, placed).slice(matrix.numbers, matrix.numbers + matrix.outputs());
    c.run(NormalizeNeurons{
        .x = x, .v = v, .state = step_state, .columns = matrix.in_out, .beta = o_.beta2, .scale = scale(matrix)});
  }

  // Starts sending the updates of a round to all ranks that apply parts of them, in all replicas of the weights.
  Sent spread(Ctx& c, const ParamStore& params, size_t j, Buffer updates) const {
    const MatrixOwners& owners = *owners_;
    const auto& round = owners.round(j);
    const int me = c.mesh.weights().rank();
    std::vector<Tensor> out(round.size()), in(round.size());
    Sent sent;
    sent.out = std::move(updates);
    const Tensor mine = round[size_t(me)] ? sent.out.t.view({round[size_t(me)]->numel}) : Tensor{};
    int64_t count = 0;
    for (int k = 0; k < owners.ranks(); ++k)
      if (const MatrixTensor* t = round[size_t(k)]; t && k != me) count += owners.held(*t, me).size();
    if (count > 0) sent.in = c.alloc("updates of others' matrices", gemm_type(c), {count});
    int64_t at = 0;
    for (int k = 0; k < owners.ranks(); ++k) {
      if (mine && k != me)
        if (const MatrixOwners::Held held = owners.held(*round[size_t(me)], k); held.size() > 0)
          out[size_t(k)] = held.of(mine);
      const MatrixTensor* t = round[size_t(k)];
      if (!t) continue;
      const MatrixOwners::Held held = owners.held(*t, me);
      const int64_t size = held.size();
      if (size == 0) continue;
      const Tensor part = k == me ? held.of(mine) : sent.in.t.slice(at, at + size);
      if (k != me) in[size_t(k)] = part, at += size;
      const ParamStore::Unit& unit = *params.units()[t->unit];
      sent.parts.push_back({unit.part(unit.grad, held.range), part});
    }
    if (owners.ranks() > 1) sent.ticket = exchange(c, out, in);
    return sent;
  }

  // Replaces the gradients in this rank's shard by the received updates.
  static void take(Ctx& c, Sent sent) {
    c.wait(std::move(sent.ticket));
    for (const Sent::Part& part : sent.parts) c.run(Cast{.y = part.grad, .x = part.update});
  }

  // All-reduces the per-output state: each value is nonzero only on the rank that owns its matrix, so sums are exact.
  // The state of matrices in other groups is unchanged.
  void share_numbers(Ctx& c, const ParamStore& params, const Placed& placed) const {
    std::vector<WholeMatrix> none;
    struct Numbers {
      Tensor of_matrix;
      bool mine;
    };
    std::vector<Numbers> all;
    int64_t count = 0;
    const auto me = size_t(c.mesh.weights().rank());
    for (size_t j = 0; j < owners_->rounds(); ++j)
      for (size_t k = 0; k < owners_->round(j).size(); ++k) {
        const MatrixTensor* t = owners_->round(j)[k];
        for (const WholeMatrix& m : t ? t->matrices : none) {
          all.push_back({numbers_of(params, t->unit, placed).slice(m.numbers, m.numbers + m.outputs()), k == me});
          count += m.outputs();
        }
      }
    if (count == 0) return;
    const Buffer sums = c.alloc("numbers of all outputs", DType::f32, {count});
    c.run(Fill{.x = sums.t});
    const auto for_each = [&](const auto& fn) {
      int64_t at = 0;
      for (const Numbers& n : all) {
        fn(n, sums.t.slice(at, at + n.of_matrix.numel()));
        at += n.of_matrix.numel();
      }
    };
    for_each([&](const Numbers& n, const Tensor& place) {
      if (n.mine) c.run(Cast{.y = place, .x = n.of_matrix});
    });
    const CollectiveSubject subject("numbers of outputs");
    if (c.update_sums) ++c.update_sums->numbers_calls, c.update_sums->numbers_bytes += int64_t(sums.t.bytes());
    c.all_reduce(c.mesh.weights(), sums.t);
    for_each([&](const Numbers& n, const Tensor& place) {
      if (!n.mine) c.run(Cast{.y = n.of_matrix, .x = place});
    });
  }

  // Uses the matrix's [out, in] orientation, independent of its storage order.
  double scale(const WholeMatrix& m) const {
    const auto out = double(m.outputs()), in = double(m.inputs());
    if (o_.scale == MuonScale::match_rms) return 0.2 * std::sqrt(std::max(out, in));
    return std::sqrt(o_.scale == MuonScale::spectral ? out / in : std::max(1.0, out / in));
  }

  RuleOptions o_;
  std::optional<MatrixOwners> owners_;  // unchanged in all steps
};

}  // namespace

std::unique_ptr<UpdateRule> make_muon(const RuleOptions& options) { return std::make_unique<MuonRule>(options); }

}  // namespace athanor
