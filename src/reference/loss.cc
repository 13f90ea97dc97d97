// Softmax cross-entropy, row by row.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

// Soft-capped logits [n], softcap * tanh(z / softcap), and their derivatives 1 - tanh^2.
struct Capped {
  Values z;
  std::vector<double> slope;
};

Capped capped(const Tensor& row, int64_t vocab, float softcap) {
  Capped out{load(row), std::vector<double>(size_t(vocab), 1.0)};
  if (softcap == 0) return out;
  for (int64_t c = 0; c < vocab; ++c) {
    const double t = std::tanh(out.z[c] / double(softcap)), cosine = std::cosh(out.z[c] / double(softcap));
    out.z[c] = double(softcap) * t;
    out.slope[size_t(c)] = 1 / (cosine * cosine);
  }
  return out;
}

struct RowSums {
  double base, sum, at_target;  // sum of exp(z - base); logit of the target - base
};

RowSums sums_of(const Values& z, int64_t vocab, int32_t target) {
  RowSums s{.base = *std::max_element(z.v.begin(), z.v.begin() + vocab), .sum = 0, .at_target = 0};
  for (int64_t c = 0; c < vocab; ++c) s.sum += std::exp(z[c] - s.base);
  s.at_target = z[target] - s.base;
  return s;
}

}  // namespace

// loss = log sum_c exp(z_c) - z_target;  dz_c = scale inv_count ((1 + 2 z_loss lse) softmax(z)_c - [c = target]);
// with softcap: z = softcap tanh(x / softcap), and dx_c = dz_c / cosh(x_c / softcap)^2. Targets ahead add
// scale inv_count sum over j of ahead_weights_j (softmax(z)_c - [c = ahead_j]) to dz_c.
void ReferenceOps::run(const CrossEntropy& op, void*) {
  Values losses = zeros_like(op.losses);  // [n]
  const int64_t vocab = op.part ? op.part.total : op.vocab;
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    const Tensor row = op.logits.slice(i, i + 1);
    const int32_t target = op.targets.as<int32_t>()[i];
    CHECK(target < vocab, "cross_entropy.targets: entry ", i, " is ", target, " of a vocabulary of ", vocab);
    Values gradient = zeros_like(row);
    if (target >= 0) {
      const auto [z, slope] = capped(row, op.vocab, op.softcap);
      const RowSums s = op.part ? RowSums{exponent_base(capped(load(op.max)[i], op.softcap)), load(op.sums)(0, i),
                                          load(op.sums)(1, i)}
                                : sums_of(z, op.vocab, target);
      const double lse = s.base + std::log(s.sum);
      losses[i] = std::log(s.sum) - s.at_target;
      if (op.grad) {
        const double weight = load(op.scale)[0] * double(op.inv_count);
        const double softmax_weight = op.z_loss == 0 ? 1 : 1 + 2 * double(op.z_loss) * lse;
        double weights = softmax_weight;  // total factor of the softmax, over all targets
        std::vector<double> hot(size_t(op.vocab));
        const auto add_target = [&](int32_t token, double its_weight) {
          if (const int32_t c = op.part.row(token); c >= 0) hot[size_t(c)] += its_weight;
        };
        add_target(target, 1);
        for (int64_t j = 0; op.ahead && j < op.ahead.cols(); ++j) {
          const int32_t token = op.ahead.as<int32_t>()[i * op.ahead.cols() + j];
          CHECK(token < vocab, "cross_entropy.ahead: ", token, " of a vocabulary of ", vocab);
          if (token < 0) continue;
          weights += load(op.ahead_weights)[j];
          add_target(token, load(op.ahead_weights)[j]);
        }
        for (int64_t c = 0; c < op.vocab; ++c)
          gradient[c] = weight * slope[size_t(c)] * (weights * std::exp(z[c] - lse) - hot[size_t(c)]);
      }
    }
    if (op.grad) store(row, gradient);
  }
  store(op.losses, losses);
}

namespace {

// Student logits y and teacher logits u of a row, soft-capped, minus their maximum, divided by the temperature; and the
// three sums of DistillSums.
struct Scaled {
  std::vector<double> y, u;
  double y_sum = 0, u_sum = 0, cross = 0;
};

// Returns factor * difference, or 0 if the factor is 0.
double weighted(double factor, double difference) { return factor > 0 ? factor * difference : 0; }

Scaled scaled(const Values& z, const Values& v, int64_t vocab, double base, double teacher_base, double temperature,
              bool forward) {
  Scaled s;
  for (int64_t c = 0; c < vocab; ++c) {
    const double y = (z[c] - base) / temperature, u = (v[c] - teacher_base) / temperature;
    s.y.push_back(y), s.u.push_back(u);
    s.y_sum += std::exp(y), s.u_sum += std::exp(u);
    s.cross += forward ? weighted(std::exp(u), u - y) : weighted(std::exp(y), y - u);
  }
  return s;
}

double largest(const Values& z, int64_t vocab) {
  return exponent_base(*std::max_element(z.v.begin(), z.v.begin() + vocab));
}

}  // namespace

void ReferenceOps::run(const DistillSums& op, void*) {
  Values sums = zeros_like(op.sums);
  const Values max = load(op.max), teacher_max = load(op.teacher_max);
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    if (op.targets.as<int32_t>()[i] < 0) continue;
    const Scaled s =
        scaled(capped(op.logits.slice(i, i + 1), op.part.count, op.softcap).z,
               capped(op.teacher.slice(i, i + 1), op.part.count, op.teacher_softcap).z, op.part.count,
               exponent_base(capped(max[i], op.softcap)), exponent_base(capped(teacher_max[i], op.teacher_softcap)),
               op.temperature, op.kind == DistillLoss::kl);
    sums(0, i) = s.y_sum, sums(1, i) = s.u_sum, sums(2, i) = s.cross;
  }
  store(op.sums, sums);
}

// With q and p the softmax of student and teacher at the temperature T:
//   kl:          T^2 KL(p, q), and its gradient T (q - p)
//   reverse_kl:  T^2 KL(q, p), and its gradient T q (log q - log p - KL(q, p))
void ReferenceOps::run(const DistilledCrossEntropy& op, void*) {
  Values losses = zeros_like(op.losses), divergences = zeros_like(op.divergences);
  const double t = op.temperature, weight = load(op.scale)[0] * double(op.inv_count);
  const bool forward = op.kind == DistillLoss::kl;
  const int64_t vocab = op.part ? op.part.total : op.vocab;
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    const Tensor row = op.logits.slice(i, i + 1);
    const int32_t target = op.targets.as<int32_t>()[i];
    CHECK(target < vocab, "distilled_cross_entropy.targets: entry ", i, " is ", target, " of a vocabulary of ", vocab);
    Values gradient = zeros_like(row);
    if (target >= 0) {
      const auto [z, slope] = capped(row, op.vocab, op.softcap);
      const Values v = capped(op.teacher.slice(i, i + 1), op.vocab, op.teacher_softcap).z;
      const RowSums s = op.part ? RowSums{exponent_base(capped(load(op.max)[i], op.softcap)), load(op.sums)(0, i),
                                          load(op.sums)(1, i)}
                                : sums_of(z, op.vocab, target);
      const double teacher_base =
          op.part ? exponent_base(capped(load(op.teacher_max)[i], op.teacher_softcap)) : largest(v, op.vocab);
      Scaled both = scaled(z, v, op.vocab, s.base, teacher_base, t, forward);
      if (op.part) {
        const Values all = load(op.distill_sums);
        both.y_sum = all(0, i), both.u_sum = all(1, i), both.cross = all(2, i);
      }
      const double log_y = std::log(both.y_sum), log_u = std::log(both.u_sum);
      const double between =
          forward ? both.cross / both.u_sum - log_u + log_y : both.cross / both.y_sum - log_y + log_u;
      const double lse = s.base + std::log(s.sum);
      losses[i] = std::log(s.sum) - s.at_target;
      divergences[i] = t * t * between;
      for (int64_t c = 0; c < op.vocab; ++c) {
        const double log_q = both.y[size_t(c)] - log_y, log_p = both.u[size_t(c)] - log_u;
        const double of_teacher =
            forward ? std::exp(log_q) - std::exp(log_p) : weighted(std::exp(log_q), log_q - log_p - between);
        const double softmax = std::exp(z[c] - lse);
        gradient[c] = weight * slope[size_t(c)] *
                      (t * of_teacher + double(op.ce_weight) * (softmax - (c == op.part.row(target) ? 1 : 0)) +
                       2 * double(op.z_loss) * lse * softmax);
      }
    }
    store(row, gradient);
  }
  store(op.losses, losses);
  store(op.divergences, divergences);
}

void ReferenceOps::run(const RowMax& op, void*) {
  Values max = zeros_like(op.max);
  for (int64_t i = 0; i < op.x.rows(); ++i) {
    const Values x = load(op.x.slice(i, i + 1));
    max[i] = -std::numeric_limits<double>::infinity();
    for (int64_t c = 0; c < op.columns; ++c) max[i] = std::max(max[i], x[c]);
  }
  store(op.max, max);
}

void ReferenceOps::run(const LogitSums& op, void*) {
  Values sums = zeros_like(op.sums);
  const Values max = load(op.max);
  for (int64_t i = 0; i < op.logits.rows(); ++i) {
    const Values z = capped(op.logits.slice(i, i + 1), op.part.count, op.softcap).z;
    const double most = exponent_base(capped(max[i], op.softcap));
    for (int64_t c = 0; c < op.part.count; ++c) sums(0, i) += std::exp(z[c] - most);
    const int32_t target = op.targets.as<int32_t>()[i];
    CHECK(target < op.part.total, "logit_sums.targets: entry ", i, " is ", target, " of a vocabulary of ",
          op.part.total);
    const int32_t row = target < 0 ? -1 : op.part.row(target);
    if (row >= 0) sums(1, i) = z[row] - most;
  }
  store(op.sums, sums);
}

void ReferenceOps::run(const SourceLosses& op, void*) {
  auto* sums = op.sums.as<double>();
  const Values losses = load(op.losses);
  for (int64_t i = 0; i < losses.size(); ++i) {
    if (op.targets.as<int32_t>()[i] < 0) continue;
    const int32_t source = op.sources.as<int32_t>()[op.rows.sequence(i)];
    CHECK(source >= 0 && source < op.sums.cols(), "source_losses.sources: source ", source, " of ", op.sums.cols());
    sums[source] += std::nearbyint(losses[i] * 0x1p24) / 0x1p24;
    sums[op.sums.cols() + source] += 1;
  }
}

}  // namespace athanor
