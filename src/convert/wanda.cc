#include "convert/wanda.h"

#include <cmath>

#include "base/error.h"

namespace athanor {

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
