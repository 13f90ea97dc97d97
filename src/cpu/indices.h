// Checks indices before an op uses them.
#pragma once
#include "base/error.h"
#include "cpu/chunks.h"

namespace athanor {

// Returns the values of t [n] i32. Throws an Error that names the first one outside [least, limit).
inline const int32_t* checked_indices(const char* op, const char* name, const Tensor& t, int64_t limit,
                                      int64_t least = 0) {
  const int32_t* index = flat<int32_t>(t);
  const int64_t n = t.numel();
  for (int64_t i = 0; i < n; ++i)
    if (index[i] < least || index[i] >= limit)
      throw Error(cat(op, ": ", name, "[", i, "] = ", index[i], " is outside the table of ", limit, " rows"));
  return index;
}

}  // namespace athanor
