// Published scaling laws: compute-optimal model size and number of training tokens.
#pragma once
#include <span>
#include <string_view>

namespace athanor {

// Model size and number of training tokens for a budget of `flops`, at 6 FLOPs per parameter and token.
struct Allocation {
  double parameters = 0, tokens = 0;
  double flops() const { return 6 * parameters * tokens; }
};

// L(N, D) = e + a / N^alpha + b / D^beta [Hoffmann et al. 2022, eq. 2], in nats per token of the paper's data and
// vocabulary, so use it to compare allocations, not models.
struct LossLaw {
  std::string_view name;
  double e, a, b, alpha, beta;

  double loss(double parameters, double tokens) const;
  Allocation best_for_flops(double flops) const;            // [eq. 4]
  Allocation best_for_parameters(double parameters) const;  // the compute budget for which this size is optimal
};

// The laws of Hoffmann et al. 2022, approach 3, and of its re-fit by Besiroglu et al. 2024, which agrees with the other
// two approaches of Hoffmann et al. and with the model size and number of tokens of Chinchilla.
std::span<const LossLaw> loss_laws();

// Kaplan et al. 2020, appendix A: N = 1.3e9 C^0.73, with C in PF-days and N without embeddings. Superseded: it scales
// models up too fast.
Allocation kaplan_best_for_flops(double flops);

// Allocation with twenty tokens per parameter [Hoffmann et al. 2022, approaches 1 and 2].
Allocation twenty_tokens_for_flops(double flops);
inline constexpr double kTokensPerParameter = 20;

}  // namespace athanor
