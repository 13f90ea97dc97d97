// Any CPU: vectors of four floats, which every 64-bit CPU has; 6 x 8 tiles of c.
#include "cpu/kernel.h"

namespace athanor {
namespace {

constexpr int kLanes = 4, kMr = 6, kVectors = 2;
typedef float V __attribute__((vector_size(16)));
inline V madd(float x, V b, V c) { return x * b + c; }

#include "cpu/kernel.inl"

constexpr Kernels kTable = {"baseline",
                            kMr,
                            kNr,
                            Micros<true, false, Rows>::kTable,
                            Micros<false, false, Rows>::kTable,
                            nullptr,
                            nullptr,
                            pack_rows,
                            pack_columns,
                            pack_transposed,
                            kDots,
                            softmax,
                            score_gradient};

}  // namespace

const Kernels* kernels_baseline() { return &kTable; }
}  // namespace athanor
