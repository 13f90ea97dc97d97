#include "metrics/scaling_law.h"

#include <array>
#include <cmath>

namespace athanor {
namespace {

// [Hoffmann et al. 2022, eq. 10], [Besiroglu et al. 2024, table 1]
constexpr std::array<LossLaw, 2> kLaws = {{
    {"Hoffmann et al. 2022, approach 3", 1.69, 406.4, 410.7, 0.34, 0.28},
    {"Besiroglu et al. 2024", 1.8172, 482.01, 2085.43, 0.3478, 0.3658},
}};

constexpr double kPfDay = 1e15 * 86400;

}  // namespace

double LossLaw::loss(double parameters, double tokens) const {
  return e + a / std::pow(parameters, alpha) + b / std::pow(tokens, beta);
}

Allocation LossLaw::best_for_flops(double flops) const {
  const double g = std::pow(alpha * a / (beta * b), 1 / (alpha + beta));
  const double parameters = g * std::pow(flops / 6, beta / (alpha + beta));
  return {parameters, flops / 6 / parameters};
}

Allocation LossLaw::best_for_parameters(double parameters) const {
  const double g = std::pow(alpha * a / (beta * b), 1 / (alpha + beta));
  return {parameters, std::pow(parameters / g, (alpha + beta) / beta) / parameters};
}

std::span<const LossLaw> loss_laws() { return kLaws; }

Allocation kaplan_best_for_flops(double flops) {
  const double parameters = 1.3e9 * std::pow(flops / kPfDay, 0.73);
  return {parameters, flops / 6 / parameters};
}

Allocation twenty_tokens_for_flops(double flops) {
  const double parameters = std::sqrt(flops / 6 / kTokensPerParameter);
  return {parameters, kTokensPerParameter * parameters};
}

}  // namespace athanor
