// Mixture of experts: the router, sorting of rows by expert, and computation on sorted rows. Shapes are static: N
// tokens with k experts each make R = N k rows, however they are distributed over the E experts; `offsets` in device
// memory holds the first row of each expert.
#pragma once
#include <cmath>
#include <utility>

#include "base/choices.h"
#include "ops/gemm.h"
#include "ops/op.h"
#include "ops/optimizer.h"

namespace athanor {

// How logits become choices and weights. Scores are the softmax over all E experts [Shazeer et al. 2017, sec. 2.1] or
// the sigmoid of each logit [DeepSeek-AI 2024, "DeepSeek-V3", eq. 15]. Weights are the scores of the chosen experts,
// times `factor`; with `normalize` first divided by their sum + kSumFloor. With groups > 1 the experts form that many
// equal groups of consecutive experts, and only experts of the chosen_groups best groups can be chosen; a group's value
// is the sum of its two largest selection values or, with `by_largest`, the largest one [DeepSeek-AI 2024,
// "DeepSeek-V2", sec. 2.2.2].
struct RouterRule {
  RouterScore score = RouterScore::softmax;
  bool normalize = false;
  int64_t groups = 1, chosen_groups = 1;
  bool by_largest = false;
  float factor = 1;
  static constexpr float kSumFloor = 1e-20f;  // as in transformers; all scores may underflow
  static constexpr int64_t kMaxGroups = 256;
};

// Chooses the k experts of each token with the largest selection values, in descending order; among equal values the
// lower expert index comes first. The selection value is the logit; with groups, a bias or sigmoid scores it is score +
// bias. Weights never include the bias.
struct RouteFwd {
  Tensor weights;    // [N, k] f32
  Tensor experts;    // [N, k] i32
  Tensor logits;     // [N, E] f32
  Tensor bias = {};  // [E] f32, optional
  RouterRule rule = {};
  static constexpr const char* kName = "route_fwd";
  auto fields() {
    return fields_of(Field::out("weights", weights), Field::out("experts", experts), Field::in("logits", logits),
                     Field::in("bias", bias));
  }
  bool selects_by_logit() const { return rule.score == RouterScore::softmax && rule.groups == 1 && !bias; }
  void check() const {
    Expect e{kName};
    e.matrix("logits", logits).is("logits", logits, DType::f32, logits.shape).matrix("weights", weights);
    e.is("weights", weights, DType::f32, {logits.rows(), weights.cols()})
        .is("experts", experts, DType::i32, weights.shape)
        .that(weights.cols() >= 1 && weights.cols() <= logits.cols(), "weights", "one to all experts for each token");
    if (bias) e.is("bias", bias, DType::f32, {logits.cols()});
    const auto [groups, chosen] = std::pair(rule.groups, rule.chosen_groups);
    e.that(
        groups == 1 || (groups <= RouterRule::kMaxGroups && logits.cols() % groups == 0 && logits.cols() / groups >= 2),
        "logits", "a column for each expert of rule.groups: 1, or at most 256 equal groups of two experts or more");
    e.that(chosen >= 1 && chosen <= groups && weights.cols() <= logits.cols() / groups * chosen, "weights",
           "no more experts for each token than rule.chosen_groups have, which are at most rule.groups");
  }
  Cost cost() const { return {10.0 * double(logits.numel()), traffic(*this)}; }
};

// Returns the number of choices that an expert accepts from a sequence of T tokens: ceil(factor T k / E) [Fedus et al.
// 2021, "Switch Transformers", eq. 3, with k experts per token, as in Megatron-LM's get_capacity()].
inline int64_t expert_capacity(double factor, int64_t sequence, int64_t chosen, int64_t experts) {
  return int64_t(std::ceil(factor * double(sequence * chosen) / double(experts)));
}

// Drops the choices beyond the capacity of each expert: in each sequence the expert keeps the `capacity` choices with
// the largest router weights (Megatron-LM's drop policy `probs`); among equal weights the earlier token comes first,
// and NaN comes last. Capacity is counted per sequence, like the losses of RouteBwd, so that the kept choices do not
// depend on micro-batches and ranks; GShard and Megatron-LM count it per group of tokens on a device.
struct DropChoices {
  Tensor kept;               // [N, k] i32: the expert, or E if the choice is dropped
  Tensor experts;            // [N, k] i32; the experts of one token are distinct
  Tensor weights;            // [N, k] f32, from RouteFwd
  int64_t expert_count = 1;  // E
  int64_t sequence = 1;      // T; N is a multiple of it
  int64_t capacity = 1;
  static constexpr const char* kName = "drop_choices";
  auto fields() {
    return fields_of(Field::out("kept", kept), Field::in("experts", experts), Field::in("weights", weights));
  }
  int64_t sequences() const { return experts.rows() / sequence; }
  void check() const {
    Expect e{kName};
    e.matrix("experts", experts).is("experts", experts, DType::i32, experts.shape);
    e.is("kept", kept, DType::i32, experts.shape).is("weights", weights, DType::f32, experts.shape);
    e.that(sequence > 0 && experts.rows() % sequence == 0, "experts", "whole sequences")
        .that(expert_count >= 1 && capacity >= 1, "kept", "a capacity of one choice or more for one expert or more");
  }
  Cost cost() const { return {10.0 * double(experts.numel()), traffic(*this)}; }
};

// Layout of RouteBwd's f64 statistics of a layer: tokens per expert [E], then sums over tokens.
struct RouterStatistics {
  static constexpr int64_t kSums = 4;
  int64_t experts;
  int64_t size() const { return experts + kSums; }
  int64_t entropy() const { return experts; }      // entropy of the probabilities in nats
  int64_t balance() const { return experts + 1; }  // RouteBwd's balance loss; 1 per token if perfectly balanced
  int64_t squares() const { return experts + 2; }  // log(sum(exp(logits)))^2
  int64_t dropped() const { return experts + 3; }  // choices that DropChoices dropped
};

// Number of rows of a micro-batch at each expert.
struct CountExperts {
  Tensor counts;   // [E] f64
  Tensor experts;  // [N, k] i32
  static constexpr const char* kName = "count_experts";
  auto fields() { return fields_of(Field::out("counts", counts), Field::in("experts", experts)); }
  void check() const {
    Expect e{kName};
    e.matrix("experts", experts).is("experts", experts, DType::i32, experts.shape);
    e.is("counts", counts, DType::f64, {counts.numel()});
  }
  Cost cost() const { return {double(experts.numel()), traffic(*this)}; }
};

// Loads of experts in a step, for a balance loss over the global batch [Qiu et al. 2025, "Demons in the Detail", sec.
// 3]: running += counts, loads = running / mean(running).
struct ExpertLoads {
  Tensor loads;    // [E] f32: 1 for an expert with the mean number of tokens
  Tensor running;  // [E] f64: tokens per expert in the step's micro-batches so far, of all ranks
  Tensor counts;   // [E] f64: those of one more micro-batch
  static constexpr const char* kName = "expert_loads";
  auto fields() {
    return fields_of(Field::out("loads", loads), Field::inout("running", running), Field::in("counts", counts));
  }
  void check() const {
    Expect e{kName};
    e.is("counts", counts, DType::f64, {counts.numel()}).is("running", running, DType::f64, {counts.numel()});
    e.is("loads", loads, DType::f32, {counts.numel()});
  }
  Cost cost() const { return {3.0 * double(counts.numel()), traffic(*this)}; }
};

// Gradient of the logits: through the weights, plus two auxiliary losses of the router. In a sequence of T tokens let
// c_i be the number of its T k rows at expert i, and p_ti the score of expert i for token t divided by the sum of all
// scores of t:
//   balance loss = E / (k T^2) sum_i c_i sum_t p_ti   [Fedus et al. 2021, eq. 4, for k experts]
//   z-loss = 1/T sum_t log(sum_i exp(logit_ti))^2     [Zoph et al. 2022, eq. 5]
// Each counts as `balance` or `z` times T token losses, so its gradient is also multiplied by scale * inv_count. Counts
// and the bias of RouteFwd have no gradient. The losses are computed per sequence, so they do not depend on
// micro-batches and ranks, unless T is the size of the micro-batch. With `loads`, from ExpertLoads, the balance loss is
// 1/T sum_i loads_i sum_t p_ti: its counts are those of other sequences of the step, too. This call's counts are added
// to `statistics` and `counts`: backward runs exactly once per micro-batch, even if forward is recomputed. Counts and
// losses include dropped choices, so that an expert beyond its capacity still counts as overloaded.
struct RouteBwd {
  Tensor dlogits;        // [N, E] any float
  Tensor statistics;     // optional [E + 4] f64, accumulate: RouterStatistics
  Tensor counts = {};    // optional [E] f64, accumulate: tokens per expert
  Tensor dweights;       // [N, k] f32
  Tensor logits;         // [N, E] f32
  Tensor experts;        // [N, k] i32, from RouteFwd
  Tensor kept = {};      // optional [N, k] i32, from DropChoices: dropped choices have no gradient; dweights is ignored
  Tensor loads = {};     // optional [E] f32, from ExpertLoads
  Tensor scale;          // [1] f32: the loss scale
  int64_t sequence = 1;  // T; N is a multiple of it
  float inv_count = 1;
  float balance = 0, z = 0;
  RouterRule rule = {};
  static constexpr const char* kName = "route_bwd";
  auto fields() {
    return fields_of(Field::out("dlogits", dlogits), Field::inout("statistics", statistics),
                     Field::inout("counts", counts), Field::in("dweights", dweights), Field::in("logits", logits),
                     Field::in("experts", experts), Field::in("kept", kept), Field::in("loads", loads),
                     Field::in("scale", scale));
  }
  int64_t sequences() const { return logits.rows() / sequence; }
  void check() const {
    Expect e{kName};
    e.matrix("logits", logits).is("logits", logits, DType::f32, logits.shape).floating("dlogits", dlogits);
    e.is("dlogits", dlogits, dlogits.dtype, logits.shape).matrix("dweights", dweights);
    e.is("dweights", dweights, DType::f32, {logits.rows(), dweights.cols()})
        .is("experts", experts, DType::i32, dweights.shape)
        .is("scale", scale, DType::f32, {1})
        .that(sequence > 0 && logits.rows() % sequence == 0, "logits", "whole sequences");
    if (statistics) e.is("statistics", statistics, DType::f64, {RouterStatistics{logits.cols()}.size()});
    if (counts) e.is("counts", counts, DType::f64, {logits.cols()});
    if (kept) e.is("kept", kept, DType::i32, experts.shape);
    if (loads) e.is("loads", loads, DType::f32, {logits.cols()}).contiguous("loads", loads);
  }
  // Returns the factor that makes loads of the counts of a sequence, E / (k T); 1 if `loads` are given.
  float load_of_choice() const {
    return loads ? 1 : float(double(logits.cols()) / (double(dweights.cols()) * double(sequence)));
  }
  Cost cost() const { return {20.0 * double(logits.numel()), traffic(*this)}; }
};

// One step of the bias that balances experts without a loss [Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing",
// alg. 1]: b_e += rate sign(mean - c_e), where c_e is the number of a layer's tokens at expert e in the step, over all
// ranks, and mean its mean over experts. A skipped step does not change the bias. The counts are zeroed in any case.
struct StepRouterBias {
  Tensor bias;    // [L, E] f32
  Tensor counts;  // [L, E] f64
  Tensor state;   // StepState
  float rate = 0;
  static constexpr const char* kName = "step_router_bias";
  auto fields() {
    return fields_of(Field::inout("bias", bias), Field::inout("counts", counts), Field::in("state", state));
  }
  void check() const {
    Expect e{kName};
    e.matrix("bias", bias).is("bias", bias, DType::f32, bias.shape).contiguous("bias", bias);
    e.is("counts", counts, DType::f64, bias.shape).is("state", state, DType::u8, {int64_t(sizeof(StepState))});
  }
  Cost cost() const { return {3.0 * double(bias.numel()), traffic(*this)}; }
};

// Sorts the N k rows by expert, stably: rows of one expert are in token order. Rows of dropped choices come last, after
// the rows of all experts.
struct SortByExpert {
  Tensor offsets;  // [E + 1] i32: expert e has rows [offsets[e], offsets[e + 1])
  Tensor tokens;   // [R] i32: token of each row
  Tensor slots;    // [R] i32: token * k + choice of each row
  Tensor rows;     // [N, k] i32: row of each choice; -1 if it is dropped
  Tensor experts;  // [N, k] i32; E for a dropped choice; the experts of one token are distinct
  static constexpr const char* kName = "sort_by_expert";
  auto fields() {
    return fields_of(Field::out("offsets", offsets), Field::out("tokens", tokens), Field::out("slots", slots),
                     Field::out("rows", rows), Field::in("experts", experts));
  }
  int64_t expert_count() const { return offsets.numel() - 1; }
  void check() const {
    Expect e{kName};
    e.matrix("experts", experts).is("experts", experts, DType::i32, experts.shape);
    e.is("rows", rows, DType::i32, experts.shape).is("tokens", tokens, DType::i32, {experts.numel()});
    e.is("slots", slots, DType::i32, {experts.numel()}).is("offsets", offsets, DType::i32, {offsets.numel()});
    e.that(offsets.numel() >= 2, "offsets", "at least one expert");
  }
  Cost cost() const { return {double(experts.numel()), traffic(*this)}; }
};

// Send layout for expert parallelism, where each of `ranks` ranks has E / ranks experts. Each rank is sent a range of S
// / ranks slots: first its rows in the order of SortByExpert, then unused slots, which hold row 0 and are never read. S
// is static. Without `least` the slots always suffice, because each token chooses an expert at most once, and an expert
// is sent at most `per_expert` rows. With `least` there may be fewer slots. A rank's choices beyond its slots then
// overflow: they get no slot, and `counts` excludes them. An overflowing call raises `least`; this call and all later
// ones, until `least` is zeroed, make `loss` infinite, so that neither this step nor a later one updates the weights.
struct SendSlots {
  Tensor tokens;   // [S] i32: token of each slot
  Tensor choices;  // [S] i32: token * k + choice of each slot
  Tensor slots;    // [N, k] i32: slot of each choice; -1 if it is dropped
  Tensor counts;   // [E] i32: rows per expert
  Tensor offsets;  // [E + 1] i32, from SortByExpert
  Tensor sorted;   // [R] i32: SortByExpert::slots
  // Optional [1] f64: maximum over calls of the smallest factor of slots_per_rank() that gives slots to all rows of an
  // overflowing call; 0: no call overflowed.
  Tensor least = {};
  Tensor loss = {};  // optional [1] f64, with `least`
  int64_t ranks = 1;
  int64_t per_expert = 0;  // maximum number of rows of an expert; 0: one row per token
  static constexpr const char* kName = "send_slots";
  auto fields() {
    return fields_of(Field::out("tokens", tokens), Field::out("choices", choices), Field::out("slots", slots),
                     Field::out("counts", counts), Field::in("offsets", offsets), Field::in("sorted", sorted),
                     Field::inout("least", least), Field::inout("loss", loss));
  }
  int64_t experts() const { return counts.numel(); }
  int64_t capacity() const { return tokens.numel() / ranks; }  // slots per rank
  // Returns the maximum number of rows that one rank can receive, for any routing of `tokens` tokens.
  static int64_t most_rows(int64_t tokens, int64_t chosen, int64_t experts, int64_t ranks, int64_t per_expert) {
    const int64_t own = experts / ranks, any = tokens * std::min(chosen, own);
    return per_expert > 0 ? std::min(any, own * per_expert) : any;
  }
  // Returns the slots per rank: `factor` times those of balanced routing, at most `most`.
  static int64_t slots_per_rank(double factor, int64_t choices, int64_t ranks, int64_t most) {
    return std::min(most, int64_t(std::ceil(factor * double(choices) / double(ranks))));
  }
  double factor_for(int64_t rows_of_rank) const { return double(rows_of_rank) * double(ranks) / double(slots.numel()); }
  void check() const {
    Expect e{kName};
    e.matrix("slots", slots).is("slots", slots, DType::i32, slots.shape);
    e.is("sorted", sorted, DType::i32, {slots.numel()}).is("counts", counts, DType::i32, {experts()});
    e.is("offsets", offsets, DType::i32, {experts() + 1}).is("tokens", tokens, DType::i32, {tokens.numel()});
    e.is("choices", choices, DType::i32, {tokens.numel()});
    e.that(ranks >= 1 && experts() % ranks == 0 && tokens.numel() % ranks == 0, "counts",
           "the same number of experts on each rank");
    e.that(least || capacity() >= most_rows(slots.rows(), slots.cols(), experts(), ranks, per_expert), "tokens",
           "slots for every row that a rank can get");
    if (least) e.is("least", least, DType::f64, {1});
    if (loss) e.is("loss", loss, DType::f64, {1}).that(bool(least), "least", "given with loss");
  }
  Cost cost() const { return {double(tokens.numel()), traffic(*this)}; }
};

// Receive layout for expert parallelism: sorts the S slots received from `ranks` ranks by local expert; each rank's
// range of slots begins with its rows. Rows of one expert are in rank order. Unused slots come last.
struct ReceiveSlots {
  Tensor offsets;    // [E / ranks + 1] i32: expert e of this rank has rows [offsets[e], offsets[e + 1])
  Tensor slots;      // [S] i32: slot of each row
  Tensor rows;       // [S] i32: row of each slot
  Tensor counts;     // [ranks, E] i32: SendSlots::counts of each rank
  int64_t rank = 0;  // this rank
  static constexpr const char* kName = "receive_slots";
  auto fields() {
    return fields_of(Field::out("offsets", offsets), Field::out("slots", slots), Field::out("rows", rows),
                     Field::in("counts", counts));
  }
  int64_t ranks() const { return counts.rows(); }
  int64_t own() const { return counts.cols() / ranks(); }  // number of local experts
  int64_t capacity() const { return slots.numel() / ranks(); }
  void check() const {
    Expect e{kName};
    e.matrix("counts", counts).is("counts", counts, DType::i32, counts.shape);
    e.that(counts.cols() % ranks() == 0 && rank >= 0 && rank < ranks(), "counts",
           "the same number of experts on each rank");
    e.is("offsets", offsets, DType::i32, {own() + 1}).is("slots", slots, DType::i32, {slots.numel()});
    e.is("rows", rows, DType::i32, {slots.numel()})
        .that(slots.numel() % ranks() == 0, "slots", "the same number for each rank");
  }
  Cost cost() const { return {double(slots.numel()), traffic(*this)}; }
};

// y[t] = sum over j of x[rows[t, j]], in f32 and in the order of j, plus add[t] if present. Negative rows are skipped.
struct SumRows {
  Tensor y;         // [N, C]
  Tensor x;         // [R, C]
  Tensor rows;      // [N, k] i32
  Tensor add = {};  // [N, C], optional
  static constexpr const char* kName = "sum_rows";
  auto fields() {
    return fields_of(Field::out("y", y), Field::in("x", x), Field::in("rows", rows), Field::in("add", add));
  }
  void check() const {
    Expect e{kName};
    e.float_matrix("x", x).matrix("rows", rows);
    e.is("rows", rows, DType::i32, rows.shape).is("y", y, x.dtype, {rows.rows(), x.cols()});
    if (add) e.is("add", add, x.dtype, y.shape);
  }
  Cost cost() const { return {double(rows.numel() * x.cols()), traffic(*this)}; }
};

// y[r] = weights[slots[r]] silu(gate) up, gu = [gate | up].
struct WeightedSwigluFwd {
  Tensor y;        // [R, F]
  Tensor gu;       // [R, 2F]
  Tensor weights;  // [N, k] f32
  Tensor slots;    // [R] i32, distinct
  static constexpr const char* kName = "weighted_swiglu_fwd";
  auto fields() {
    return fields_of(Field::out("y", y), Field::in("gu", gu), Field::in("weights", weights), Field::in("slots", slots));
  }
  void check() const {
    Expect e{kName};
    e.floating("gu", gu).matrix("y", y).is("gu", gu, gu.dtype, {y.rows(), 2 * y.cols()}).is("y", y, gu.dtype, y.shape);
    e.is("weights", weights, DType::f32, weights.shape).is("slots", slots, DType::i32, {y.rows()});
    e.that(weights.numel() == y.rows(), "weights", "one for each row");
  }
  Cost cost() const { return {7.0 * double(y.numel()), traffic(*this)}; }
};

struct WeightedSwigluBwd {
  Tensor dgu;       // [R, 2F]; may be gu's memory
  Tensor dweights;  // [N, k] f32: at slots[r] the sum of dy silu(gate) up over row r
  Tensor y;         // [R, F]: recomputed output of WeightedSwigluFwd, bit-identical; may be dy's memory
  Tensor dy;        // [R, F]
  Tensor gu;        // [R, 2F]
  Tensor weights;   // [N, k] f32
  Tensor slots;     // [R] i32, distinct
  static constexpr const char* kName = "weighted_swiglu_bwd";
  auto fields() {
    return fields_of(Field::out("dgu", dgu), Field::out("dweights", dweights), Field::out("y", y), Field::in("dy", dy),
                     Field::in("gu", gu), Field::in("weights", weights), Field::in("slots", slots));
  }
  void check() const {
    Expect e{kName};
    e.floating("gu", gu).matrix("dy", dy).is("gu", gu, gu.dtype, {dy.rows(), 2 * dy.cols()});
    e.is("dy", dy, gu.dtype, dy.shape).is("y", y, gu.dtype, dy.shape).is("dgu", dgu, gu.dtype, gu.shape);
    e.is("weights", weights, DType::f32, weights.shape).is("dweights", dweights, DType::f32, weights.shape);
    e.is("slots", slots, DType::i32, {dy.rows()}).that(weights.numel() == dy.rows(), "weights", "one for each row");
  }
  Cost cost() const { return {18.0 * double(dy.numel()), traffic(*this)}; }
};

// The GEMMs of a linear layer whose rows are sorted by expert; expert e has a weight matrix W_e [O, I].
enum class Grouped : uint8_t {
  forward,         // d [R, O] = a [R, I] W_e^T
  input_gradient,  // d [R, I] = a [R, O] W_e
  weight_gradient  // d_e [O, I] += a_e^T b_e, with a [R, O] and b [R, I] restricted to the rows of expert e
};
struct GroupedGemm {
  Tensor d, a;
  Tensor b;        // [E O, I]: the weights of all experts; for weight_gradient [R, I]
  Tensor offsets;  // [E + 1] i32: from 0, non-decreasing, at most R; later rows are not read or written
  Grouped role = Grouped::forward;
  bool tf32 = false;  // as in Gemm
  // Optional, only for forward: d is [gate | up], and h the y of WeightedSwigluFwd, computed from the rounded d;
  // undefined in rows that belong to no expert. in_parts() below defines it.
  Tensor h = {};        // [R, O / 2]
  Tensor weights = {};  // [N, k] f32
  Tensor slots = {};    // [R] i32, distinct
  static constexpr const char* kName = "grouped_gemm";
  std::array<Field, 7> fields() {
    const bool adds = role == Grouped::weight_gradient;
    return {{{"d", adds ? Io::inout : Io::out, &d},
             {"a", Io::in, &a},
             {"b", Io::in, &b},
             {"offsets", Io::in, &offsets},
             {"h", Io::out, &h},
             {"weights", Io::in, &weights},
             {"slots", Io::in, &slots}}};
  }
  int64_t experts() const { return offsets.numel() - 1; }
  int64_t rows() const { return a.rows(); }  // R
  // The tensor with one [O, I] matrix per expert.
  const Tensor& matrices() const { return role == Grouped::weight_gradient ? d : b; }
  int64_t outputs() const { return matrices().rows() / experts(); }  // O
  int64_t inputs() const { return matrices().cols(); }               // I
  void check() const {
    Expect e{kName};
    e.floating("a", a).floating("b", b).floating("d", d).matrix("a", a).matrix("b", b).matrix("d", d);
    e.contiguous("a", a).contiguous("b", b).contiguous("d", d).is("offsets", offsets, DType::i32, {offsets.numel()});
    e.that(offsets.numel() >= 2, "offsets", "at least one expert")
        .that(matrices().rows() % experts() == 0, "b", "a matrix for each expert");
    const Shape in{rows(), inputs()}, out{rows(), outputs()};
    if (role == Grouped::weight_gradient)
      e.shape("a", a, out).shape("b", b, in).gradient("d", d, d.shape);
    else
      e.shape("a", a, role == Grouped::forward ? in : out).shape("d", d, role == Grouped::forward ? out : in);
    e.that(bool(h) == bool(weights) && bool(h) == bool(slots), "h", "weights and slots exactly with it");
    if (!h) return;
    e.that(role == Grouped::forward && outputs() % 2 == 0, "h", "the forward GEMM of an even number of outputs");
    e.is("h", h, d.dtype, {rows(), outputs() / 2}).is("weights", weights, DType::f32, weights.shape);
    e.is("slots", slots, DType::i32, {rows()}).matrix("weights", weights);
    e.that(weights.numel() == rows(), "weights", "one for each row");
  }
  WeightedSwigluFwd swiglu() const { return {.y = h, .gu = d, .weights = weights, .slots = slots}; }
  Cost cost() const { return {2.0 * double(rows()) * double(outputs()) * double(inputs()), traffic(*this)}; }
  // Returns the GEMM of one expert, whose rows are [begin, end).
  Gemm of_expert(int64_t expert, int64_t begin, int64_t end) const {
    const auto own = [&](const Tensor& t) { return t.slice(expert * outputs(), (expert + 1) * outputs()); };
    if (role == Grouped::weight_gradient)
      return {.d = own(d),
              .a = a.slice(begin, end),
              .b = b.slice(begin, end),
              .ta = true,
              .accumulate = true,
              .tf32 = tf32};
    return {
        .d = d.slice(begin, end), .a = a.slice(begin, end), .b = own(b), .tb = role == Grouped::forward, .tf32 = tf32};
  }
};

// Defines GroupedGemm with h: run() gets the op without h, then WeightedSwigluFwd.
template <class Run>
void in_parts(const GroupedGemm& op, Run&& run) {
  GroupedGemm plain = op;
  plain.h = plain.weights = plain.slots = {};
  run(plain);
  if (op.h) run(op.swiglu());
}

}  // namespace athanor
