// Which weights an optimizer updates by which rule: the run's own, or that of the first group whose pattern and role
// fit the name of a weight in files. Everything here is resolved before a run starts.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "param/param_store.h"

namespace athanor {

enum class RuleName : uint8_t { adamw, adam, sgd, lion, muon, normuon };
constexpr const char* kRuleNames[] = {"adamw", "adam", "sgd", "lion", "muon", "normuon"};
constexpr bool takes_matrices(RuleName rule) { return rule == RuleName::muon || rule == RuleName::normuon; }

enum class MuonScale : uint8_t { original, match_rms, spectral };
enum class MuonCoefficients : uint8_t { quintic, polar_express };

// The rule of a group, with everything that it takes.
struct RuleOptions {
  RuleName rule = RuleName::adamw;
  double lr_factor = 1, weight_decay = 0;
  bool cautious = false;                 // decay only where the step does not move a weight away from zero
  double beta1 = 0, beta2 = 0, eps = 0;  // adamw, adam, lion; of normuon beta2 alone
  double momentum = 0;                   // sgd, muon, normuon
  bool nesterov = false;                 // sgd, muon, normuon
  MuonScale scale = MuonScale::match_rms;
  MuonCoefficients coefficients = MuonCoefficients::quintic;
  DType m = DType::f32, v = DType::f32;  // what moments are kept in: f32 or bf16
  uint64_t seed = 0;                     // of stochastic rounding
  bool operator==(const RuleOptions&) const = default;
};

// What is not given is the run's own.
struct ParamGroup {
  std::string match = "*";   // of names in files: * stands for any characters, ? for one
  std::optional<Role> role;  // of that role alone
  std::optional<RuleName> rule;
  double lr_factor = 1;
  std::optional<double> weight_decay, beta1, beta2, eps, momentum;
  bool frozen = false;
};
// What groups a run has behind those that it is told: vectors do not decay, and Muon is for matrices alone.
std::vector<ParamGroup> default_groups(RuleName);

struct OptimizerOptions {
  RuleName rule = RuleName::adamw;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // adamw, adam
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
  double normuon_beta2 = 0.95;  // muon's options are normuon's too
  std::vector<ParamGroup> groups = default_groups(RuleName::adamw);
};

// By ParamStore::pieces(): the number of the group, or -1. Throws an Error for a pattern that matches nothing, and for
// weights that their rule cannot update. Freezes those of frozen groups.
std::vector<int> assign_groups(const OptimizerOptions&, ParamStore&);
RuleOptions rule_options(const OptimizerOptions&, int group);
// One line for each group that has weights: their names, with * for the numbers of layers, and how they are updated.
std::vector<std::string> describe_groups(const OptimizerOptions&, ParamStore&);

}  // namespace athanor
