// Mixture of experts: the router, rows in the order of their experts, and what is computed of such rows. Shapes are
// static: N tokens with k experts each make R = N k rows, however they are divided among the E experts; `offsets` says
// where each expert's rows begin, in device memory.
#pragma once
#include <utility>

#include "base/choices.h"
#include "ops/gemm.h"
#include "ops/op.h"
#include "ops/optimizer.h"

namespace athanor {

// How logits become choices and weights. Scores are the softmax over all E experts [Shazeer et al. 2017, sec. 2.1], or
// the sigmoid of each logit [DeepSeek-AI 2024, "DeepSeek-V3", eq. 15]; weights are the scores of the chosen experts,
// with `normalize` divided by their sum + kSumFloor, times `factor`. With groups > 1 the experts are that many equal
// groups of neighbours, and those outside the chosen_groups best ones cannot be chosen; a group's value is the sum of
// the two largest selection values in it.
struct RouterRule {
  RouterScore score = RouterScore::softmax;
  bool normalize = false;
  int64_t groups = 1, chosen_groups = 1;
  float factor = 1;
  static constexpr float kSumFloor = 1e-20f;  // as transformers has it: scores may all underflow
  static constexpr int64_t kMaxGroups = 256;
};

// The k experts of each token with the largest selection values, in falling order; of equal ones the expert with the
// lower number comes first. The selection value is the logit, or where there are groups, a bias or sigmoids the score
// plus the bias. Weights never contain the bias.
struct RouteFwd {
  Tensor weights;    // [N, k] f32
  Tensor experts;    // [N, k] i32
  Tensor logits;     // [N, E] f32
  Tensor bias = {};  // [E] f32, optional
  RouterRule rule = {};
  static constexpr const char* kName = "route_fwd";
  std::array<Field, 4> fields() {
    return {{{"weights", Io::out, &weights},
             {"experts", Io::out, &experts},
             {"logits", Io::in, &logits},
             {"bias", Io::in, &bias}}};
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

// What RouteBwd counts of a layer, in f64: tokens of each expert [E], then sums over tokens.
struct RouterStatistics {
  static constexpr int64_t kSums = 3;
  int64_t experts;
  int64_t size() const { return experts + kSums; }
  int64_t entropy() const { return experts; }      // of the probabilities, nats
  int64_t balance() const { return experts + 1; }  // RouteBwd's balance loss, 1 for each token where all are balanced
  int64_t squares() const { return experts + 2; }  // of log(sum(exp(logits)))
};

// Gradient of the logits, from that of the weights and from two losses of the router itself. In a sequence of T tokens,
// with c_i of its T k rows at expert i and p_ti the score of expert i for token t, divided by the sum of all its
// scores,
//   balance loss = E / (k T^2) sum_i c_i sum_t p_ti   [Fedus et al. 2021, eq. 4, for k experts]
//   z-loss = 1/T sum_t log(sum_i exp(logit_ti))^2     [Zoph et al. 2022, eq. 5]
// Both count as `balance` and `z` times T losses of tokens, so gradients are multiplied with scale * inv_count. Counts
// and the bias of RouteFwd have no gradient. Every sequence has its own, so that micro-batches and ranks do not matter.
// `statistics` and `counts` gain what this call counts: backward runs once per micro-batch, whatever of forward is
// computed again.
struct RouteBwd {
  Tensor dlogits;        // [N, E] any float
  Tensor statistics;     // [E + 3] f64, accumulate: RouterStatistics; optional
  Tensor counts = {};    // [E] f64, accumulate: tokens of each expert; optional
  Tensor dweights;       // [N, k] f32
  Tensor logits;         // [N, E] f32
  Tensor experts;        // [N, k] i32, of RouteFwd
  Tensor scale;          // [1] f32: the loss scale
  int64_t sequence = 1;  // T; N is a multiple
  float inv_count = 1;
  float balance = 0, z = 0;
  RouterRule rule = {};
  static constexpr const char* kName = "route_bwd";
  std::array<Field, 7> fields() {
    return {{{"dlogits", Io::out, &dlogits},
             {"statistics", Io::inout, &statistics},
             {"counts", Io::inout, &counts},
             {"dweights", Io::in, &dweights},
             {"logits", Io::in, &logits},
             {"experts", Io::in, &experts},
             {"scale", Io::in, &scale}}};
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
  }
  Cost cost() const { return {20.0 * double(logits.numel()), traffic(*this)}; }
};

// One step of the bias that balances experts without a loss [Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing",
// alg. 1]: b_e += rate sign(mean - c_e), with c_e of a layer's tokens at expert e in the step, on all ranks, and their
// mean over the experts. A skipped step changes no bias. Either way the counts are 0 afterwards.
struct StepRouterBias {
  Tensor bias;    // [L, E] f32
  Tensor counts;  // [L, E] f64
  Tensor state;   // StepState
  float rate = 0;
  static constexpr const char* kName = "step_router_bias";
  std::array<Field, 3> fields() {
    return {{{"bias", Io::inout, &bias}, {"counts", Io::inout, &counts}, {"state", Io::in, &state}}};
  }
  void check() const {
    Expect e{kName};
    e.matrix("bias", bias).is("bias", bias, DType::f32, bias.shape).contiguous("bias", bias);
    e.is("counts", counts, DType::f64, bias.shape).is("state", state, DType::u8, {int64_t(sizeof(StepState))});
  }
  Cost cost() const { return {3.0 * double(bias.numel()), traffic(*this)}; }
};

// The N k rows in the order of their experts, those of one expert in the order of the tokens.
struct SortByExpert {
  Tensor offsets;  // [E + 1] i32: expert e has rows [offsets[e], offsets[e + 1])
  Tensor tokens;   // [R] i32: of each row
  Tensor slots;    // [R] i32: token * k + choice of each row
  Tensor rows;     // [N, k] i32: the row of each choice
  Tensor experts;  // [N, k] i32; with unequal values in each row
  static constexpr const char* kName = "sort_by_expert";
  std::array<Field, 5> fields() {
    return {{{"offsets", Io::out, &offsets},
             {"tokens", Io::out, &tokens},
             {"slots", Io::out, &slots},
             {"rows", Io::out, &rows},
             {"experts", Io::in, &experts}}};
  }
  int64_t expert_count() const { return offsets.numel() - 1; }
  void check() const {
    Expect e{kName};
    e.matrix("experts", experts).is("experts", experts, DType::i32, experts.shape);
    e.is("rows", rows, DType::i32, experts.shape).is("tokens", tokens, DType::i32, {experts.numel()});
    e.is("slots", slots, DType::i32, {experts.numel()}).is("offsets", offsets, DType::i32, {offsets.numel()});
    e.that(offsets.numel() >= 2, "offsets", "those of one expert or more");
  }
  Cost cost() const { return {double(experts.numel()), traffic(*this)}; }
};

// Where the rows of SortByExpert are sent if each of `ranks` ranks has E / ranks of the experts: every rank gets a
// range of S / ranks slots, of which the first ones are its rows, in their order. S is static: what is behind a rank's
// rows is row 0 and is never read. No rank is sent more rows than it has slots: each token chooses an expert once.
struct SendSlots {
  Tensor tokens;   // [S] i32: the token of each slot
  Tensor choices;  // [S] i32: token * k + choice of each slot
  Tensor slots;    // [N, k] i32: the slot of each choice
  Tensor counts;   // [E] i32: rows of each expert
  Tensor offsets;  // [E + 1] i32, of SortByExpert
  Tensor sorted;   // [R] i32: its `slots`
  int64_t ranks = 1;
  static constexpr const char* kName = "send_slots";
  std::array<Field, 6> fields() {
    return {{{"tokens", Io::out, &tokens},
             {"choices", Io::out, &choices},
             {"slots", Io::out, &slots},
             {"counts", Io::out, &counts},
             {"offsets", Io::in, &offsets},
             {"sorted", Io::in, &sorted}}};
  }
  int64_t experts() const { return counts.numel(); }
  int64_t capacity() const { return tokens.numel() / ranks; }  // slots of a rank
  // Enough for any routing of N tokens.
  static int64_t most_rows(int64_t tokens, int64_t chosen, int64_t experts, int64_t ranks) {
    return tokens * std::min(chosen, experts / ranks);
  }
  void check() const {
    Expect e{kName};
    e.matrix("slots", slots).is("slots", slots, DType::i32, slots.shape);
    e.is("sorted", sorted, DType::i32, {slots.numel()}).is("counts", counts, DType::i32, {experts()});
    e.is("offsets", offsets, DType::i32, {experts() + 1}).is("tokens", tokens, DType::i32, {tokens.numel()});
    e.is("choices", choices, DType::i32, {tokens.numel()});
    e.that(ranks >= 1 && experts() % ranks == 0 && tokens.numel() % ranks == 0, "counts",
           "as many experts on each rank");
    e.that(capacity() >= most_rows(slots.rows(), slots.cols(), experts(), ranks), "tokens",
           "slots for every row that a rank can get");
  }
  Cost cost() const { return {double(tokens.numel()), traffic(*this)}; }
};

// The order of the rows that a rank has received from `ranks` ranks, S slots in their order, of which the first ones of
// each range are rows, sorted by expert: rows of this rank's experts one after the other, of an expert in the order of
// the ranks; behind them the unused slots.
struct ReceiveSlots {
  Tensor offsets;    // [E / ranks + 1] i32: expert e of this rank has rows [offsets[e], offsets[e + 1])
  Tensor slots;      // [S] i32: the slot of each row
  Tensor rows;       // [S] i32: the row of each slot
  Tensor counts;     // [ranks, E] i32: SendSlots::counts of all ranks
  int64_t rank = 0;  // this one
  static constexpr const char* kName = "receive_slots";
  std::array<Field, 4> fields() {
    return {{{"offsets", Io::out, &offsets},
             {"slots", Io::out, &slots},
             {"rows", Io::out, &rows},
             {"counts", Io::in, &counts}}};
  }
  int64_t ranks() const { return counts.rows(); }
  int64_t own() const { return counts.cols() / ranks(); }  // experts
  int64_t capacity() const { return slots.numel() / ranks(); }
  void check() const {
    Expect e{kName};
    e.matrix("counts", counts).is("counts", counts, DType::i32, counts.shape);
    e.that(counts.cols() % ranks() == 0 && rank >= 0 && rank < ranks(), "counts", "as many experts on each rank");
    e.is("offsets", offsets, DType::i32, {own() + 1}).is("slots", slots, DType::i32, {slots.numel()});
    e.is("rows", rows, DType::i32, {slots.numel()}).that(slots.numel() % ranks() == 0, "slots", "as many of each rank");
  }
  Cost cost() const { return {double(slots.numel()), traffic(*this)}; }
};

// y[t] = sum over j of x[rows[t, j]], in f32 and in the order of j, plus add[t].
struct SumRows {
  Tensor y;         // [N, C]
  Tensor x;         // [R, C]
  Tensor rows;      // [N, k] i32
  Tensor add = {};  // [N, C], optional
  static constexpr const char* kName = "sum_rows";
  std::array<Field, 4> fields() {
    return {{{"y", Io::out, &y}, {"x", Io::in, &x}, {"rows", Io::in, &rows}, {"add", Io::in, &add}}};
  }
  void check() const {
    Expect e{kName};
    e.floating("x", x).matrix("x", x).contiguous("x", x).matrix("rows", rows);
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
  std::array<Field, 4> fields() {
    return {{{"y", Io::out, &y}, {"gu", Io::in, &gu}, {"weights", Io::in, &weights}, {"slots", Io::in, &slots}}};
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
  Tensor y;         // [R, F]: that of WeightedSwigluFwd again, to the bit; may be dy's memory
  Tensor dy;        // [R, F]
  Tensor gu;        // [R, 2F]
  Tensor weights;   // [N, k] f32
  Tensor slots;     // [R] i32, distinct
  static constexpr const char* kName = "weighted_swiglu_bwd";
  std::array<Field, 7> fields() {
    return {{{"dgu", Io::out, &dgu},
             {"dweights", Io::out, &dweights},
             {"y", Io::out, &y},
             {"dy", Io::in, &dy},
             {"gu", Io::in, &gu},
             {"weights", Io::in, &weights},
             {"slots", Io::in, &slots}}};
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

// The products of a linear layer whose rows belong to experts, each with a weight matrix W_e [O, I] of its own.
enum class Grouped : uint8_t {
  forward,         // d [R, O] = a [R, I] W_e^T
  input_gradient,  // d [R, I] = a [R, O] W_e
  weight_gradient  // d_e [O, I] += a_e^T b_e of a [R, O] and b [R, I], over the rows of e
};
struct GroupedGemm {
  Tensor d, a;
  Tensor b;        // [E O, I]: the matrices of all experts, or [R, I]
  Tensor offsets;  // [E + 1] i32, from 0, not falling, at most R; rows behind the last one are not read or written
  Grouped product = Grouped::forward;
  bool tf32 = false;  // as Gemm has it
  static constexpr const char* kName = "grouped_gemm";
  std::array<Field, 4> fields() {
    const bool adds = product == Grouped::weight_gradient;
    return {
        {{"d", adds ? Io::inout : Io::out, &d}, {"a", Io::in, &a}, {"b", Io::in, &b}, {"offsets", Io::in, &offsets}}};
  }
  int64_t experts() const { return offsets.numel() - 1; }
  int64_t rows() const { return a.rows(); }  // R
  // The dimension of a product that all rows share, and the other one.
  const Tensor& matrices() const { return product == Grouped::weight_gradient ? d : b; }
  int64_t outputs() const { return matrices().rows() / experts(); }  // O
  int64_t inputs() const { return matrices().cols(); }               // I
  void check() const {
    Expect e{kName};
    e.floating("a", a).floating("b", b).floating("d", d).matrix("a", a).matrix("b", b).matrix("d", d);
    e.contiguous("a", a).contiguous("b", b).contiguous("d", d).is("offsets", offsets, DType::i32, {offsets.numel()});
    e.that(offsets.numel() >= 2, "offsets", "those of one expert or more")
        .that(matrices().rows() % experts() == 0, "b", "a matrix for each expert");
    const Shape in{rows(), inputs()}, out{rows(), outputs()};
    if (product == Grouped::weight_gradient)
      e.shape("a", a, out).shape("b", b, in).gradient("d", d, d.shape);
    else
      e.shape("a", a, product == Grouped::forward ? in : out).shape("d", d, product == Grouped::forward ? out : in);
  }
  Cost cost() const { return {2.0 * double(rows()) * double(outputs()) * double(inputs()), traffic(*this)}; }
  // The product of one expert, which has these rows.
  Gemm of_expert(int64_t expert, int64_t begin, int64_t end) const {
    const auto own = [&](const Tensor& t) { return t.slice(expert * outputs(), (expert + 1) * outputs()); };
    if (product == Grouped::weight_gradient)
      return {.d = own(d),
              .a = a.slice(begin, end),
              .b = b.slice(begin, end),
              .ta = true,
              .accumulate = true,
              .tf32 = tf32};
    return {.d = d.slice(begin, end),
            .a = a.slice(begin, end),
            .b = own(b),
            .tb = product == Grouped::forward,
            .tf32 = tf32};
  }
};

}  // namespace athanor
