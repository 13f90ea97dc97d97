// Heads of multi-head latent attention: copies, and rotations of the channels with positions.
#include <algorithm>
#include <vector>

#include "cpu/cpu_ops.h"

namespace athanor {
namespace {

constexpr int64_t kRowGrain = 8;  // rows per chunk of work

// The angles of one row: [rope / 2] cosines, then as many sines.
const float* angles(const char* op, const Tensor& cos_sin, const Tensor& positions, int64_t row) {
  const int32_t position = positions.as<int32_t>()[row];
  CHECK(position >= 0 && position < cos_sin.rows(), op, ": position ", position, " of row ", row,
        " is outside the table of ", cos_sin.rows());
  return cos_sin.as<float>() + position * cos_sin.cols();
}

// to [rope] in the halves layout = rotation of from.
template <class T>
void rotate(T* to, const T* from, const float* cosines, const LatentShape& s) {
  const int64_t half = s.rope / 2, step = s.interleaved ? 2 : 1, other = s.interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = to_float(from[i * step]), b = to_float(from[i * step + other]), c = cosines[i];
    to[i] = from_float<T>(a * c - b * cosines[half + i]);
    to[i + half] = from_float<T>(b * c + a * cosines[half + i]);
  }
}

// Calls fn(to of channel a, to of channel b, da, db) with the inversely rotated gradient of each pair of from [rope].
template <class T, class Fn>
void rotate_back(const T* from, const float* cosines, const LatentShape& s, Fn&& fn) {
  const int64_t half = s.rope / 2, step = s.interleaved ? 2 : 1, other = s.interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    const float a = to_float(from[i]), b = to_float(from[i + half]), c = cosines[i];
    fn(i * step, i * step + other, a * c + b * cosines[half + i], b * c - a * cosines[half + i]);
  }
}

}  // namespace

void CpuOps::run(const LatentHeads& op, void*) {
  const LatentShape& s = op.shape;
  const int64_t dim = s.head_dim(), width = s.heads * dim;
  by_float(op.qkv.dtype, [&]<class T>() {
    pool_.parallel_ranges(op.qkv.rows(), kRowGrain, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const float* cosines = angles(op.kName, op.cos_sin, op.positions, n);
        const T *q = op.q.as<T>() + n * width, *kv = op.kv.as<T>() + n * s.heads * s.key_value();
        T *to_q = op.qkv.as<T>() + n * 3 * width, *to_k = to_q + width, *to_v = to_k + width;
        const T* rotated_key = to_k + s.nope;  // of the first head
        rotate(to_k + s.nope, op.rope_key.as<T>() + n * s.rope, cosines, s);
        for (int64_t h = 0; h < s.heads; ++h, q += dim, kv += s.key_value(), to_q += dim, to_k += dim, to_v += dim) {
          std::copy_n(q, s.nope, to_q);
          rotate(to_q + s.nope, q + s.nope, cosines, s);
          std::copy_n(kv, s.nope, to_k);
          if (h > 0) std::copy_n(rotated_key, s.rope, to_k + s.nope);
          std::copy_n(kv + s.nope, s.value, to_v);
          std::fill(to_v + s.value, to_v + dim, from_float<T>(0));
        }
      }
    });
  });
}

void CpuOps::run(const LatentHeadsBwd& op, void*) {
  const LatentShape& s = op.shape;
  const int64_t dim = s.head_dim(), width = s.heads * dim;
  by_float(op.dqkv.dtype, [&]<class T>() {
    pool_.parallel_ranges(op.dqkv.rows(), kRowGrain, [&](int64_t begin, int64_t end) {
      std::vector<float> sum(size_t(s.rope));
      for (int64_t n = begin; n < end; ++n) {
        const float* cosines = angles(op.kName, op.cos_sin, op.positions, n);
        const T *from_q = op.dqkv.as<T>() + n * 3 * width, *from_k = from_q + width, *from_v = from_k + width;
        T *dq = op.dq.as<T>() + n * width, *dkv = op.dkv.as<T>() + n * s.heads * s.key_value();
        std::ranges::fill(sum, 0.0f);
        for (int64_t h = 0; h < s.heads;
             ++h, dq += dim, dkv += s.key_value(), from_q += dim, from_k += dim, from_v += dim) {
          std::copy_n(from_q, s.nope, dq);
          rotate_back(from_q + s.nope, cosines, s, [&](int64_t a, int64_t b, float da, float db) {
            dq[s.nope + a] = from_float<T>(da), dq[s.nope + b] = from_float<T>(db);
          });
          std::copy_n(from_k, s.nope, dkv);
          rotate_back(from_k + s.nope, cosines, s,
                      [&](int64_t a, int64_t b, float da, float db) { sum[size_t(a)] += da, sum[size_t(b)] += db; });
          std::copy_n(from_v, s.value, dkv + s.nope);
        }
        std::ranges::transform(sum, op.drope_key.as<T>() + n * s.rope, [](float x) { return from_float<T>(x); });
      }
    });
  });
}

}  // namespace athanor
