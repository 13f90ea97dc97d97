// Cases of a teacher's top logits and of a student's loss against them: ties, padding, soft-caps, vocabulary shards and
// the whole vocabulary, ignored rows; the gradient.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "tests/ops/vocab_rows.h"

namespace athanor {
namespace {

constexpr double kMax = 9;  // above every logit of the cases

struct Size : VocabRows {
  int64_t k;
};
constexpr Size kSizes[] = {{{3, {0, 17, 17}, 17}, 1},
                           {{7, {0, 33, 33}, 40}, 33},
                           {{30, {20, 33, 90}, 40}, 12},
                           {{3, {0, 5000, 5000}, 5056}, 64}};

std::string name_of(const Size& s, DType dt) { return cat(name_of(s), " top ", s.k, " ", dt); }

// Distinct ids of a row, at a fixed spacing, in this shard and in others.
int64_t id(const Size& s, int64_t row, int64_t j) { return (j * (s.part.total / s.k) + row) % s.part.total; }
Init ids(const Size& s) {
  return [s](uint64_t, int64_t i) { return double(id(s, i / s.k, i % s.k)); };
}
Init values(const Size& s) {  // the first is the maximum
  return [s](uint64_t stream, int64_t i) { return i % s.k == 0 ? 0 : uniform(-6, 0)(stream, i); };
}

void top(Examiner& examine, const Size& s, DType dt) {
  if (s.part.first > 0) return;
  for (const auto& [temperature, softcap] : {std::pair{1.0f, 0.0f}, {2.0f, 0.0f}, {0.5f, 3.0f}})
    examine(OpCase<TopLogits>{cat(name_of(s, dt), " temperature ", temperature, " softcap ", softcap),
                              {.ids = tensor(DType::i32, {s.n, s.k}),
                               .values = tensor(DType::f32, {s.n, s.k}),
                               .rest = tensor(DType::f32, {s.n}),
                               .logits = tensor(dt, {s.n, s.padded}),
                               .vocab = s.part.count,
                               .temperature = temperature,
                               .softcap = softcap},
                              {{"logits", logits(s)}}});
}

OpCase<PickLogits> pick(const Size& s, DType dt, float temperature, float softcap) {
  return {cat(name_of(s, dt), " temperature ", temperature, " softcap ", softcap),
          {.picked = tensor(DType::f32, {s.n, s.k}),
           .picked_rest = tensor(DType::f32, {s.n}),
           .logits = tensor(dt, {s.n, s.padded}),
           .ids = tensor(DType::i32, {s.n, s.k}),
           .max = tensor(DType::f32, {s.n}),
           .targets = tensor(DType::i32, {s.n}),
           .part = s.part,
           .temperature = temperature,
           .softcap = softcap},
          {{"logits", logits(s)}, {"ids", ids(s)}, {"max", constant(kMax)}, {"targets", targets(s)}}};
}

double capped(double z, double softcap) { return softcap > 0 ? softcap * std::tanh(z / softcap) : z; }

// Results of RowMax, LogitSums and PickLogits for a row that this rank holds completely, or plausible ones for a shard.
struct Row {
  std::vector<double> z;  // [count]
  double sum = 0, at_target = 0, rest = 0;
  std::vector<double> picked;
  Row(const Size& s, int64_t i, std::vector<double> of_row, double temperature, double softcap) : z(std::move(of_row)) {
    const double most = capped(kMax, softcap);
    std::vector<bool> is_top(z.size());
    for (int64_t j = 0; j < s.k; ++j) {
      const int32_t column = s.part.row(int32_t(id(s, i, j)));
      picked.push_back(column < 0 ? logit(s, i, j) : z[size_t(column)]);
      if (column >= 0) is_top[size_t(column)] = true;
    }
    for (size_t c = 0; c < z.size(); ++c) {
      sum += std::exp(capped(z[c], softcap) - most);
      if (!is_top[c]) rest += std::exp((capped(z[c], softcap) - most) / temperature);
    }
    const int32_t of_target = target(s, i) < 0 ? -1 : s.part.row(target(s, i));
    at_target = capped(of_target < 0 ? logit(s, i, 3) : z[size_t(of_target)], softcap) - most;
    if (s.part.count < s.part.total) sum *= 3, rest *= 2;
  }
};

using Case = OpCase<CachedDistilledCrossEntropy>;

// Sets what follows from the student's logits.
void set_logits(Case& c, const Size& s, const std::function<double(int64_t row, int64_t column)>& z) {
  std::vector<Row> rows;
  for (int64_t i = 0; i < s.n; ++i) {
    std::vector<double> row;
    for (int64_t column = 0; column < s.part.count; ++column) row.push_back(z(i, column));
    rows.emplace_back(s, i, row, double(c.op.temperature), double(c.op.softcap));
  }
  std::vector<double> all, sums, picked, rest;
  for (const Row& row : rows) {
    all.insert(all.end(), row.z.begin(), row.z.end());
    all.resize(all.size() + size_t(s.padded - s.part.count), 1000.0);
    picked.insert(picked.end(), row.picked.begin(), row.picked.end());
    sums.push_back(row.sum), rest.push_back(row.rest);
  }
  for (const Row& row : rows) sums.push_back(row.at_target);
  c.values["logits"] = listed(all), c.values["sums"] = listed(sums);
  c.values["picked"] = listed(picked), c.values["picked_rest"] = listed(rest);
}

Case cached(const Size& s, DType dt, DistillLoss kind, float temperature, float softcap) {
  const Tensor rows = tensor(DType::f32, {s.n}), top = tensor(DType::f32, {s.n, s.k});
  constexpr const char* kNames[] = {"kl", "reverse kl", "uld"};
  Case c{cat(name_of(s, dt), " ", kNames[int(kind)], " temperature ", temperature, " softcap ", softcap),
         {.logits = tensor(dt, {s.n, s.padded}),
          .losses = rows,
          .divergences = rows,
          .targets = tensor(DType::i32, {s.n}),
          .scale = tensor(DType::f32, {1}),
          .ids = tensor(DType::i32, {s.n, s.k}),
          .values = top,
          .rest = rows,
          .max = rows,
          .sums = tensor(DType::f32, {2, s.n}),
          .picked = top,
          .picked_rest = rows,
          .inv_count = 1.0f / float(s.n + 3),
          .part = s.part,
          .kind = kind,
          .temperature = temperature,
          .ce_weight = 0.25f,
          .softcap = softcap},
         {{"ids", ids(s)}, {"values", values(s)}, {"max", constant(kMax)}, {"targets", targets(s)}}};
  c.values["scale"] = constant(8);
  c.values["rest"] = s.k == s.part.total ? constant(-std::numeric_limits<double>::infinity()) : uniform(-4, 1);
  set_logits(c, s, [&](int64_t row, int64_t column) { return logit(s, row, column); });
  return c;
}

// L = scale inv_count sum of (divergences + ce_weight losses) + z-loss; the logits become dL/dlogits.
void gradient(Examiner& examine, DistillLoss kind, int64_t k) {
  const Size s{{5, {0, 9, 9}, 11}, k};
  for (const auto& [temperature, z_loss, softcap] :
       {std::tuple{1.0, 0.0, 0.0}, {3.5, 0.5, 0.0}, {0.5, 0.0, 3.0}, {2.0, 0.5, 2.0}}) {
    Case c = cached(s, DType::f32, kind, float(temperature), float(softcap)), moved = c;
    c.op.z_loss = float(z_loss);
    c.name += cat(" z loss ", z_loss);
    moved.op = c.op;
    examine(c);
    examine.gradient_of(c, "logits", [&, z_loss = z_loss, softcap = softcap](const std::vector<double>& x) {
      set_logits(moved, s, [&](int64_t row, int64_t column) { return x[size_t(row * s.padded + column)]; });
      const auto results = examine.reference_results(moved);
      const auto losses = decoded(DType::f32, result(results, "losses").after);
      const auto divergences = decoded(DType::f32, result(results, "divergences").after);
      double sum = 0;
      for (int64_t row = 0; row < s.n; ++row) {
        sum += divergences[size_t(row)] + double(c.op.ce_weight) * losses[size_t(row)];
        double exps = 0;
        for (int64_t column = 0; column < s.part.count; ++column)
          exps += std::exp(capped(x[size_t(row * s.padded + column)], softcap));
        if (target(s, row) >= 0) sum += z_loss * std::log(exps) * std::log(exps);
      }
      return 8 * double(c.op.inv_count) * sum;
    });
  }
}

// Rows whose values are -inf have no teacher.
void without_teacher(Examiner& examine) {
  const Size& s = kSizes[0];
  Case c = cached(s, DType::f32, DistillLoss::uld, 1, 0);
  c.name += " every other row without a teacher";
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const Init values = c.values["values"], rest = c.values["rest"];
  c.values["values"] = [=](uint64_t stream, int64_t i) { return i / s.k % 2 == 0 ? kNone : values(stream, i); };
  c.values["rest"] = [=](uint64_t stream, int64_t i) { return i % 2 == 0 ? kNone : rest(stream, i); };
  examine(c);
}

}  // namespace

void top_logits_cases(Examiner& examine) {
  for (const Size& s : kSizes)
    for (DType dt : kFloats) {
      top(examine, s, dt);
      for (const float softcap : {0.0f, 5.0f}) {
        examine(pick(s, dt, 2, softcap));
        for (const DistillLoss kind : {DistillLoss::kl, DistillLoss::reverse_kl, DistillLoss::uld})
          for (const float temperature : {1.0f, 2.5f}) examine(cached(s, dt, kind, temperature, softcap));
      }
    }
  for (const DistillLoss kind : {DistillLoss::kl, DistillLoss::reverse_kl, DistillLoss::uld})
    for (const int64_t k : {1, 4, 9}) gradient(examine, kind, k);
  without_teacher(examine);
}

}  // namespace athanor
