// Sums of products of 8-bit numbers as Hopper's tensor cores form them: addends, the sum so far among them, are cut to
// the unit of the largest, of which `bits` bits are kept. [DeepSeek-AI 2024, section 3.3.2]
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace emu {

// sums[i] += term(0, i) + ... + term(depth - 1, i)
template <class Term>
void add_cut(float* sums, size_t count, uint32_t depth, int bits, const Term& term) {
  std::vector<float> plain(sums, sums + count), most(count);
  for (size_t i = 0; i < count; ++i) most[i] = std::abs(sums[i]);
  for (uint32_t p = 0; p < depth; ++p) {
    for (size_t i = 0; i < count; ++i) {
      const float x = term(p, i), size = std::abs(x);
      plain[i] += x;
      most[i] = most[i] < size ? size : most[i];
    }
  }
  std::vector<double> unit(count), units(count);
  for (size_t i = 0; i < count; ++i) {
    int exponent = 0;
    if (std::isfinite(plain[i])) std::frexp(most[i], &exponent);
    unit[i] = std::ldexp(1., exponent - bits), units[i] = std::ldexp(1., bits - exponent);
  }
  std::vector<int32_t> total(count);
  const auto cut = [&](float x, size_t i) { return std::isfinite(plain[i]) ? int32_t(double(x) * units[i]) : 0; };
  for (size_t i = 0; i < count; ++i) total[i] = cut(sums[i], i);
  for (uint32_t p = 0; p < depth; ++p)
    for (size_t i = 0; i < count; ++i) total[i] += cut(term(p, i), i);
  for (size_t i = 0; i < count; ++i) sums[i] = std::isfinite(plain[i]) ? float(total[i] * unit[i]) : plain[i];
}

}  // namespace emu
