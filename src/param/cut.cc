#include "param/cut.h"

#include <algorithm>

#include "base/error.h"

namespace athanor {

std::vector<AxisRange> cut(const ParamSpec& spec, int64_t count, int64_t index) {
  CHECK(0 <= index && index < count, spec.name, ": share ", index, " of ", count);
  if (spec.cut.padded_to > 0) {
    const int64_t length = spec.cut.parts.at(0);
    return {{length * index / count, length * (index + 1) / count}};
  }
  std::vector<AxisRange> ranges;
  int64_t at = 0;
  for (size_t part = 0; part < spec.cut.parts.size(); ++part) {
    const int64_t length = spec.cut.parts[part], pieces = length / spec.cut.whole;
    const bool repeats = spec.cut.repeated >= 0 && int64_t(part) >= spec.cut.repeated && count % pieces == 0;
    if (pieces % count != 0 && !repeats)
      throw Error(cat(spec.name, ": ", pieces, " pieces of ", spec.cut.whole, " cannot be shared by ", count,
                      " ranks; take a number that divides ", pieces));
    const int64_t shares = repeats ? std::min(count, pieces) : count, share = length / shares;
    const int64_t mine = index * shares / count;
    ranges.push_back({at + mine * share, at + (mine + 1) * share, int(count / shares)});
    at += length;
  }
  return ranges;
}

}  // namespace athanor
