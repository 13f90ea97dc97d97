#include "convert/sparsity.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <tuple>

namespace athanor {

std::optional<Sparsity> sparsity_named(const std::string& text) {
  if (text == "2:4") return Sparsity{.pattern = PrunePattern::two_of_four};
  char* end = nullptr;
  const double share = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(share > 0 && share < 1)) return std::nullopt;
  return Sparsity{.share = share};
}

std::vector<uint8_t> mask_of_smallest(std::span<const double> scores, size_t count) {
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto middle = order.begin() + std::ptrdiff_t(count);
  std::nth_element(order.begin(), middle, order.end(),
                   [&](size_t a, size_t b) { return std::tie(scores[a], a) < std::tie(scores[b], b); });
  std::vector<uint8_t> mask(scores.size());
  std::for_each(order.begin(), middle, [&](size_t i) { mask[i] = 1; });
  return mask;
}

}  // namespace athanor
