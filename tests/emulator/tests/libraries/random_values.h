// Seeded test data of any element type, and reading it back.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "libraries/element.h"

namespace emu::fakes {

// 256-byte aligned elements of one type, as device memory would be.
class Values {
 public:
  Values() = default;
  Values(Element type, int64_t count)
      : type_(type), count_(count), memory_(allocate(static_cast<size_t>(count) * element_bytes(type))) {
    std::memset(memory_.get(), 0, static_cast<size_t>(count) * element_bytes(type));
  }
  static Values random(Element type, int64_t count, uint64_t seed, double scale = 1) {
    Values values(type, count);
    std::mt19937_64 engine(seed);
    std::uniform_real_distribution<double> uniform(-scale, scale);
    for (int64_t i = 0; i < count; ++i) values.set(i, uniform(engine));
    return values;
  }
  double operator[](int64_t i) const { return read_double(type_, memory_.get(), i); }
  void set(int64_t i, double value) { write_double(type_, memory_.get(), i, value); }
  void* data() const { return memory_.get(); }
  int64_t size() const { return count_; }
  Element type() const { return type_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  static std::unique_ptr<void, Free> allocate(size_t bytes) {
    return std::unique_ptr<void, Free>(std::aligned_alloc(256, (bytes + 511) / 256 * 256));
  }
  Element type_ = Element::kF32;
  int64_t count_ = 0;
  std::unique_ptr<void, Free> memory_;
};

// Half a unit in the last place, relative: what one rounding may change.
inline double rounding(Element type) {
  switch (type) {
    case Element::kF64:
      return 1e-15;
    case Element::kF32:
      return 6e-8;
    case Element::kF16:
      return 4.9e-4;
    case Element::kBf16:
      return 3.92e-3;
    case Element::kE4m3:
      return 0.0626;
    case Element::kE5m2:
      return 0.126;
    default:
      return 0.5;
  }
}

}  // namespace emu::fakes
