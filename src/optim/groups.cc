#include "optim/groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>

#include "base/edit_distance.h"
#include "base/error.h"

namespace athanor {
namespace {

const char* name_of(Role role) {
  constexpr const char* kNames[] = {"matrix", "embedding", "vector"};
  return kNames[size_t(role)];
}

bool fits(const ParamGroup& group, const std::string& name, Role role) {
  return (!group.role || *group.role == role) && ::fnmatch(group.match.c_str(), name.c_str(), 0) == 0;
}

// Returns sequences of a name's dot-separated components, longest first: suggestions for a mistyped pattern.
std::vector<std::string> parts_of(const std::string& name) {
  std::vector<size_t> starts{0};
  for (size_t i = 0; i < name.size(); ++i)
    if (name[i] == '.') starts.push_back(i + 1);
  starts.push_back(name.size() + 1);
  std::vector<std::string> parts;
  for (size_t length = starts.size() - 1; length > 0; --length)
    for (size_t first = 0; first + length < starts.size(); ++first)
      parts.push_back(name.substr(starts[first], starts[first + length] - 1 - starts[first]));
  return parts;
}

[[noreturn]] void matches_nothing(size_t number, const ParamGroup& group, const ParamStore& params) {
  std::string wanted = group.match, best = "none";
  std::erase_if(wanted, [](char c) { return c == '*' || c == '?'; });
  while (wanted.starts_with('.')) wanted.erase(0, 1);
  while (wanted.ends_with('.')) wanted.pop_back();
  size_t least = SIZE_MAX;
  for (const auto& piece : params.pieces())
    for (const std::string& part : parts_of(piece.slice->name))
      if (const size_t d = edit_distance(wanted, part); d < least) least = d, best = piece.slice->name;
  throw Error(
      cat("param_groups[", number, "]: match \"", group.match, "\"",
          group.role ? cat(" of role ", name_of(*group.role)) : "", " matches no parameter; the nearest is ", best),
      Exit::usage);
}

// Consecutive pieces() of one parameter are one tensor in memory, which can only be frozen or trained as a whole.
void freeze(const std::vector<int>& groups, const OptimizerOptions& options, ParamStore& params) {
  const auto pieces = params.pieces();
  const auto frozen = [&](size_t i) { return groups[i] >= 0 && options.groups[size_t(groups[i])].frozen; };
  for (size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
    std::optional<size_t> one, other;  // first frozen and first trained piece
    for (; end < pieces.size() && pieces[end].param == pieces[begin].param; ++end) {
      std::optional<size_t>& first = frozen(end) ? one : other;
      if (!first) first = end;
    }
    if (one && other)
      throw Error(cat("param_groups[", groups[*one], "]: ", pieces[*one].slice->name, " and ",
                      pieces[*other].slice->name, " are one tensor in memory; freeze both"),
                  Exit::usage);
    if (one) params.freeze({pieces[begin].param});
  }
}

std::string without_numbers(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const bool digit = std::isdigit(uint8_t(c)) && (out.ends_with('.') || out.ends_with(".*"));
    if (!digit)
      out += c;
    else if (out.ends_with('.'))
      out += '*';
  }
  return out;
}

}  // namespace

std::vector<ParamGroup> default_groups(RuleName rule) {
  if (rule == RuleName::lamb) return {{.role = Role::vector, .rule = RuleName::adamw, .weight_decay = 0.0}};
  if (rule == RuleName::onebit_lamb)
    return {{.role = Role::vector, .rule = RuleName::onebit_adam, .weight_decay = 0.0}};
  if (!takes_matrices(rule)) return {{.role = Role::vector, .weight_decay = 0.0}};
  return {{.role = Role::embedding, .rule = RuleName::adamw},
          {.role = Role::vector, .rule = RuleName::adamw, .weight_decay = 0.0}};
}

std::vector<int> assign_groups(const OptimizerOptions& options, ParamStore& params) {
  const auto pieces = params.pieces();
  std::vector<int> groups(pieces.size(), -1);
  std::vector<bool> fitting(options.groups.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const ParamSpec& spec = params.specs()[size_t(pieces[i].param)];
    const Role role = spec.role;
    for (size_t g = 0; g < options.groups.size(); ++g) {
      if (!fits(options.groups[g], pieces[i].slice->name, role)) continue;
      fitting[g] = true;
      if (groups[i] < 0) groups[i] = int(g);
    }
    const RuleOptions rule = rule_options(options, groups[i]);
    const std::string where = groups[i] < 0 ? "optimizer" : cat("param_groups[", groups[i], "]");
    const bool constant = !spec.trainable || (groups[i] >= 0 && options.groups[size_t(groups[i])].frozen);
    if (takes_matrices(rule.rule) && role != Role::matrix && !constant)
      throw Error(cat(where, ": ", kRuleNames[size_t(rule.rule)], " updates matrices of hidden layers; ",
                      pieces[i].slice->name, " is ", role == Role::vector ? "a vector" : "an embedding",
                      ": set another optimizer for it in param_groups"),
                  Exit::usage);
  }
  for (size_t g = 0; g < fitting.size(); ++g)
    if (!fitting[g] && options.groups[g].match != "*") matches_nothing(g, options.groups[g], params);
  freeze(groups, options, params);
  return groups;
}

RuleOptions rule_options(const OptimizerOptions& o, int number) {
  const ParamGroup group = number < 0 ? ParamGroup{} : o.groups[size_t(number)];
  const RuleName rule = group.rule.value_or(o.rule);
  const bool lion = rule == RuleName::lion, muon = takes_matrices(rule),
             averages = !muon && rule != RuleName::sgd && rule != RuleName::adafactor;
  RuleOptions r{.rule = rule, .lr_factor = group.lr_factor, .m = o.m, .seed = o.seed};
  r.cautious = o.cautious_weight_decay;
  r.weight_decay = group.weight_decay.value_or(o.weight_decay);
  if (averages) {
    r.beta1 = group.beta1.value_or(lion ? o.lion_beta1 : o.beta1);
    r.beta2 = group.beta2.value_or(lion ? o.lion_beta2 : o.beta2);
  } else if (rule != RuleName::adafactor) {
    r.momentum = group.momentum.value_or(muon ? o.muon_momentum : o.sgd_momentum);
    r.nesterov = muon ? o.muon_nesterov : o.sgd_nesterov;
  }
  if (averages && !lion) r.eps = group.eps.value_or(o.eps), r.v = o.v;
  if (rule == RuleName::adamw) r.update_clip_threshold = o.update_clip_threshold;
  if (rule == RuleName::normuon) r.beta2 = group.beta2.value_or(o.normuon_beta2);
  if (compresses(rule)) r.freeze_step = o.freeze_step;
  if (muon) r.scale = o.muon_scale, r.coefficients = o.muon_coefficients, r.elements_at_once = o.muon_elements_at_once;
  return r;
}

// Quantized moments share scales in blocks that start with the tensor. A tensor that ends within a block, or follows
// such a tensor in memory, has no 8-bit moments.
RuleOptions rule_of(const OptimizerOptions& o, int group, const ParamSpec& spec, const HfSlice& slice) {
  RuleOptions rule = rule_options(o, group);
  if (!has_8bit_moments(rule.rule)) return rule;
  const int64_t size = slice.shape.numel();
  const bool blocks = size % kMomentBlock == 0 && slice.offset % kMomentBlock == 0;
  if (spec.role != Role::matrix || size < o.min_8bit_size || !blocks) rule.rule = RuleName::adamw;
  return rule;
}

std::vector<std::string> describe_groups(const OptimizerOptions& options, ParamStore& params) {
  const std::vector<int> groups = assign_groups(options, params);
  const auto pieces = params.pieces();
  std::vector<std::string> lines;
  for (int g = -1; g < int(options.groups.size()); ++g) {
    std::vector<std::pair<std::string, int>> names;  // in model order
    int64_t elements = 0, quantized = 0;
    const bool frozen = g >= 0 && options.groups[size_t(g)].frozen;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const ParamSpec& spec = params.specs()[size_t(pieces[i].param)];
      if (groups[i] != g || !(spec.trainable || frozen)) continue;
      const HfSlice& slice = *pieces[i].slice;
      elements += slice.shape.numel();
      const RuleOptions own = rule_of(options, g, spec, slice);
      if (has_8bit_moments(own.rule)) quantized += slice.shape.numel();
      const std::string name = without_numbers(pieces[i].slice->name);
      const auto known = std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.first == name; });
      if (known == names.end())
        names.emplace_back(name, 1);
      else
        ++known->second;
    }
    if (names.empty()) continue;
    const RuleOptions rule = rule_options(options, g);
    std::string line = g < 0 ? "no group" : cat("param_groups[", g, "]");
    if (frozen)
      line += ": frozen";
    else
      line += cat(": ", kRuleNames[size_t(rule.rule)], ", learning rate x ", rule.lr_factor, ", weight decay ",
                  rule.weight_decay);
    line += cat(", ", elements, " parameters");
    if (!frozen && has_8bit_moments(rule.rule)) line += cat(" (", quantized, " with moments of 8 bits)");
    line += ": ";
    for (size_t i = 0; i < names.size(); ++i)
      line += cat(i ? ", " : "", names[i].first, names[i].second > 1 ? cat(" (", names[i].second, ")") : "");
    lines.push_back(std::move(line));
  }
  return lines;
}

std::string why_no_8bit_moments(const OptimizerOptions& options, ParamStore& params) {
  const std::vector<int> groups = assign_groups(options, params);
  const auto pieces = params.pieces();
  const HfSlice* largest = nullptr;  // largest matrix for which the group requests 8-bit moments
  std::optional<RuleName> rule;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const ParamSpec& spec = params.specs()[size_t(pieces[i].param)];
    const HfSlice& slice = *pieces[i].slice;
    const RuleName of_group = rule_options(options, groups[i]).rule;
    if (!spec.trainable || !has_8bit_moments(of_group)) continue;
    if (has_8bit_moments(rule_of(options, groups[i], spec, slice).rule)) return "";
    rule = of_group;
    if (spec.role == Role::matrix && (!largest || slice.shape.numel() > largest->shape.numel())) largest = &slice;
  }
  if (!rule) return "";
  const std::string reason = !largest ? "and none of its weights is one"
                             : largest->shape.numel() < options.min_8bit_size
                                 ? cat("and the largest, ", largest->name, " ", largest->shape, ", has ",
                                       largest->shape.numel(), " elements; lower adam.min_8bit_size")
                                 : cat("and the largest, ", largest->name, " ", largest->shape,
                                       ", is not; choose sizes that are multiples of ", kMomentBlock);
  return cat("optimizer ", kRuleNames[size_t(*rule)],
             ": no weight has 8-bit moments, so it updates all of them as adamw does, with moments of ", options.m,
             " and ", options.v, "; it keeps 8-bit moments of hidden layers' matrices of at least ",
             options.min_8bit_size, " elements (adam.min_8bit_size) that are whole blocks of ", kMomentBlock, ", ",
             reason);
}

}  // namespace athanor
