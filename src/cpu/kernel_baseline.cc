// Any CPU: vectors of four floats, which every 64-bit CPU supports; 6 x 8 tiles of c.
#include "cpu/kernel.h"

namespace athanor {
namespace {

constexpr int kLanes = 4, kMr = 6, kVectors = 2;
typedef float V __attribute__((vector_size(16)));
inline V madd(float x, V b, V c) { return x * b + c; }
template <class T>
inline V widen(const T* p) {
  return V{to_float(p[0]), to_float(p[1]), to_float(p[2]), to_float(p[3])};
}

#include "cpu/kernel.inl"

constexpr Kernels kTable = table("baseline");

}  // namespace

const Kernels* kernels_baseline() { return &kTable; }
}  // namespace athanor
