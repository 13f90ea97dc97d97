// Parameter groups: each weight is updated by the rule of the first group whose pattern and role match its name in
// checkpoint files, or by the run's rule if no group matches. All groups are resolved before training starts.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "param/param_store.h"

namespace athanor {

constexpr const char* kRuleNames[] = {
    "adamw",     "adam",        "sgd",        "lion", "muon", "normuon", "adamw_8bit", "lamb", "schedule_free_adamw",
    "adafactor", "onebit_adam", "onebit_lamb"};
constexpr bool has_8bit_moments(RuleName rule) { return rule == RuleName::adamw_8bit; }
constexpr bool takes_matrices(RuleName rule) { return rule == RuleName::muon || rule == RuleName::normuon; }

// A group's update rule with all its hyperparameters.
struct RuleOptions {
  RuleName rule = RuleName::adamw;
  double lr_factor = 1, weight_decay = 0;
  bool cautious = false;                 // apply decay only if the step does not move a weight away from zero
  double beta1 = 0, beta2 = 0, eps = 0;  // all rules except sgd and muon; eps: not lion; normuon uses only beta2
  double momentum = 0;                   // sgd, muon, normuon
  bool nesterov = false;                 // sgd, muon, normuon
  double update_clip_threshold = 0;      // adamw: maximum RMS of a tensor's update; 0 = off
  MuonScale scale = MuonScale::match_rms;
  MuonCoefficients coefficients = MuonCoefficients::quintic;
  int64_t elements_at_once = 0;          // see OptimizerOptions::muon_elements_at_once
  DType m = DType::f32, v = DType::f32;  // dtype of the moments: f32 or bf16
  int64_t freeze_step = 0;               // compresses(): number of steps before the variance is frozen
  uint64_t seed = 0;                     // seed of stochastic rounding
  bool operator==(const RuleOptions&) const = default;
};

// Fields without a value take the run's options.
struct ParamGroup {
  std::string match = "*";   // pattern for names in checkpoint files: * matches any characters, ? one
  std::optional<Role> role;  // matches only weights of this role
  std::optional<RuleName> rule;
  double lr_factor = 1;
  std::optional<double> weight_decay, beta1, beta2, eps, momentum;
  bool frozen = false;
};
// Groups appended to the configured ones: vectors have no decay and no trust ratios; Muon updates only matrices.
std::vector<ParamGroup> default_groups(RuleName);

struct OptimizerOptions {
  RuleName rule = RuleName::adamw;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // adamw, adam, lamb, schedule_free_adamw
  double weight_decay = 0.1;
  bool cautious_weight_decay = false;
  DType m = DType::f32, v = DType::f32;
  uint64_t seed = 0;
  double sgd_momentum = 0.9;
  bool sgd_nesterov = false;
  double lion_beta1 = 0.9, lion_beta2 = 0.99;
  double muon_momentum = 0.95;
  bool muon_nesterov = true;
  MuonScale muon_scale = MuonScale::match_rms;
  MuonCoefficients muon_coefficients = MuonCoefficients::quintic;
  int64_t muon_elements_at_once = 4 << 20;  // max elements that a rank orthogonalizes together, at least one tensor
  double normuon_beta2 = 0.95;              // normuon also uses muon's options
  int64_t min_8bit_size = 4096;      // has_8bit_moments(): minimum number of elements of a matrix with 8-bit moments
  double update_clip_threshold = 0;  // adamw: maximum RMS of a tensor's update; 0 = off
  int64_t freeze_step = 1;           // compresses(): steps with uncompressed gradients, before the variance is frozen
  double qk_clip_threshold = 0;      // heads with a larger attention logit are scaled down; 0 = off
  double ema_decay = 0;              // decay of the moving average of the weights; 0 = no average
  int64_t tail_average_start = 0;    // updates before the equal-weight average of the weights starts; 0 = no average
  std::vector<ParamGroup> groups = default_groups(RuleName::adamw);
};

// Returns for each of ParamStore::pieces() the index of its group, or -1. Freezes the weights of frozen groups. Throws
// an Error for a pattern that matches nothing and for weights that their rule cannot update.
std::vector<int> assign_groups(const OptimizerOptions&, ParamStore&);
RuleOptions rule_options(const OptimizerOptions&, int group);
// Returns the rule of a weight: its group's, or adamw for a weight that cannot have 8-bit moments. `slice`: part of
// parameter `spec`.
RuleOptions rule_of(const OptimizerOptions&, int group, const ParamSpec& spec, const HfSlice& slice);
// Returns one line per group that has weights, except those that adapters leave constant: their names, with * for layer
// indices, and their update rule.
std::vector<std::string> describe_groups(const OptimizerOptions&, ParamStore&);
// Explains why no weight has 8-bit moments although the optimizer supports them; empty otherwise.
std::string why_no_8bit_moments(const OptimizerOptions&, ParamStore&);

}  // namespace athanor
