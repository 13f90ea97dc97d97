// Rotary position embedding, halves layout.
#include "cpu/cpu_ops.h"
#include "cpu/simd.h"

namespace athanor {
namespace {

constexpr int64_t kRowGrain = 32;  // rows per chunk of work

// Rotates one head's pairs (a_i, b_i) by the angles of one position; sign = -1 rotates by the negative angles.
template <class T>
ATHANOR_CLONES void rotate(T* a, T* b, const float* cos, const float* sin, float sign, int64_t half) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float x = to_float(a[i]), y = to_float(b[i]), s = sign * sin[i];
    a[i] = from_float<T>(x * cos[i] - y * s);
    b[i] = from_float<T>(y * cos[i] + x * s);
  }
}

}  // namespace

void CpuOps::run(const Rope& op, void*) {
  const int64_t half = op.head_dim / 2, stride = op.x.stride();
  const int32_t* positions = op.positions.as<int32_t>();
  const float* table = op.cos_sin.as<float>();  // [P, D]
  const float sign = op.inverse ? -1.0f : 1.0f;
  by_float(op.x.dtype, [&]<class T>() {
    T* x = op.x.as<T>();
    pool_.parallel_ranges(op.x.rows(), kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        CHECK(positions[n] >= 0 && positions[n] < op.cos_sin.rows(), "rope: position ", positions[n], " of row ", n,
              " is outside the table of ", op.cos_sin.rows());
        const float* cos = table + positions[n] * op.head_dim;
        for (int64_t h = 0; h < op.heads; ++h) {
          T* head = x + n * stride + h * op.head_dim;
          rotate(head, head + half, cos, cos + half, sign, half);
        }
      }
    });
  });
}

}  // namespace athanor
