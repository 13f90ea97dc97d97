// Heads of multi-head latent attention.
#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

// Calls fn(from, to, cosine, sine) for each pair that RoPE rotates in row i: the columns of its first and second
// channel in the inputs and, `to`, in the halves layout.
struct Pair {
  int64_t first, second;
};
template <class Fn>
void each_pair(const LatentShape& s, const Tensor& cos_sin, const Tensor& positions, int64_t i, Fn&& fn) {
  const int64_t half = s.rope / 2, position = positions.as<int32_t>()[i];
  CHECK(position >= 0 && position < cos_sin.rows(), "latent_heads.positions: position ", position, " of a table of ",
        cos_sin.rows());
  const float* row = cos_sin.as<float>() + position * s.rope;
  for (int64_t c = 0; c < half; ++c)
    fn(s.interleaved ? Pair{2 * c, 2 * c + 1} : Pair{c, c + half}, Pair{c, c + half}, double(row[c]),
       double(row[half + c]));
}

}  // namespace

void ReferenceOps::run(const LatentHeads& op, void*) {
  const LatentShape& s = op.shape;
  const int64_t dim = s.head_dim(), width = s.heads * dim, both = s.key_value();
  const Values q = load(op.q), kv = load(op.kv), rope_key = load(op.rope_key);
  Values qkv = zeros_like(op.qkv);
  for (int64_t i = 0; i < qkv.rows; ++i)
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t query = h * dim, key = width + h * dim, value = 2 * width + h * dim;
      for (int64_t c = 0; c < s.nope; ++c) {
        qkv(i, query + c) = q(i, query + c);
        qkv(i, key + c) = kv(i, h * both + c);
      }
      for (int64_t c = 0; c < s.value; ++c) qkv(i, value + c) = kv(i, h * both + s.nope + c);
      each_pair(s, op.cos_sin, op.positions, i, [&](Pair from, Pair to, double cosine, double sine) {
        const auto rotate = [&](int64_t column, double a, double b) {
          qkv(i, column + s.nope + to.first) = a * cosine - b * sine;
          qkv(i, column + s.nope + to.second) = b * cosine + a * sine;
        };
        rotate(query, q(i, query + s.nope + from.first), q(i, query + s.nope + from.second));
        rotate(key, rope_key(i, from.first), rope_key(i, from.second));
      });
    }
  store(op.qkv, qkv);
}

void ReferenceOps::run(const LatentHeadsBwd& op, void*) {
  const LatentShape& s = op.shape;
  const int64_t dim = s.head_dim(), width = s.heads * dim, both = s.key_value();
  const Values dqkv = load(op.dqkv);
  Values dq = zeros_like(op.dq), dkv = zeros_like(op.dkv), drope_key = zeros_like(op.drope_key);
  for (int64_t i = 0; i < dqkv.rows; ++i)
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t query = h * dim, key = width + h * dim, value = 2 * width + h * dim;
      for (int64_t c = 0; c < s.nope; ++c) {
        dq(i, query + c) = dqkv(i, query + c);
        dkv(i, h * both + c) = dqkv(i, key + c);
      }
      for (int64_t c = 0; c < s.value; ++c) dkv(i, h * both + s.nope + c) = dqkv(i, value + c);
      each_pair(s, op.cos_sin, op.positions, i, [&](Pair from, Pair to, double cosine, double sine) {
        const auto rotate_back = [&](int64_t column, double& da, double& db) {
          const double a = dqkv(i, column + s.nope + to.first), b = dqkv(i, column + s.nope + to.second);
          da += a * cosine + b * sine;
          db += b * cosine - a * sine;
        };
        rotate_back(query, dq(i, query + s.nope + from.first), dq(i, query + s.nope + from.second));
        rotate_back(key, drope_key(i, from.first), drope_key(i, from.second));
      });
    }
  store(op.dq, dq);
  store(op.dkv, dkv);
  store(op.drope_key, drope_key);
}

}  // namespace athanor
