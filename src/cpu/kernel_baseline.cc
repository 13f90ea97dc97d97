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

constexpr Kernels kTable = {.name = "baseline",
                            .mr = kMr,
                            .nr = kNr,
                            .by_row = Micros<true, false, Rows>::kTable,
                            .by_column = Micros<false, false, Rows>::kTable,
                            .pack_rows = pack_rows,
                            .pack_columns = pack_columns,
                            .pack_transposed = pack_transposed,
                            .pack_column_rows = pack_column_rows,
                            .transpose = transpose_units,
                            .dots = kDots,
                            .sums = kSums,
                            .softmax = softmax,
                            .score_gradient = score_gradient};

}  // namespace

const Kernels* kernels_baseline() { return &kTable; }
}  // namespace athanor
