#include "convert/wanda.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace athanor {
namespace {

// The smallest `count` of the weights [begin, end) become zero.
void prune_smallest(std::span<float> row, std::span<const double> squares, size_t begin, size_t end, size_t count) {
  std::vector<size_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  std::ranges::stable_sort(order, {}, [&](size_t i) { return double(row[i]) * double(row[i]) * squares[i]; });
  for (size_t i = 0; i < count; ++i) row[order[i]] = 0;
}

}  // namespace

std::optional<WandaPruning> wanda_named(const std::string& text) {
  if (text == "2:4") return WandaPruning{.pattern = PrunePattern::two_of_four};
  char* end = nullptr;
  const double share = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(share > 0 && share < 1)) return std::nullopt;
  return WandaPruning{.sparsity = share};
}

void prune_row(std::span<float> row, std::span<const double> squares, const WandaPruning& pruning) {
  CHECK(squares.size() == row.size(), squares.size(), " inputs of a row of ", row.size());
  constexpr size_t kGroup = 4;
  if (pruning.pattern == PrunePattern::unstructured)
    return prune_smallest(row, squares, 0, row.size(), size_t(std::llround(pruning.sparsity * double(row.size()))));
  CHECK(row.size() % kGroup == 0, "a row of ", row.size(), " weights in groups of ", kGroup);
  for (size_t at = 0; at < row.size(); at += kGroup) prune_smallest(row, squares, at, at + kGroup, kGroup / 2);
}

}  // namespace athanor
