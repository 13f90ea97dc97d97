#include "convert/floats.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/half.h"

namespace athanor {

void to_floats(std::span<const std::byte> bytes, DType dtype, std::vector<float>& out) {
  out.resize(bytes.size() / size_of(dtype));
  by_float(dtype, [&]<class T>() {
    for (size_t i = 0; i < out.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      out[i] = to_float(value);
    }
  });
}

int64_t count_non_finite(std::span<const std::byte> bytes, DType dtype) {
  int64_t count = 0;
  by_float(dtype, [&]<class T>() {
    for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof(T));
      count += !std::isfinite(to_float(value));
    }
  });
  return count;
}

void from_floats(std::span<const float> values, DType dtype, std::string_view what, std::vector<std::byte>& out) {
  out.resize(values.size() * size_of(dtype));
  by_float(dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) {
      const T value = from_float<T>(values[i]);
      if (std::isfinite(values[i]) && !std::isfinite(to_float(value)))
        throw Error(cat(what, ": the value ", values[i], " is too large for ", dtype, "; take bf16 or f32"));
      std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
}

std::vector<float> transposed(std::span<const float> matrix, int64_t rows) {
  const int64_t columns = int64_t(matrix.size()) / rows;
  std::vector<float> out(matrix.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) out[size_t(c * rows + r)] = matrix[size_t(r * columns + c)];
  return out;
}

}  // namespace athanor
