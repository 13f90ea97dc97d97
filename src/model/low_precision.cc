#include "model/low_precision.h"

#include <fnmatch.h>

#include <algorithm>

namespace athanor {
namespace {

constexpr int64_t kMultiple = 16;  // tensor cores read rows of FP8 values in 16-byte units

bool fits(const std::string& pattern, const ParamSpec& spec) {
  return std::any_of(spec.slices.begin(), spec.slices.end(),
                     [&](const HfSlice& slice) { return ::fnmatch(pattern.c_str(), slice.name.c_str(), 0) == 0; });
}

[[noreturn]] void matches_nothing(const std::string& pattern, const std::vector<ParamSpec>& specs) {
  const auto linear = std::ranges::find_if(specs, is_linear);
  throw Error(cat("fp8.exclude: \"", pattern, "\" matches no linear layer of a block, such as ",
                  linear->slices.front().name, "; * stands for any text"),
              Exit::usage);
}

// Number of linear layers in blocks, by the reason why they are quantized or not.
struct Counts {
  int ranks = 1;
  int64_t all = 0, chosen = 0, at_ends = 0, named = 0, small = 0, odd = 0;
  std::string reasons() const {
    std::string text;
    const auto add = [&](int64_t count, const std::string& why) {
      if (count > 0) text += cat("; ", count, " in bf16, ", why);
    };
    add(at_ends, "of the first and last blocks");
    add(named, "by fp8.exclude");
    add(small, "below fp8.min_size");
    add(odd,
        cat("of sizes that are no multiple of ", kMultiple, ranks > 1 ? cat(" on each of ", ranks, " ranks") : ""));
    return text;
  }
};

}  // namespace

std::string choose_low_precision(Model& model, Recipe& recipe, const HighLayers& high, int64_t tokens,
                                 const TensorRank& part) {
  const std::vector<ParamSpec>& specs = model.params().specs();
  const int64_t blocks = model.config().num_hidden_layers;
  const auto is_odd = [&](const ParamSpec& spec) {
    const Shape shape = place(spec, part, 0).shape;
    return shape[0] % kMultiple != 0 || shape[1] % kMultiple != 0;
  };
  Counts counts{.ranks = part.ranks};
  std::vector<bool> used(high.match.size());
  for (int id = 0; id < int(specs.size()); ++id) {
    const ParamSpec& spec = specs[size_t(id)];
    if (!is_linear(spec)) continue;
    const int64_t block = spec.unit - 1, rows = spec.shape[0], cols = spec.shape[1];
    bool named = false;
    for (size_t i = 0; i < high.match.size(); ++i)
      if (fits(high.match[i], spec)) named = used[i] = true;
    int64_t Counts::*const fate = block < high.first || block >= blocks - high.last ? &Counts::at_ends
                                  : named                                           ? &Counts::named
                                  : std::min(rows, cols) < high.least               ? &Counts::small
                                  : is_odd(spec)                                    ? &Counts::odd
                                                                                    : &Counts::chosen;
    ++counts.all, ++(counts.*fate);
    if (fate == &Counts::chosen) model.params().read_in_low_precision({id});
  }
  for (size_t i = 0; i < used.size(); ++i)
    if (!used[i]) matches_nothing(high.match[i], specs);
  const char* bits = recipe.four_bits() ? "4 bits" : "8 bits";
  if (counts.chosen == 0)
    throw Error(cat("precision: ", recipe.name, " leaves none of the ", counts.all, " linear layers in ", bits,
                    counts.reasons(), "; use precision bf16"),
                Exit::usage);
  std::string line =
      cat(recipe.name, ": ", counts.chosen, " of ", counts.all, " linear layers in ", bits, counts.reasons());
  if (has_experts(model.config().model_type)) line += "; experts and routers in bf16";
  if (!high.head) {
    const bool odd = is_odd(model.params().spec(model.head()));  // rows are padded to a multiple of 64
    if (!odd) model.params().read_in_low_precision(model.head());
    line += odd ? cat("; the head in bf16, of a size that is no multiple of ", kMultiple) : cat("; the head, too");
  }
  if (tokens % kMultiple != 0 && recipe.rule(Operand::weight_x).scaling != Scaling::none) {
    for (const Operand operand : {Operand::weight_dy, Operand::weight_x}) recipe.linear[size_t(operand)] = {};
    line +=
        cat("; gradients of weights in bf16: the ", tokens, " tokens of a micro-batch are no multiple of ", kMultiple);
  }
  return line;
}

}  // namespace athanor
