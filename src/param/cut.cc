#include "param/cut.h"

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
  for (const int64_t length : spec.cut.parts) {
    if (length % (count * spec.cut.whole) != 0)
      throw Error(cat(spec.name, ": ", length / spec.cut.whole, " pieces of ", spec.cut.whole, " cannot be shared by ",
                      count, " ranks; take a number that divides ", length / spec.cut.whole));
    const int64_t share = length / count;
    ranges.push_back({at + index * share, at + (index + 1) * share});
    at += length;
  }
  return ranges;
}

}  // namespace athanor
