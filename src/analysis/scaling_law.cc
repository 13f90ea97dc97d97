#include "analysis/scaling_law.h"

#include <array>
#include <cmath>

namespace athanor {
namespace {

// Constants of [Hoffmann et al. 2022, eq. 10] with the digits of its TeX source, as reported by Besiroglu et al. 2024:
// the printed 0.34 and 0.28 give 44 B tokens for 1 B parameters, where the paper's table A3 has 27.1 B and these digits
// give 29.2 B; and of [Besiroglu et al. 2024, table 1].
constexpr std::array<LossLaw, 2> kLaws = {{
    {"Hoffmann et al. 2022, approach 3", 1.6934, 406.4, 410.7, 0.3392, 0.2849},
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
