#include "data/held_out.h"

#include <algorithm>

#include "base/error.h"

namespace athanor {

HeldOut held_out(const Dataset& data, int64_t most) {
  CHECK(most >= 0, most, " windows");
  HeldOut chosen{.windows = {}, .all = data.windows()};
  const int64_t total = most > 0 ? std::min(most, data.windows()) : data.windows();
  std::vector<int64_t> counts(size_t(data.sources()));
  for (int64_t s = 0; s < data.sources(); ++s) counts[size_t(s)] = data.windows(s);
  if (total < data.windows()) {
    std::fill(counts.begin(), counts.end(), 0);
    for (int64_t n = 0; n < total; ++n) ++counts[size_t(data.locate({.shuffled = false}, n).source)];
  }
  for (int64_t s = 0; s < data.sources(); ++s) {
    const int64_t all = data.windows(s), count = std::min(counts[size_t(s)], all);
    // Midpoints of `count` equal intervals; both terms stay far below 2^63.
    for (int64_t i = 0; i < count; ++i)
      chosen.windows.push_back({s, all / count * i + (all % count * (2 * i + 1) + all / count * count) / (2 * count)});
  }
  return chosen;
}

}  // namespace athanor
