#include "convert/sparsity.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <tuple>

#include "base/error.h"

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

void prune_by_wanda(std::span<float> values, std::span<const float> squares, const Sparsity& sparsity) {
  const size_t in = squares.size();
  const bool groups = sparsity.pattern == PrunePattern::two_of_four;
  const size_t compared = groups ? 4 : in;  // number of weights ranked together
  const size_t count = groups ? 2 : size_t(std::llround(sparsity.share * double(in)));
  CHECK(in > 0 && values.size() % in == 0 && in % compared == 0, in, " inputs of ", values.size(), " weights");
  std::vector<double> scores(compared);
  for (size_t at = 0; at < values.size(); at += compared) {
    const std::span<float> w = values.subspan(at, compared);
    for (size_t i = 0; i < compared; ++i) scores[i] = double(w[i]) * double(w[i]) * double(squares[at % in + i]);
    const std::vector<uint8_t> mask = mask_of_smallest(scores, count);
    for (size_t i = 0; i < compared; ++i)
      if (mask[i]) w[i] = 0;
  }
}

}  // namespace athanor
