// Cases of update rules, of split master weights and of Muon's ops around its GEMMs; those of StepControl are in
// step_control_cases.cc.
#include <bit>
#include <cmath>
#include <optional>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

// Dtype of master weights, and of their compute copy if there is one.
struct Kind {
  DType master;
  std::optional<DType> copy;
  std::string name() const { return cat(master, copy ? cat(" copy ", *copy) : ""); }
};
const Kind kKinds[] = {{DType::f32, {}},
                       {DType::f32, DType::bf16},
                       {DType::f32, DType::f16},
                       {DType::bf16, {}},
                       {DType::i16, DType::bf16}};

AdamW::Part part(int64_t n, const Kind& kind, DType m = DType::f32, DType v = DType::f32) {
  AdamW::Part p{.master = tensor(kind.master, {n}),
                .m = tensor(m, {n}),
                .v = tensor(v, {n}),
                .grad = tensor(DType::f32, {n}),
                .stream = 6,
                .moment_stream = 7,
                .first = 1000003};
  if (kind.copy) p.param = tensor(*kind.copy, {n});
  return p;
}

OpCase<AdamW> adamw(const std::string& name, std::vector<AdamW::Part> parts) {
  OpCase<AdamW> c{name,
                  {.parts = std::move(parts),
                   .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                   .weight_decay = 0.1,
                   .seed = 5}};
  c.values = {{"state", bytes_of(running_state())}, {"v", uniform(0, 1)}, {"m", normal(0, 0.3)}};
  if (c.op.parts.front().master.dtype == DType::i16)
    c.values["master"] = [](uint64_t s, int64_t i) { return double(int16_t(random_bits(kCaseSeed, s, uint64_t(i)))); };
  return c;
}

// Repeats a case with bf16 gradients.
template <class Op>
void with_short_gradients(Examiner& examine, OpCase<Op> c) {
  c.name += " gradients bf16";
  for (auto& p : c.op.parts) p.grad.dtype = DType::bf16;
  examine(c);
}

void adamw_cases(Examiner& examine) {
  for (int64_t n : {1, 3, 17, 257, 5000})
    for (const Kind& kind : kKinds)
      for (int skip : {0, 1}) {
        OpCase<AdamW> c = adamw(cat(n, " ", kind.name(), skip ? " skip" : ""), {part(n, kind)});
        StepState s = running_state();
        s.skip = skip;
        if (skip) s.grad_scale = 0;
        c.values["state"] = bytes_of(s);
        if (skip) c.values["grad"] = constant(INFINITY);  // nothing of it may get through
        examine(c);
      }
  for (const Kind& kind : kKinds)
    for (DType m : {DType::f32, DType::bf16})
      for (DType v : {DType::f32, DType::bf16})
        for (int64_t n : {9, 5000}) {
          const OpCase<AdamW> c = adamw(cat(n, " ", kind.name(), " moments ", m, " ", v), {part(n, kind, m, v)});
          examine(c);
          with_short_gradients(examine, c);
        }
  for (int64_t decayed : {0, 9, 3001}) {
    OpCase<AdamW> c = adamw(cat("decay of ", decayed), {part(5000, kKinds[decayed == 9 ? 3 : 0])});
    c.op.parts[0].decayed = decayed;
    c.op.weight_decay = 20;
    examine(c);
  }
  for (const Kind& kind : kKinds) {
    examine(adamw(cat("long ", kind.name()), {part(100003, kind)}));  // work for many threads
    std::vector<AdamW::Part> parts;
    for (int64_t n : {7, 3000, 1, 2048}) {
      parts.push_back(part(n, kind, DType::bf16));
      parts.back().stream += uint64_t(n);
      parts.back().decayed = n / 2;
    }
    examine(adamw(cat("list ", kind.name()), parts));
  }
  OpCase<AdamW> scheduled = adamw("scheduled momentum and decay", {part(5000, kKinds[1])});
  StepState s = running_state();
  s.momentum_low = 0.25;
  s.low_momentum = 0.5;
  s.weight_decay_factor = 30;
  scheduled.values["state"] = bytes_of(s);
  examine(scheduled);
  examine(adamw("long list", std::vector<AdamW::Part>(300, part(5, kKinds[0]))));
}

AdamW8bit::Part quantized_part(int64_t n, const Kind& kind) {
  const Tensor scales = tensor(DType::f32, {n / kMomentBlock});
  AdamW8bit::Part p{.master = tensor(kind.master, {n}),
                    .grad = tensor(DType::f32, {n}),
                    .m = tensor(DType::u8, {n}),
                    .v = tensor(DType::u8, {n}),
                    .m_scale = scales,
                    .v_scale = scales,
                    .stream = 6,
                    .first = 1000003};
  if (kind.copy) p.param = tensor(*kind.copy, {n});
  return p;
}

OpCase<AdamW8bit> adamw_8bit(const std::string& name, std::vector<AdamW8bit::Part> parts) {
  OpCase<AdamW8bit> c{name,
                      {.parts = std::move(parts),
                       .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                       .weight_decay = 0.1,
                       .seed = 5}};
  c.values = {{"state", bytes_of(running_state())},
              {"m", below(256)},
              {"v", below(256)},
              {"m_scale", uniform(0.01, 1)},
              {"v_scale", uniform(0.001, 0.1)}};
  if (c.op.parts.front().master.dtype == DType::i16)
    c.values["master"] = [](uint64_t s, int64_t i) { return double(int16_t(random_bits(kCaseSeed, s, uint64_t(i)))); };
  return c;
}

void adamw_8bit_cases(Examiner& examine) {
  for (const Kind& kind : kKinds) {
    for (const int64_t blocks : {1, 3, 9, 400})
      examine(adamw_8bit(cat(blocks, " ", kind.name()), {quantized_part(blocks * kMomentBlock, kind)}));
    with_short_gradients(examine, adamw_8bit(kind.name(), {quantized_part(9 * kMomentBlock, kind)}));
    OpCase<AdamW8bit> list = adamw_8bit(
        cat("list ", kind.name()), {quantized_part(512, kind), quantized_part(4096, kind), quantized_part(256, kind)});
    for (AdamW8bit::Part& p : list.op.parts) p.stream += uint64_t(p.master.numel()), p.decayed = 300;
    list.op.weight_decay = 20;
    list.op.rate = 0.5;
    examine(list);
    list.name += " cautious";
    list.op.cautious = true;
    examine(list);
    StepState s = running_state();
    s.skip = 1;
    s.grad_scale = 0;
    list.name += " skip";
    list.values["state"] = bytes_of(s);
    list.values["grad"] = constant(INFINITY);
    examine(list);
    with_short_gradients(examine, list);
  }
  // Gradients over twelve decades: second moments below the smallest quantized value. Also zero gradients: all-zero
  // blocks.
  OpCase<AdamW8bit> wide = adamw_8bit("wide", {quantized_part(5120, kKinds[0])});
  wide.values["grad"] = [](uint64_t s, int64_t i) { return std::pow(10, uniform(-12, 0)(s, i)); };
  wide.values["v_scale"] = wide.values["m_scale"] = constant(0);
  examine(wide);
  wide.name = "zeros";
  wide.values["grad"] = constant(0);
  examine(wide);
}

// A case of a rule with one state at most.
template <class Op>
OpCase<Op> update(const std::string& name, std::vector<UpdatePart> parts) {
  OpCase<Op> c{name, {.parts = std::move(parts), .state = tensor(DType::u8, {int64_t(sizeof(StepState))})}};
  c.op.weight_decay = 0.1;
  c.op.seed = 5;
  c.values = {{"state", bytes_of(running_state())}, {"m", normal(0, 0.3)}};
  if (c.op.parts.front().master.dtype == DType::i16)
    c.values["master"] = [](uint64_t s, int64_t i) { return double(int16_t(random_bits(kCaseSeed, s, uint64_t(i)))); };
  return c;
}

UpdatePart with_one_state(int64_t n, const Kind& kind, std::optional<DType> m) {
  UpdatePart p = part(n, kind, m.value_or(DType::f32));
  if (!m) p.m = {};
  p.v = {};
  return p;
}

template <class Op>
void one_state_cases(Examiner& examine, std::initializer_list<std::optional<DType>> kept, const auto& variants) {
  for (const Kind& kind : kKinds)
    for (const std::optional<DType> m : kept)
      for (const int64_t n : {1, 17, 5000}) {
        std::vector<UpdatePart> parts{with_one_state(n, kind, m)};
        if (n > 1) parts.push_back(with_one_state(2049, kind, m));
        parts.back().decayed = n / 2;
        OpCase<Op> c = update<Op>(cat(n, " ", kind.name(), " m ", m ? cat(*m) : "none"), std::move(parts));
        variants(examine, c, m.has_value());
        StepState s = running_state();
        s.skip = 1;
        s.grad_scale = 0;
        c.name += " skip";
        c.values["state"] = bytes_of(s);
        c.values["grad"] = constant(INFINITY);
        examine(c);
        with_short_gradients(examine, c);
      }
}

void sgd_cases(Examiner& examine) {
  one_state_cases<Sgd>(examine, {std::nullopt, DType::f32, DType::bf16}, [](Examiner& e, OpCase<Sgd> c, bool kept) {
    const std::string name = c.name;
    c.op.momentum = kept ? 0.9 : 0;
    e(c);
    c.name = name + (kept ? " nesterov" : " direction");
    c.op.nesterov = kept;
    c.op.direction = c.op.cautious = !kept;
    c.op.rate = 0.5;
    e(c);
    with_short_gradients(e, c);
  });
}

// Gradients are large, so that the sign of the average, which decides the update, does not depend on rounding.
void lion_cases(Examiner& examine) {
  one_state_cases<Lion>(examine, {DType::f32, DType::bf16}, [](Examiner& e, OpCase<Lion> c, bool) {
    c.op.rate = 0.5;
    c.values["grad"] = [](uint64_t s, int64_t i) { return (i % 2 ? 1 : -1) * (3 + uniform(0, 1)(s, i)); };
    c.values["m"] = uniform(-0.01, 0.01);
    e(c);
    c.name += " cautious";
    c.op.cautious = true;
    c.op.weight_decay = 20;
    e(c);
    with_short_gradients(e, c);
  });
}

void cautious_cases(Examiner& examine) {
  for (const Kind& kind : kKinds) {
    OpCase<AdamW> c = adamw(cat("cautious ", kind.name()), {part(5000, kind), part(77, kind)});
    c.op.cautious = true;
    c.op.weight_decay = 20;
    c.op.parts[0].decayed = 1030;
    examine(c);
  }
}

void coupled_cases(Examiner& examine) {
  for (const Kind& kind : kKinds) {
    OpCase<AdamW> c = adamw(cat("coupled ", kind.name()), {part(5000, kind), part(77, kind)});
    c.op.coupled = true;
    c.op.rate = 0.5;
    c.op.parts[0].decayed = 1030;
    examine(c);
  }
}

void ema_cases(Examiner& examine) {
  for (const Kind& kind : {kKinds[0], kKinds[3], kKinds[4]})
    for (const int64_t n : {1, 17, 5000, 100003})
      for (const int skip : {0, 1}) {
        OpCase<Ema> c{
            cat(n, " ", kind.name(), skip ? " skip" : ""),
            {.parts = {}, .state = tensor(DType::u8, {int64_t(sizeof(StepState))}), .decay = 0.95, .average = 1}};
        for (const int64_t size : n > 1 ? std::vector<int64_t>{n, 2049} : std::vector<int64_t>{n}) {
          Ema::Part& p = c.op.parts.emplace_back();
          p.average = tensor(DType::f32, {size}), p.master = tensor(kind.master, {size});
          if (kind.copy) p.param = tensor(*kind.copy, {size});
        }
        StepState s = running_state();
        s.skip = skip;
        c.values = {{"state", bytes_of(s)}};
        if (kind.copy)
          c.values["master"] = [](uint64_t seed, int64_t i) {
            return double(int16_t(random_bits(kCaseSeed, seed, uint64_t(i))));
          };
        examine(c);
      }
}

void schedule_free_cases(Examiner& examine) {
  for (const Kind& kind : kKinds)
    for (const DType v : {DType::f32, DType::bf16})
      for (const int64_t n : {1, 17, 5000})
        for (const int variant : {0, 1, 2}) {
          OpCase<ScheduleFreeAdamW> c{cat(n, " ", kind.name(), " v ", v,
                                          variant == 1   ? " cautious"
                                          : variant == 2 ? " skip"
                                                         : ""),
                                      {.parts = {part(n, kind, DType::f32, v)},
                                       .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                                       .weight_decay = 0.3,
                                       .seed = 5,
                                       .rate = 0.5,
                                       .cautious = variant == 1}};
          if (n > 1) c.op.parts.push_back(part(2049, kind, DType::f32, v));
          c.op.parts.back().decayed = n / 2;
          StepState s = running_state();
          s.corrections[0] = variant == 1 ? 1 : 12.5;
          s.skip = variant == 2;
          c.values = {{"state", bytes_of(s)}, {"v", uniform(0, 1)}, {"m", normal(0, 0.1)}};
          if (s.skip) c.values["grad"] = constant(NAN);
          if (kind.master == DType::i16)
            c.values["master"] = [](uint64_t seed, int64_t i) {
              return double(int16_t(random_bits(kCaseSeed, seed, uint64_t(i))));
            };
          examine(c);
          if (n > 1) with_short_gradients(examine, c);
        }
}

void lamb_cases(Examiner& examine) {
  const auto part_of = [](int64_t n, DType m, DType v) {
    return AdamDirection::Part{.w = tensor(DType::f32, {n}),
                               .m = tensor(m, {n}),
                               .v = tensor(v, {n}),
                               .grad = tensor(DType::f32, {n}),
                               .moment_stream = 7,
                               .first = 1000003};
  };
  for (const int64_t n : {1, 17, 5000})
    for (const DType m : {DType::f32, DType::bf16})
      for (const DType v : {DType::f32, DType::bf16})
        for (const int kind : {0, 1, 2, 3}) {
          OpCase<AdamDirection> c{cat(n, " ", m, " ", v,
                                      kind == 1   ? " cautious"
                                      : kind == 2 ? " skip"
                                      : kind == 3 ? " without decay"
                                                  : ""),
                                  {.parts = {part_of(n, m, v)},
                                   .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                                   .weight_decay = kind == 3 ? 0 : 0.3,
                                   .seed = 5,
                                   .cautious = kind == 1}};
          c.op.parts[0].decayed = n / 2;
          if (n > 1) c.op.parts.push_back(part_of(2049, m, v));
          for (AdamDirection::Part& part : c.op.parts)
            if (kind == 3) part.w = {};
          StepState s = running_state();
          s.skip = kind == 2;
          c.values = {{"state", bytes_of(s)}, {"v", uniform(0, 1)}, {"m", normal(0, 0.3)}};
          if (s.skip) c.values["grad"] = constant(NAN);
          examine(c);
        }
  for (const int64_t n : {1, 17, 5000})
    for (const int64_t count : {1, 5})
      for (const int zero : {0, 1, 2}) {
        OpCase<ScaleByTrustRatio> c{cat(n, " of ", count, " sums", zero ? cat(", norm ", zero, " zero") : ""),
                                    {.parts = {}}};
        for (const int64_t size : n > 1 ? std::vector<int64_t>{n, 2049} : std::vector<int64_t>{n})
          c.op.parts.push_back({.grad = tensor(DType::f32, {size}), .sums = tensor(DType::f64, {2, count})});
        c.values["sums"] = [=](uint64_t s, int64_t i) { return i / count == zero - 1 ? 0 : uniform(1, 9)(s, i); };
        examine(c);
      }
}

void output_cases(Examiner& examine) {
  struct Range {
    int64_t rows, cols, begin, end;
  };
  for (const Range& r : {Range{1, 1, 0, 1}, Range{3, 5, 0, 15}, Range{3, 5, 4, 13}, Range{65, 130, 100, 8000},
                         Range{300, 257, 0, 77100}, Range{7, 1100, 1000, 7000}, Range{1100, 7, 3, 7000}})
    for (const bool columns : {false, true}) {
      const std::string name = cat(r.rows, "x", r.cols, " from ", r.begin, columns ? " by columns" : " by rows");
      const Tensor x = tensor(DType::f32, {r.end - r.begin}), other = tensor(DType::f32, {9 * 12});
      const OutputRange of{r.begin, r.cols, columns}, all{0, 12, columns};
      const int64_t outputs = columns ? r.cols : r.rows, others = columns ? 12 : 9;
      const auto each = [](DType type, int64_t n) { return tensor(type, {n}); };
      OpCase<OutputSquares> squares{name, {.parts = {{each(DType::f64, outputs), x, of}}}};
      OpCase<ScaleOutputs> scale{name, {.parts = {{x, each(DType::f32, outputs), of}}}};
      if (r.rows > 1) {
        squares.op.parts.push_back({each(DType::f64, others), other, all});
        scale.op.parts.push_back({other, each(DType::f32, others), all});
      }
      examine(squares);
      examine(scale);
    }
}

void adafactor_cases(Examiner& examine) {
  struct Sides {
    int64_t rows, columns;
  };
  for (const Sides& m : {Sides{1, 1}, Sides{9, 5}, Sides{300, 1}, Sides{1, 300}, Sides{700, 257}})
    for (const int64_t sums : {1, 4}) {
      const std::string name = cat(m.rows, "x", m.columns, " of ", sums, " sums");
      const auto f32 = [](int64_t n) { return tensor(DType::f32, {n}); };
      OpCase<FactoredMoments> moments{name,
                                      {.parts = {}, .state = tensor(DType::u8, {int64_t(sizeof(StepState))})},
                                      {{"state", bytes_of(running_state())},
                                       {"r", uniform(0.1, 1)},
                                       {"c", uniform(0.1, 1)},
                                       {"row_sums", uniform(1, 100)},
                                       {"column_sums", uniform(1, 100)}}};
      OpCase<ClipFactors> clip{name, {.parts = {}}, {{"factors", uniform(0.5, 2)}, {"sums", uniform(1, 9)}}};
      for (const Sides& of : m.rows > 1 ? std::vector<Sides>{m, {6, 7}} : std::vector<Sides>{m}) {
        moments.op.parts.push_back({.r = f32(of.rows),
                                    .c = f32(of.columns),
                                    .row_factors = f32(of.rows),
                                    .column_factors = f32(of.columns),
                                    .row_sums = tensor(DType::f64, {sums, of.rows}),
                                    .column_sums = tensor(DType::f64, {sums, of.columns})});
        clip.op.parts.push_back(
            {.factors = f32(of.rows), .sums = tensor(DType::f64, {sums, of.rows}), .columns = of.columns});
      }
      examine(moments);
      examine(clip);
      clip.name += ", small";  // no clipping
      clip.values["sums"] = uniform(1e-6, 1e-4);
      examine(clip);
      moments.name += ", zeros";  // moments before the first step
      StepState s = running_state();
      s.updates = 1;
      moments.values["state"] = bytes_of(s);
      moments.values["row_sums"] = moments.values["column_sums"] = constant(0);
      examine(moments);
      s.skip = 1;
      moments.name += " skip";
      moments.values["state"] = bytes_of(s);
      examine(moments);
    }
}

void momentum_cases(Examiner& examine) {
  for (const int64_t n : {1, 17, 5000, 100003})
    for (const DType m : {DType::f32, DType::bf16})
      for (const bool nesterov : {false, true})
        for (const int skip : {0, 1}) {
          OpCase<Momentum> c{
              cat(n, " ", m, nesterov ? " nesterov" : "", skip ? " skip" : ""),
              {.parts = {{.m = tensor(m, {n}), .grad = tensor(DType::f32, {n}), .moment_stream = 7, .first = 1000003}},
               .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
               .nesterov = nesterov,
               .seed = 5}};
          StepState s = running_state();
          s.skip = skip;
          c.values = {{"state", bytes_of(s)}, {"m", normal(0, 0.3)}};
          if (skip) c.values["grad"] = constant(NAN);
          examine(c);
          with_short_gradients(examine, c);
        }
}

void matrix_cases(Examiner& examine) {
  for (const auto& [rows, cols, stride] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 0},
                                           {3, 5, 0},
                                           {65, 130, 0},
                                           {40, 24, 72},
                                           {9, 7, 23},
                                           {300, 256, 768}})
    for (const DType type : kFloats) {
      const std::string name = cat(rows, "x", cols, " of ", stride, " ", type);
      const Tensor dense = tensor(type, {rows, cols}), apart = tensor(type, {rows, cols}, stride);
      examine(OpCase<NormalizeMatrix>{name, {.y = dense, .x = apart, .margin = 1.02}});
      examine(OpCase<Combine>{name, {.y = apart, .a = dense, .alpha = 0.3f}});
      examine(OpCase<Combine>{name + " two", {.y = dense, .a = dense, .b = apart, .alpha = -4.7f, .beta = 2.1f}});
    }
  examine(OpCase<NormalizeMatrix>{
      "zeros", {.y = tensor(DType::bf16, {4, 4}), .x = tensor(DType::bf16, {4, 4})}, {{"x", constant(0)}}});
}

void orthogonalize_cases(Examiner& examine) {
  using Coefficients = Orthogonalize::Coefficients;
  static constexpr Coefficients kCubic[] = {{1.5, -0.5, 0}, {1.5, -0.5, 0}, {1.5, -0.5, 0}};
  static constexpr Coefficients kQuintic[] = {{3.4445, -4.7750, 2.0315}};
  const auto matrix = [](DType type, int64_t rows, int64_t cols, int64_t stride, double scale) {
    return Orthogonalize::Matrix{
        .y = tensor(type, {rows, cols}), .x = tensor(type, {rows, cols}, stride), .scale = scale};
  };
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const auto& [rows, cols, stride] :
         {std::tuple<int64_t, int64_t, int64_t>{1, 1, 0}, {3, 5, 0}, {40, 24, 72}, {64, 130, 0}})
      examine(OpCase<Orthogonalize>{cat(rows, "x", cols, " of ", stride, " ", type),
                                    {.matrices = {matrix(type, rows, cols, stride, 0.7)}, .iterations = kQuintic}});
    Orthogonalize many{.matrices = {}, .iterations = kCubic, .margin = 1.02};
    for (int i = 0; i < 7; ++i) many.matrices.push_back(matrix(type, 24 + i, 30, i % 2 ? 64 : 0, 1 + i));
    examine(OpCase<Orthogonalize>{cat("side by side ", type), many});
  }
}

void neuron_cases(Examiner& examine) {
  const auto one = [](const std::string& name, DType type, int64_t rows, int64_t cols, bool columns) {
    return OpCase<NormalizeNeurons>{name,
                                    {.x = tensor(type, {rows, cols}),
                                     .v = tensor(DType::f32, {columns ? cols : rows}),
                                     .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                                     .columns = columns,
                                     .scale = 1.7},
                                    {{"state", bytes_of(running_state())}, {"v", uniform(0.1, 1)}}};
  };
  for (const bool columns : {false, true}) {
    const std::string by = columns ? " by columns" : " by rows";
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{1, 1}, {3, 5}, {65, 130}, {300, 256}, {7, 1100}, {1100, 7}})
      for (const DType type : kFloats) examine(one(cat(rows, "x", cols, " ", type, by), type, rows, cols, columns));
    OpCase<NormalizeNeurons> zeros = one("zeros" + by, DType::bf16, 9, 12, columns);
    zeros.values["x"] = constant(0);
    examine(zeros);
    OpCase<NormalizeNeurons> skip = one("skip" + by, DType::bf16, 9, 12, columns);
    StepState s = running_state();
    s.skip = 1;
    skip.values["state"] = bytes_of(s);
    examine(skip);
  }
}

// Any 32-bit pattern except NaN, including ties and the largest numbers.
double any_float(uint64_t s, int64_t i) {
  uint32_t bits = random_bits(kCaseSeed, s, uint64_t(i));
  if (i % 3 == 0) bits = (bits & 0xffff0000u) | 0x8000u;
  if ((bits & 0xfff8u) == 0xffa0u) bits ^= 0x100u;  // the low half would look like unwritten memory
  const float x = std::bit_cast<float>(bits);
  return std::isnan(x) ? 0 : double(x);
}

void master_cases(Examiner& examine) {
  for (int64_t n : {1, 3, 17, 257, 5000, 100003}) {
    const Tensor master = tensor(DType::f32, {n}), param = tensor(DType::bf16, {n}), rest = tensor(DType::i16, {n});
    const Values values = {{"master", any_float}};
    examine(OpCase<SplitMaster>{cat(n), {.param = param, .master = master}, values, true});
    examine(OpCase<SplitMaster>{cat(n, " rest"), {.param = param, .rest = rest, .master = master}, values, true});
    examine(OpCase<JoinMaster>{
        cat(n),
        {.master = master, .param = param, .rest = rest},
        {{"rest", [](uint64_t s, int64_t i) { return double(int16_t(random_bits(kCaseSeed, s, uint64_t(i)))); }}},
        true});
  }
}

}  // namespace

void optimizer_cases(Examiner& examine) {
  adamw_cases(examine);
  adamw_8bit_cases(examine);
  cautious_cases(examine);
  coupled_cases(examine);
  sgd_cases(examine);
  lion_cases(examine);
  ema_cases(examine);
  schedule_free_cases(examine);
  lamb_cases(examine);
  output_cases(examine);
  one_bit_cases(examine);
  packed_groups_cases(examine);
  trust_ratio_cases(examine);
  adafactor_cases(examine);
  momentum_cases(examine);
  matrix_cases(examine);
  orthogonalize_cases(examine);
  neuron_cases(examine);
  master_cases(examine);
  step_control_cases(examine);
}

}  // namespace athanor
