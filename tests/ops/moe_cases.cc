// Cases of mixtures of experts: ties, experts without rows and with all of them, one token, sequences, and gradients.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

struct Sizes {
  int64_t tokens, experts, chosen;
};
constexpr Sizes kSizes[] = {{1, 1, 1}, {1, 5, 2}, {6, 4, 4}, {33, 8, 2}, {70, 17, 3}, {130, 64, 8}};

// The experts of each slot: all choices of a token differ. skewed: the first experts have nearly all rows.
double expert_of(const Sizes& s, bool skewed, int64_t slot) {
  const int64_t token = slot / s.chosen, choice = slot % s.chosen;
  const int64_t first = skewed ? 0 : int64_t(random_bits(kCaseSeed, 5, uint64_t(token)) % uint64_t(s.experts));
  return double((first + choice) % s.experts);
}
Init experts_of(const Sizes& s, bool skewed) {
  return [=](uint64_t, int64_t i) { return expert_of(s, skewed, i); };
}

Init offsets_of(const Sizes& s, bool skewed) {
  std::vector<double> rows(size_t(s.experts) + 1);
  for (int64_t slot = 0; slot < s.tokens * s.chosen; ++slot) ++rows[size_t(expert_of(s, skewed, slot)) + 1];
  std::partial_sum(rows.begin(), rows.end(), rows.begin());
  return listed(rows);
}

// Numbers below n in another order; 7 and 11 divide no size of these cases.
Init permuted(int64_t n) {
  const int64_t step = n % 7 ? 7 : 11;
  return [=](uint64_t, int64_t i) { return double((i * step + 3) % n); };
}

std::string name_of(const Sizes& s) { return cat(s.tokens, " tokens, ", s.chosen, " of ", s.experts); }

RouteFwd route(const Sizes& s, bool normalize) {
  return {.weights = tensor(DType::f32, {s.tokens, s.chosen}),
          .experts = tensor(DType::i32, {s.tokens, s.chosen}),
          .logits = tensor(DType::f32, {s.tokens, s.experts}),
          .rule = {.normalize = normalize}};
}

RouteBwd route_gradient(const Sizes& s, bool normalize, DType dtype) {
  return {.dlogits = tensor(dtype, {s.tokens, s.experts}),
          .statistics = tensor(DType::f64, {RouterStatistics{s.experts}.size()}),
          .dweights = tensor(DType::f32, {s.tokens, s.chosen}),
          .logits = tensor(DType::f32, {s.tokens, s.experts}),
          .experts = tensor(DType::i32, {s.tokens, s.chosen}),
          .scale = tensor(DType::f32, {1}),
          .sequence = s.tokens % 3 == 0 ? s.tokens / 3 : s.tokens,
          .inv_count = 0.25f,
          .balance = 0.3f,
          .z = 0.2f,
          .rule = {.normalize = normalize}};
}

void router(Examiner& examine) {
  const Init ties = listed({1, 0.5, 1, 1, -2, 0.5, 3, 3, -30});
  for (const Sizes& s : kSizes)
    for (const bool normalize : {false, true}) {
      const std::string name = cat(name_of(s), normalize ? " normalized" : "");
      examine(OpCase<RouteFwd>{name, route(s, normalize)});
      examine(OpCase<RouteFwd>{cat(name, " ties"), route(s, normalize), {{"logits", ties}}});
      for (const DType dtype : kFloats)
        for (const bool skewed : {false, true})
          examine(OpCase<RouteBwd>{cat(name, " ", dtype, skewed ? " skewed" : ""),
                                   route_gradient(s, normalize, dtype),
                                   {{"experts", experts_of(s, skewed)}, {"scale", constant(0.5)}}});
      RouteBwd uncounted = route_gradient(s, normalize, DType::f32);
      uncounted.statistics = {};
      uncounted.balance = uncounted.z = 0;
      examine(OpCase<RouteBwd>{cat(name, " alone"), uncounted, {{"experts", experts_of(s, false)}}});
    }
}

// E for the choices that a capacity might drop: every third, and all of some tokens.
bool is_dropped(const Sizes& s, int64_t slot) { return slot % 3 == 1 || slot / s.chosen % 7 == 4; }
Init kept_of(const Sizes& s, bool skewed) {
  return [=](uint64_t, int64_t i) { return is_dropped(s, i) ? double(s.experts) : expert_of(s, skewed, i); };
}

// Capacities of one choice, of several, of exactly as many as an expert has, and of all; random and equal weights, and
// NaN.
void capacities(Examiner& examine) {
  const Init ties = listed({0.5, 0.25, 0.5, 0.5, 0.75, 0.25, 0.75, 0.5, -0.0, 0, 1});
  const Init some_nan = [](uint64_t, int64_t i) { return i % 4 == 1 ? std::nan("") : double(i * 5 % 17); };
  for (const Sizes& s : kSizes)
    for (const bool skewed : {false, true})
      for (const int64_t capacity : {int64_t{1}, s.tokens / 5 + 1, s.tokens / 3 + 1, s.tokens}) {
        DropChoices op{.kept = tensor(DType::i32, {s.tokens, s.chosen}),
                       .experts = tensor(DType::i32, {s.tokens, s.chosen}),
                       .weights = tensor(DType::f32, {s.tokens, s.chosen}),
                       .expert_count = s.experts,
                       .sequence = s.tokens % 3 == 0 ? s.tokens / 3 : s.tokens,
                       .capacity = capacity};
        const std::string name = cat(name_of(s), " at most ", capacity, skewed ? " skewed" : "");
        const Init experts = experts_of(s, skewed);
        examine(OpCase<DropChoices>{name, op, {{"experts", experts}}, true});
        examine(OpCase<DropChoices>{cat(name, " ties"), op, {{"experts", experts}, {"weights", ties}}, true});
        examine(OpCase<DropChoices>{cat(name, " NaN"), op, {{"experts", experts}, {"weights", some_nan}}, true});
      }
  for (const Sizes& s : kSizes)
    for (const RouterRule& rule : {RouterRule{}, RouterRule{.normalize = true},
                                   RouterRule{.score = RouterScore::sigmoid, .normalize = true, .factor = 2}}) {
      RouteBwd bwd = route_gradient(s, false, DType::f32);
      bwd.rule = rule;
      bwd.kept = bwd.experts;
      // The op must not read dweights of dropped choices, which are never computed.
      const Init dweights = [=](uint64_t stream, int64_t i) {
        return is_dropped(s, i) ? std::nan("") : normal()(stream, i);
      };
      examine(
          OpCase<RouteBwd>{cat(name_of(s), " dropped, ", rule.normalize, rule.factor),
                           bwd,
                           {{"experts", experts_of(s, false)}, {"kept", kept_of(s, false)}, {"dweights", dweights}}});
    }
}

// Routing of DeepSeek-V3, completely and in parts. Sigmoids are evenly spaced, so that rounding changes no choice; a
// bias reverses their order.
struct Ruled {
  const char* name;
  RouterRule rule;
  bool bias;
};
constexpr RouterScore kSigmoid = RouterScore::sigmoid;
constexpr Ruled kRules[] = {
    {"sigmoids", {.score = kSigmoid}, false},
    {"sigmoids, bias", {.score = kSigmoid, .normalize = true, .factor = 2.5f}, true},
    {"sigmoids, groups", {.score = kSigmoid, .normalize = true, .groups = 4, .chosen_groups = 2}, false},
    {"all", {.score = kSigmoid, .normalize = true, .groups = 4, .chosen_groups = 3, .factor = 1.5f}, true},
    {"softmax, bias", {.normalize = true, .factor = 0.5f}, true},
    {"softmax, groups", {.groups = 2, .chosen_groups = 1}, true},
    {"softmax, groups by the largest", {.groups = 4, .chosen_groups = 2, .by_largest = true}, false}};
constexpr Sizes kGrouped[] = {{1, 8, 2}, {33, 8, 3}, {70, 64, 8}};

void ruled_router(Examiner& examine) {
  for (const Sizes& s : kGrouped)
    for (const Ruled& ruled : kRules) {
      const std::string name = cat(name_of(s), ", ", ruled.name);
      RouteFwd fwd = route(s, false);
      fwd.rule = ruled.rule;
      if (ruled.bias) fwd.bias = tensor(DType::f32, {s.experts});
      const auto logit = [e = s.experts](int64_t i) { return 3 * double((i * 37 + i / e * 5) % e) / double(e) - 1.5; };
      const Values values{{"logits", [=](uint64_t, int64_t i) { return logit(i); }},
                          {"bias", [e = s.experts](uint64_t, int64_t i) { return 0.011 * double(i * 3 % e) - 0.2; }}};
      examine(OpCase<RouteFwd>{name, fwd, values});
      examine(OpCase<RouteFwd>{cat(name, " ties"), fwd, {{"logits", constant(0.5)}, {"bias", constant(-0.7)}}});
      for (const DType dtype : kFloats) {
        RouteBwd bwd = route_gradient(s, false, dtype);
        bwd.rule = ruled.rule;
        bwd.counts = tensor(DType::f64, {s.experts});
        examine(OpCase<RouteBwd>{cat(name, " ", dtype), bwd, {{"experts", experts_of(s, true)}}});
        bwd.statistics = {};
        if (dtype != DType::f32) continue;
        examine(OpCase<RouteBwd>{cat(name, " counts alone"), bwd, {{"experts", experts_of(s, false)}}});
        bwd.statistics = tensor(DType::f64, {RouterStatistics{s.experts}.size()});
        bwd.loads = tensor(DType::f32, {s.experts});
        examine(OpCase<RouteBwd>{cat(name, " loads"), bwd, {{"experts", experts_of(s, true)}}});
      }
    }
}

void bias_steps(Examiner& examine) {
  for (const auto& [layers, experts] : {std::pair{1, 1}, {3, 7}, {2, 300}})
    for (const bool skip : {false, true}) {
      OpCase<StepRouterBias> c{cat(layers, " x ", experts, skip ? " skipped" : ""),
                               {.bias = tensor(DType::f32, {layers, experts}),
                                .counts = tensor(DType::f64, {layers, experts}),
                                .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                                .rate = 0.001f},
                               {{"counts", [](uint64_t, int64_t i) { return double(i * 5 % 13); }}}};
      StepState state = running_state();
      state.skip = skip;
      c.values["state"] = bytes_of(state);
      examine(c);
    }
}

void loads(Examiner& examine) {
  for (const Sizes& s : kSizes) {
    const Tensor counts = tensor(DType::f64, {s.experts});
    examine(OpCase<CountExperts>{name_of(s),
                                 {.counts = counts, .experts = tensor(DType::i32, {s.tokens, s.chosen})},
                                 {{"experts", experts_of(s, true)}}});
    const Init whole = [](uint64_t, int64_t i) { return double(i * 5 % 13 + 1); };
    examine(OpCase<ExpertLoads>{name_of(s),
                                {.loads = tensor(DType::f32, {s.experts}), .running = counts, .counts = counts},
                                {{"counts", whole}, {"running", whole}}});
  }
}

// Far from ties, so that moved logits choose the same experts. The losses of the router are of the logits alone.
void router_gradients(Examiner& examine) {
  constexpr Sizes kSmall{6, 5, 2};
  const Init logits = [](uint64_t, int64_t i) { return 0.7 * double((i * 7 + i / 5 * 3) % 5) - 1; };
  for (const RouterRule rule : {RouterRule{}, RouterRule{.normalize = true}, RouterRule{.score = kSigmoid},
                                RouterRule{.score = kSigmoid, .normalize = true, .factor = 1.5f}}) {
    OpCase<RouteFwd> fwd{"gradient", route(kSmall, false), {{"logits", logits}}};
    fwd.op.rule = rule;
    std::vector<double> chosen;
    for (int64_t t = 0; t < kSmall.tokens; ++t) {
      std::vector<double> order(size_t(kSmall.experts));
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, std::greater{},
                               [&](double e) { return logits(0, t * kSmall.experts + int64_t(e)); });
      chosen.insert(chosen.end(), order.begin(), order.begin() + kSmall.chosen);
    }
    RouteBwd alone = route_gradient(kSmall, false, DType::f32);
    alone.rule = rule;
    alone.balance = alone.z = 0, alone.inv_count = 1;
    examine.gradient(fwd, OpCase<RouteBwd>{"gradient", alone, {{"experts", listed(chosen)}, {"scale", constant(1)}}},
                     {{"weights", "dweights"}}, {{"logits", "dlogits"}});
    // The loss does not depend on the weights of dropped choices; what is divided by a sum depends on their scores.
    std::vector<double> kept = chosen;
    for (size_t i = 0; i < kept.size(); ++i)
      if (is_dropped(kSmall, int64_t(i))) kept[i] = double(kSmall.experts);
    OpCase<RouteBwd> dropping{"dropped",
                              alone,
                              {{"logits", logits},
                               {"experts", listed(chosen)},
                               {"kept", listed(kept)},
                               {"scale", constant(1)},
                               {"dweights", normal()}}};
    dropping.op.kept = alone.experts;
    examine.gradient_of(
        dropping, "dlogits",
        [&](const std::vector<double>& x) {
          OpCase<RouteFwd> moved = fwd;
          moved.values["logits"] = listed(x);
          const auto results = examine.reference_results(moved);
          const std::vector<double> weights = decoded(DType::f32, result(results, "weights").after);
          double sum = 0;
          for (size_t i = 0; i < weights.size(); ++i)
            if (!is_dropped(kSmall, int64_t(i))) sum += weights[i] * normal()(stream_of("dweights"), int64_t(i));
          return sum;
        },
        "logits");
    RouteBwd losses = route_gradient(kSmall, false, DType::f32);
    losses.rule = rule;
    OpCase<RouteBwd> bwd{"losses",
                         losses,
                         {{"logits", logits},
                          {"experts", listed(chosen)},
                          {"loads", listed({0.5, 2, 0, 1.5, 1})},
                          {"scale", constant(2)},
                          {"dweights", constant(0)}}};
    const auto loss = [&](const std::vector<double>& x) {
      OpCase<RouteBwd> moved = bwd;
      moved.values["logits"] = listed(x);
      const auto results = examine.reference_results(moved);
      const Result& r = result(results, "statistics");
      std::vector<double> before(r.before.size() / sizeof(double)), after(before.size());
      std::memcpy(before.data(), r.before.data(), r.before.size());
      std::memcpy(after.data(), r.after.data(), r.after.size());
      const RouterStatistics at{kSmall.experts};
      const auto gained = [&](int64_t i) { return after[size_t(i)] - before[size_t(i)]; };
      return 2 * double(losses.inv_count) *
             (double(losses.balance) * gained(at.balance()) + double(losses.z) * gained(at.squares()));
    };
    examine.gradient_of(bwd, "dlogits", loss, "logits");
    bwd.op.loads = tensor(DType::f32, {kSmall.experts});
    examine.gradient_of(bwd, "dlogits", loss, "logits");
  }
}

void rows_of_experts(Examiner& examine) {
  for (const Sizes& s : kSizes)
    for (const bool skewed : {false, true}) {
      const int64_t rows = s.tokens * s.chosen;
      const std::string name = cat(name_of(s), skewed ? " skewed" : "");
      const SortByExpert sort{.offsets = tensor(DType::i32, {s.experts + 1}),
                              .tokens = tensor(DType::i32, {rows}),
                              .slots = tensor(DType::i32, {rows}),
                              .rows = tensor(DType::i32, {s.tokens, s.chosen}),
                              .experts = tensor(DType::i32, {s.tokens, s.chosen})};
      examine(OpCase<SortByExpert>{name, sort, {{"experts", experts_of(s, skewed)}}, true});
      examine(OpCase<SortByExpert>{cat(name, " dropped"), sort, {{"experts", kept_of(s, skewed)}}, true});
      for (const DType dt : kFloats)
        for (const int64_t cols : {1, 17, 80}) {
          SumRows sum{.y = tensor(dt, {s.tokens, cols}),
                      .x = tensor(dt, {rows, cols}),
                      .rows = tensor(DType::i32, {s.tokens, s.chosen})};
          const Init left_out = [=, all = permuted(rows)](uint64_t stream, int64_t i) {
            return skewed && is_dropped(s, i) ? -1 : all(stream, i);
          };
          const Values values{{"rows", left_out}};
          if (!skewed) examine(OpCase<SumRows>{cat(name, " ", cols, " ", dt), sum, values});
          sum.add = sum.y;
          if (skewed) examine(OpCase<SumRows>{cat(name, " ", cols, " ", dt, " add"), sum, values});
        }
    }
}

// Every expert keeps at most `each` rows, so that fewer slots suffice than there are choices.
void send_kept_rows(Examiner& examine, const Sizes& s, int64_t ranks, bool skewed) {
  const int64_t rows = s.tokens * s.chosen;
  for (const int64_t each : {int64_t{1}, s.tokens / 3 + 1}) {
    std::vector<double> offsets(size_t(s.experts) + 1);
    for (int64_t slot = 0; slot < rows; ++slot) ++offsets[size_t(expert_of(s, skewed, slot)) + 1];
    for (double& count : offsets) count = std::min(count, double(each));
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    const int64_t slots = ranks * SendSlots::most_rows(s.tokens, s.chosen, s.experts, ranks, each);
    examine(
        OpCase<SendSlots>{cat(name_of(s), " on ", ranks, " ranks, each expert at most ", each, skewed ? " skewed" : ""),
                          {.tokens = tensor(DType::i32, {slots}),
                           .choices = tensor(DType::i32, {slots}),
                           .slots = tensor(DType::i32, {s.tokens, s.chosen}),
                           .counts = tensor(DType::i32, {s.experts}),
                           .offsets = tensor(DType::i32, {s.experts + 1}),
                           .sorted = tensor(DType::i32, {rows}),
                           .ranks = ranks,
                           .per_expert = each},
                          {{"offsets", listed(offsets)}, {"sorted", permuted(rows)}},
                          true});
  }
}

// Fewer slots than rows: the last rows of a rank have none. Also after an earlier overflow, and without one.
void send_beyond_slots(Examiner& examine, const Sizes& s, int64_t ranks, bool skewed) {
  const int64_t rows = s.tokens * s.chosen, most = SendSlots::most_rows(s.tokens, s.chosen, s.experts, ranks, 0);
  for (const double factor : {1.0, 1.3, 9.0})
    for (const double earlier : {0.0, 1.5}) {
      const int64_t slots = ranks * SendSlots::slots_per_rank(factor, rows, ranks, most);
      SendSlots send{.tokens = tensor(DType::i32, {slots}),
                     .choices = tensor(DType::i32, {slots}),
                     .slots = tensor(DType::i32, {s.tokens, s.chosen}),
                     .counts = tensor(DType::i32, {s.experts}),
                     .offsets = tensor(DType::i32, {s.experts + 1}),
                     .sorted = tensor(DType::i32, {rows}),
                     .least = tensor(DType::f64, {1}),
                     .loss = tensor(DType::f64, {1}),
                     .ranks = ranks};
      const std::string name =
          cat(name_of(s), " on ", ranks, " ranks", skewed ? " skewed" : "", ", factor ", factor, " after ", earlier);
      const Values values{{"offsets", offsets_of(s, skewed)}, {"sorted", permuted(rows)}, {"least", listed({earlier})}};
      examine(OpCase<SendSlots>{name, send, values, true});
      send.loss = {};
      if (earlier == 0) examine(OpCase<SendSlots>{name + " of an evaluation", send, values, true});
    }
}

// Rows sent to other ranks, and the order of received rows.
void exchanges(Examiner& examine) {
  struct Shape {
    Sizes s;
    int64_t ranks;
  };
  for (const auto& [s, ranks] : {Shape{{1, 2, 1}, 2}, Shape{{6, 4, 4}, 2}, Shape{{33, 8, 2}, 4}, Shape{{70, 6, 3}, 3}})
    for (const bool skewed : {false, true}) {
      const int64_t most = SendSlots::most_rows(s.tokens, s.chosen, s.experts, ranks, 0), rows = s.tokens * s.chosen;
      send_kept_rows(examine, s, ranks, skewed);
      send_beyond_slots(examine, s, ranks, skewed);
      for (const int64_t slots : {ranks * most, ranks * (most + 3)}) {
        const std::string name = cat(name_of(s), " on ", ranks, " ranks", skewed ? " skewed " : " ", slots);
        examine(OpCase<SendSlots>{name,
                                  {.tokens = tensor(DType::i32, {slots}),
                                   .choices = tensor(DType::i32, {slots}),
                                   .slots = tensor(DType::i32, {s.tokens, s.chosen}),
                                   .counts = tensor(DType::i32, {s.experts}),
                                   .offsets = tensor(DType::i32, {s.experts + 1}),
                                   .sorted = tensor(DType::i32, {rows}),
                                   .ranks = ranks},
                                  {{"offsets", offsets_of(s, skewed)}, {"sorted", permuted(rows)}},
                                  true});
        for (const int64_t rank : {int64_t{0}, ranks - 1})
          examine(OpCase<ReceiveSlots>{cat(name, " rank ", rank),
                                       {.offsets = tensor(DType::i32, {s.experts / ranks + 1}),
                                        .slots = tensor(DType::i32, {slots}),
                                        .rows = tensor(DType::i32, {slots}),
                                        .counts = tensor(DType::i32, {ranks, s.experts}),
                                        .rank = rank},
                                       {{"counts",
                                         [=, each = most * ranks / s.experts](uint64_t, int64_t i) {
                                           return skewed ? double(i % 3 == 0 ? each : 0)
                                                         : double((i * 5 + 2) % (each + 1));
                                         }}},
                                       true});
      }
    }
}

void activations(Examiner& examine) {
  for (const DType dt : kFloats)
    for (const Sizes& s : {kSizes[0], kSizes[2], kSizes[3], kSizes[4]})
      for (const int64_t f : {1, 17, 96}) {
        const int64_t rows = s.tokens * s.chosen;
        const Tensor y = tensor(dt, {rows, f}), gu = tensor(dt, {rows, 2 * f});
        const Tensor weights = tensor(DType::f32, {s.tokens, s.chosen}), slots = tensor(DType::i32, {rows});
        const WeightedSwigluFwd fwd{.y = y, .gu = gu, .weights = weights, .slots = slots};
        const WeightedSwigluBwd bwd{
            .dgu = gu, .dweights = weights, .y = y, .dy = y, .gu = gu, .weights = weights, .slots = slots};
        const Values values{{"gu", normal(0, 2)}, {"slots", permuted(rows)}};
        const std::string name = cat(name_of(s), " ", f, " ", dt);
        examine(OpCase<WeightedSwigluFwd>{name, fwd, values});
        examine(OpCase<WeightedSwigluBwd>{name, bwd, values});
        examine(OpCase<WeightedSwigluBwd>{cat(name, " in place"), bwd, values, false, {{"dgu", "gu"}, {"y", "dy"}}});
        if (dt == DType::f32 && s.tokens == 33 && f == 17)
          examine.gradient(OpCase<WeightedSwigluFwd>{"gradient", fwd, values},
                           OpCase<WeightedSwigluBwd>{"gradient", bwd, values}, {{"y", "dy"}},
                           {{"gu", "dgu"}, {"weights", "dweights"}});
      }
}

struct Layer {
  int64_t outputs, inputs;
};

GroupedGemm product(const Sizes& s, const Layer& l, Grouped kind, DType dt, DType d) {
  const int64_t rows = s.tokens * s.chosen;
  const Tensor w = tensor(dt, {s.experts * l.outputs, l.inputs}), in = tensor(dt, {rows, l.inputs});
  const Tensor out = tensor(dt, {rows, l.outputs}), offsets = tensor(DType::i32, {s.experts + 1});
  GroupedGemm op{.d = {}, .a = {}, .b = {}, .offsets = offsets, .role = kind};
  if (kind == Grouped::forward) op.d = out, op.a = in, op.b = w;
  if (kind == Grouped::input_gradient) op.d = in, op.a = out, op.b = w;
  if (kind == Grouped::weight_gradient) op.d = w, op.a = out, op.b = in;
  op.d.dtype = d;
  return op;
}

// The forward GEMM with SwiGLU.
GroupedGemm gated(const Sizes& s, const Layer& l, DType dt) {
  GroupedGemm op = product(s, l, Grouped::forward, dt, dt);
  op.h = tensor(dt, {op.rows(), l.outputs / 2});
  op.weights = tensor(DType::f32, {s.tokens, s.chosen});
  op.slots = tensor(DType::i32, {op.rows()});
  return op;
}

void products(Examiner& examine) {
  constexpr const char* kNames[] = {"forward", "input gradient", "weight gradient"};
  struct Group {
    Layer l;
    Sizes s;
    bool skewed;
  };
  for (const auto& [l, s, skewed] : {Group{{1, 1}, kSizes[1], false}, Group{{17, 40}, kSizes[3], false},
                                     Group{{17, 40}, kSizes[3], true}, Group{{70, 130}, kSizes[4], true}})
    for (const Grouped kind : {Grouped::forward, Grouped::input_gradient, Grouped::weight_gradient})
      for (const DType dt : {DType::f32, DType::bf16}) {
        const std::string name =
            cat(kNames[int(kind)], " ", name_of(s), " ", l.outputs, "x", l.inputs, " ", dt, skewed ? " skewed" : "");
        const Values values{{"offsets", offsets_of(s, skewed)}};
        const bool sums = kind == Grouped::weight_gradient;
        examine(OpCase<GroupedGemm>{name, product(s, l, kind, dt, sums ? DType::f32 : dt), values});
        if (sums && dt == DType::bf16)
          examine(OpCase<GroupedGemm>{cat(name, " in bf16"), product(s, l, kind, dt, dt), values});
        if (dt == DType::f32 && !sums) {
          GroupedGemm rounded = product(s, l, kind, dt, dt);
          rounded.tf32 = true;
          examine(OpCase<GroupedGemm>{cat(name, " tf32"), rounded, values});
        }
      }
  // Terms of sums and columns beyond the blocks of any cache.
  for (const Grouped kind : {Grouped::forward, Grouped::input_gradient, Grouped::weight_gradient}) {
    constexpr Sizes kWide{150, 3, 2};
    const Values values{{"offsets", listed({0, 11, 11, 300})}};
    const bool sums = kind == Grouped::weight_gradient;
    for (const Layer& l : {Layer{40, 1300}, Layer{2100, 24}})
      examine(OpCase<GroupedGemm>{cat(kNames[int(kind)], " wide ", l.outputs),
                                  product(kWide, l, kind, DType::bf16, sums ? DType::f32 : DType::bf16), values});
  }
  // Sizes around the tiles of tensor cores: experts without rows, with one, and with several tiles of them.
  for (const Grouped kind : {Grouped::forward, Grouped::input_gradient, Grouped::weight_gradient})
    for (const DType d : {DType::bf16, DType::f32}) {
      if (d == DType::f32 && kind != Grouped::weight_gradient) continue;
      constexpr Sizes kTiles{160, 5, 2};
      for (const Layer& l : {Layer{72, 264}, Layer{320, 136}})
        examine(OpCase<GroupedGemm>{cat(kNames[int(kind)], " tiles ", l.outputs, " ", d),
                                    product(kTiles, l, kind, DType::bf16, d),
                                    {{"offsets", listed({0, 0, 1, 130, 193, 320})}}});
    }
  for (const DType dt : {DType::bf16, DType::f16, DType::f32})
    for (const Layer& l : {Layer{144, 264}, Layer{544, 136}, Layer{34, 40}}) {
      constexpr Sizes kTiles{160, 5, 2};
      const Values values{{"offsets", listed({0, 0, 1, 130, 193, 320})}, {"slots", permuted(320)}};
      examine(OpCase<GroupedGemm>{cat("SwiGLU ", l.outputs, " ", dt), gated(kTiles, l, dt), values});
    }
  constexpr Sizes kSmall{5, 3, 2};
  const Layer layer{4, 3};
  // Rows behind the last are of no expert. The other two GEMMs leave theirs unwritten, which no case may do.
  examine(OpCase<GroupedGemm>{"rows of no expert",
                              product(kSmall, layer, Grouped::weight_gradient, DType::f32, DType::f32),
                              {{"offsets", listed({0, 4, 4, 7})}}});
  const Values values{{"offsets", listed({0, 4, 4, 10})}};
  const OpCase<GroupedGemm> fwd{"gradient", product(kSmall, layer, Grouped::forward, DType::f32, DType::f32), values};
  examine.gradient(fwd,
                   OpCase<GroupedGemm>{"gradient of a",
                                       product(kSmall, layer, Grouped::input_gradient, DType::f32, DType::f32), values},
                   {{"d", "a"}}, {{"a", "d"}});
  OpCase<GroupedGemm> of_weight{"gradient of b",
                                product(kSmall, layer, Grouped::weight_gradient, DType::f32, DType::f32), values};
  of_weight.values["b"] = [](uint64_t, int64_t i) { return normal()(stream_of("a"), i); };  // a of the forward GEMM
  examine.gradient(fwd, of_weight, {{"d", "a"}}, {{"b", "d"}});
}

}  // namespace

void moe_cases(Examiner& examine) {
  router(examine);
  ruled_router(examine);
  capacities(examine);
  bias_steps(examine);
  loads(examine);
  router_gradients(examine);
  rows_of_experts(examine);
  exchanges(examine);
  activations(examine);
  products(examine);
}

}  // namespace athanor
