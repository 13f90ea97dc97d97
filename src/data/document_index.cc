#include "data/document_index.h"

#include <algorithm>

#include "base/error.h"

namespace athanor {

namespace {

// Checks a value read from the index again: it was valid at open, but the file may have changed since.
int64_t checked(int64_t value, int64_t limit, const StableFile& file) {
  if (value < 0 || value > limit)
    throw Error(cat(file.path(), ": a token or document count is ", value, ", expected 0 to ", limit,
                    " as when the file was opened: shards must not change during a run"));
  return value;
}

}  // namespace

int64_t DocumentIndex::end(int64_t i) const {
  CHECK(i >= 0 && i < count_, "document ", i, " of ", count_);
  const auto value = file_.value<int64_t>(ends_ + 8 * i);
  if (sequences_.item_size == 0) return value;
  if (checked(value, sequences_.sequences, file_) == sequences_.sequences) return sequences_.tokens;
  return file_.value<int64_t>(sequences_.pointers + 8 * value) / sequences_.item_size;
}

std::vector<int64_t> DocumentIndex::ends_within(int64_t at, int64_t n) const {
  int64_t low = 0, high = count_;  // the first document that ends after `at` is in [low, high]
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (end(middle) > at)
      high = middle;
    else
      low = middle + 1;
  }
  std::vector<int64_t> ends;
  for (; low < count_; ++low) {
    const int64_t e = end(low);
    if (e > at + n) break;
    if (ends.empty() || ends.back() != e) ends.push_back(e);
  }
  return ends;
}

void DocumentStatistics::add(int64_t length) {
  shortest = count == 0 ? length : std::min(shortest, length);
  longest = std::max(longest, length);
  tokens += length;
  ++count;
}

DocumentStatistics DocumentIndex::statistics() const {
  DocumentStatistics all;
  ValueRun<int64_t> ends(file_, ends_, count_), pointers(file_, sequences_.pointers, sequences_.sequences);
  int64_t begin = 0;
  for (int64_t i = 0; i < count_; ++i) {
    int64_t end = ends[i];
    if (sequences_.item_size > 0)
      end = checked(end, sequences_.sequences, file_) == sequences_.sequences ? sequences_.tokens
                                                                              : pointers[end] / sequences_.item_size;
    all.add(end - begin);
    begin = end;
  }
  return all;
}

}  // namespace athanor
