// Cases of cross entropy: ignored targets, padded vocabularies, loss scale, extreme logits, soft-cap, gradient.
#include <cmath>
#include <tuple>
#include <utility>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

struct Size {
  int64_t n, vocab, padded;
};

OpCase<CrossEntropy> cross_entropy(const Size& s, DType dt, bool grad, double scale) {
  OpCase<CrossEntropy> c{cat(s.n, "x", s.vocab, "/", s.padded, " ", dt, grad ? " grad scale " : "", grad ? scale : 0),
                         {.logits = tensor(dt, {s.n, s.padded}),
                          .losses = tensor(DType::f32, {s.n}),
                          .targets = tensor(DType::i32, {s.n}),
                          .inv_count = 1.0f / float(s.n + 3),
                          .vocab = s.vocab,
                          .grad = grad}};
  if (grad) c.op.scale = tensor(DType::f32, {1});
  c.values["scale"] = constant(scale);
  // Padding columns hold what would win every softmax; a fifth of the rows is ignored.
  c.values["logits"] = [s](uint64_t stream, int64_t i) {
    return i % s.padded < s.vocab ? normal(0, 3)(stream, i) : 1000.0;
  };
  c.values["targets"] = [s](uint64_t stream, int64_t i) {
    return i % 5 == 2 ? -1.0 - double(i) : below(s.vocab)(stream, i);
  };
  return c;
}

void extremes(Examiner& examine) {
  OpCase<CrossEntropy> c = cross_entropy({4, 9, 12}, DType::f32, true, 1);
  c.name = "large logits";
  c.values["logits"] = listed({1e4, -1e4, 5000, 0, 9999, 1e4, -3e38, 7, 8, -1, -2, -3});
  examine(c);
  c.name = "all ignored";
  c.values["targets"] = constant(-1);
  examine(c);
}

void with_z_loss(Examiner& examine) {
  for (DType dt : kFloats)
    for (const Size& s : {Size{3, 17, 17}, Size{5, 5000, 5056}, Size{130, 33, 40}}) {
      OpCase<CrossEntropy> c = cross_entropy(s, dt, true, 8);
      c.name += " z loss";
      c.op.z_loss = 0.25f;
      examine(c);
    }
}

// Caps that bend most logits, few of them, and none.
void with_softcap(Examiner& examine) {
  for (DType dt : kFloats)
    for (const Size& s : {Size{3, 17, 17}, Size{5, 5000, 5056}, Size{130, 33, 40}})
      for (const auto& [softcap, z_loss] : {std::pair{2.0f, 0.0f}, {30.0f, 0.25f}, {5000.0f, 0.0f}})
        for (const bool grad : {false, true}) {
          OpCase<CrossEntropy> c = cross_entropy(s, dt, grad, 8);
          c.name += cat(" softcap ", softcap);
          c.op.softcap = softcap;
          c.op.z_loss = grad ? z_loss : 0;
          examine(c);
        }
  OpCase<CrossEntropy> c = cross_entropy({4, 9, 12}, DType::f32, true, 1);
  c.name = "large logits softcap";
  c.op.softcap = 30;
  c.values["logits"] = listed({1e4, -1e4, 5000, 0, 9999, 1e4, -3e38, 7, 8, -1, -2, -3});
  examine(c);
}

// Targets, independent of the tensor: a fifth of the rows is ignored.
double own_target(int64_t vocab, int64_t row) { return row % 5 == 2 ? -1 : double(row * 7 % vocab); }
// Targets of tokens further ahead: ignored, equal to the row's own, or one token twice.
double further_target(int64_t vocab, int64_t count, int64_t i) {
  if (i % 7 == 3) return -1;
  if (i % 11 == 5) return std::max(0.0, own_target(vocab, i / count));
  return double((i - (i % 3 == 1 ? 1 : 0)) * 5 % vocab);
}
double further_weight(int64_t i) { return 0.5 / double(i + 1); }

OpCase<CrossEntropy> with_ahead(OpCase<CrossEntropy> c, int64_t count) {
  c.name += cat(" ahead ", count);
  c.op.ahead = tensor(DType::i32, {c.op.logits.rows(), count});
  c.op.ahead_weights = tensor(DType::f32, {count});
  const int64_t vocab = c.op.vocab;
  c.values["targets"] = [vocab](uint64_t, int64_t i) { return own_target(vocab, i); };
  c.values["ahead"] = [vocab, count](uint64_t, int64_t i) { return further_target(vocab, count, i); };
  c.values["ahead_weights"] = [](uint64_t, int64_t i) { return further_weight(i); };
  return c;
}

void ahead(Examiner& examine) {
  for (DType dt : kFloats)
    for (const Size& s : {Size{3, 17, 17}, Size{17, 257, 320}, Size{130, 33, 40}})
      for (const float softcap : {0.0f, 5.0f}) {
        OpCase<CrossEntropy> c = with_ahead(cross_entropy(s, dt, true, 8), s.n == 17 ? 8 : 2);
        c.name += cat(" softcap ", softcap);
        c.op.softcap = softcap;
        examine(c);
      }
  for (const auto& [z_loss, softcap] : {std::pair{0.0, 0.0}, {0.5, 3.0}}) {
    OpCase<CrossEntropy> bwd = with_ahead(cross_entropy({11, 9, 11}, DType::f32, true, 8), 3);
    bwd.op.z_loss = float(z_loss), bwd.op.softcap = float(softcap);
    const auto capped = [cap = softcap](double z) { return cap > 0 ? cap * std::tanh(z / cap) : z; };
    examine.gradient_of(bwd, "logits", [&, z_loss = z_loss](const std::vector<double>& x) {
      double sum = 0;
      for (int64_t row = 0; row < 11; ++row) {
        if (own_target(9, row) < 0) continue;
        double exps = 0;
        for (int64_t c = 0; c < 9; ++c) exps += std::exp(capped(x[size_t(row * 11 + c)]));
        const auto loss = [&](double token) { return std::log(exps) - capped(x[size_t(row * 11 + int64_t(token))]); };
        sum += loss(own_target(9, row)) + z_loss * std::log(exps) * std::log(exps);
        for (int64_t j = 0; j < 3; ++j)
          if (const double token = further_target(9, 3, row * 3 + j); token >= 0)
            sum += further_weight(j) * loss(token);
      }
      return 8 * double(bwd.op.inv_count) * sum;
    });
  }
}

// L = scale inv_count sum of losses; the logits become dL/dlogits.
void gradient(Examiner& examine) {
  struct Options {
    double scale, z_loss, softcap;
  };
  for (const auto& [scale, z_loss, softcap] :
       {Options{1, 0, 0}, {512, 0, 0}, {8, 0.5, 0}, {1, 0, 3}, {8, 0.5, 3}, {8, 0.5, 0.25}}) {
    OpCase<CrossEntropy> bwd = cross_entropy({5, 9, 11}, DType::f32, true, scale), fwd = bwd;
    fwd.op.grad = false;
    bwd.op.z_loss = float(z_loss);
    bwd.op.softcap = fwd.op.softcap = float(softcap);
    bwd.name = fwd.name = cat("gradient scale ", scale, " z loss ", z_loss, " softcap ", softcap);
    const auto capped = [cap = softcap](double z) { return cap > 0 ? cap * std::tanh(z / cap) : z; };
    const double weight = scale * double(fwd.op.inv_count);
    examine.gradient_of(bwd, "logits", [&](const std::vector<double>& x) {
      fwd.values["logits"] = listed(x);
      double sum = 0;
      for (double l : decoded(DType::f32, result(examine.reference_results(fwd), "losses").after)) sum += l;
      for (size_t row = 0; row < 5; ++row) {
        double exps = 0;
        for (size_t c = 0; c < 9; ++c) exps += std::exp(capped(x[row * 11 + c]));
        if (fwd.values["targets"](0, int64_t(row)) >= 0) sum += z_loss * std::log(exps) * std::log(exps);
      }
      return weight * sum;
    });
  }
}

OpCase<DistilledCrossEntropy> distilled(const Size& s, DType dt, DistillLoss kind, double temperature) {
  OpCase<DistilledCrossEntropy> c{cat(s.n, "x", s.vocab, "/", s.padded, " ", dt, " ",
                                      kind == DistillLoss::kl ? "kl" : "reverse kl", " temperature ", temperature),
                                  {.logits = tensor(dt, {s.n, s.padded}),
                                   .teacher = tensor(dt, {s.n, s.padded}),
                                   .losses = tensor(DType::f32, {s.n}),
                                   .divergences = tensor(DType::f32, {s.n}),
                                   .targets = tensor(DType::i32, {s.n}),
                                   .scale = tensor(DType::f32, {1}),
                                   .inv_count = 1.0f / float(s.n + 3),
                                   .vocab = s.vocab,
                                   .kind = kind,
                                   .temperature = float(temperature),
                                   .ce_weight = 0.25f}};
  const OpCase<CrossEntropy> plain = cross_entropy(s, dt, true, 8);
  for (const char* name : {"scale", "logits", "targets"}) c.values[name] = plain.values.at(name);
  c.values["teacher"] = plain.values.at("logits");
  return c;
}

// L = scale inv_count sum of (divergences + ce_weight losses) + z-loss; the logits become dL/dlogits. The divergences
// of a teacher's logits 2, 1, 0 and a student's of 0, 0, 0 are known.
void of_teachers(Examiner& examine) {
  for (const DistillLoss kind : {DistillLoss::kl, DistillLoss::reverse_kl}) {
    for (DType dt : kFloats)
      for (const Size& s : {Size{3, 17, 17}, Size{5, 5000, 5056}, Size{70, 33, 40}})
        examine(distilled(s, dt, kind, s.n == 3 ? 1 : 2.5));
    for (const auto& [temperature, z_loss, softcap] :
         {std::tuple{1.0, 0.0, 0.0}, {3.0, 0.5, 0.0}, {0.5, 0.0, 3.0}, {2.0, 0.5, 2.0}}) {
      OpCase<DistilledCrossEntropy> c = distilled({5, 9, 11}, DType::f32, kind, temperature), moved = c;
      c.op.z_loss = float(z_loss), c.op.softcap = float(softcap), c.op.teacher_softcap = float(2 * softcap);
      c.name += cat(" z loss ", z_loss, " softcap ", softcap);
      moved.op = c.op;
      examine(c);
      const double weight = 8 * double(c.op.inv_count), cap = softcap;
      examine.gradient_of(c, "logits", [&, z_loss = z_loss](const std::vector<double>& x) {
        moved.values["logits"] = listed(x);
        const auto results = examine.reference_results(moved);
        const auto losses = decoded(DType::f32, result(results, "losses").after);
        const auto divergences = decoded(DType::f32, result(results, "divergences").after);
        double sum = 0;
        for (size_t row = 0; row < 5; ++row) {
          sum += divergences[row] + double(c.op.ce_weight) * losses[row];
          double exps = 0;
          for (size_t k = 0; k < 9; ++k)
            exps += std::exp(cap > 0 ? cap * std::tanh(x[row * 11 + k] / cap) : x[row * 11 + k]);
          if (moved.values["targets"](0, int64_t(row)) >= 0) sum += z_loss * std::log(exps) * std::log(exps);
        }
        return weight * sum;
      });
    }
  }
}

// Whole sequences on a rank and sequences in two pieces, one source without rows, and losses on both sides of 0.5,
// which round differently.
void by_source(Examiner& examine) {
  for (const int64_t n : {1, 12, 1200, 12000})
    for (const SequenceRows rows : {SequenceRows{.sequences = 1, .length = n},
                                    {.sequences = 3, .length = 4},
                                    {.sequences = 3, .length = 2, .per_sequence = 4}}) {
      OpCase<SourceLosses> c{cat(n, " rows of ", rows.sequences, " by ", rows.length),
                             {.sums = tensor(DType::f64, {2, 5}),
                              .losses = tensor(DType::f32, {n}),
                              .targets = tensor(DType::i32, {n}),
                              .sources = tensor(DType::i32, {rows.sequences}),
                              .rows = rows}};
      c.values = {{"sums", listed({0, 1, 2, 3, 4, 5, 6, 7, 8, 9})},
                  {"losses", uniform(0, 1)},
                  {"targets", [](uint64_t, int64_t i) { return i % 5 == 3 ? -1.0 : double(i % 7); }},
                  {"sources", listed({3, 0, 3})}};
      c.exact = true;
      examine(c);
      if (n < 12000) continue;
      c.name += ", not finite";
      c.values["losses"] = [](uint64_t, int64_t i) { return i == 11000 ? double(INFINITY) : 1.0; };
      examine(c);
    }
}

}  // namespace

void loss_cases(Examiner& examine) {
  by_source(examine);
  for (DType dt : kFloats)
    for (const Size& s : {Size{1, 1, 1}, Size{3, 17, 17}, Size{17, 257, 320}, Size{5, 5000, 5056}, Size{130, 33, 40},
                          Size{100, 1000, 1024}}) {
      examine(cross_entropy(s, dt, false, 1));
      examine(cross_entropy(s, dt, true, 1));
      examine(cross_entropy(s, dt, true, 1024));
    }
  extremes(examine);
  with_z_loss(examine);
  with_softcap(examine);
  gradient(examine);
  of_teachers(examine);
  ahead(examine);
}

}  // namespace athanor
