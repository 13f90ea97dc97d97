// Heads of multi-head latent attention [DeepSeek-AI 2024, "DeepSeek-V2", sec. 2.1; arXiv:2405.04434]: builds the packed
// q, k and v that the attention ops read.
#pragma once
#include "ops/op.h"

namespace athanor {

// A query or key head has D = nope + rope channels: first those without positions, then those that RoPE rotates. A
// value head has `value` <= D channels.
struct LatentShape {
  int64_t heads, nope, rope, value;
  // Pairs that RoPE rotates are neighbours (2i, 2i + 1) in the inputs; else (i, i + rope / 2).
  bool interleaved = true;
  int64_t head_dim() const { return nope + rope; }
  int64_t key_value() const { return nope + value; }  // columns of a head in `kv`
};

// Checks the tensors of both ops; names: those of qkv, q, kv and rope_key.
inline void expect_latent_heads(const Expect& e, const LatentShape& s, const std::array<const char*, 4>& names,
                                const std::array<Tensor, 4>& t, const Tensor& cos_sin, const Tensor& positions) {
  const int64_t rows = t[0].rows(), width = s.heads * s.head_dim();
  e.that(s.heads > 0 && s.nope >= 0 && s.rope > 0 && s.rope % 2 == 0, "heads with an even number of rotated channels");
  e.that(s.value > 0 && s.value <= s.head_dim(), "value heads that are at most as wide as query heads");
  e.floating(names[0], t[0]).matrix(names[0], t[0]);
  const int64_t columns[] = {3 * width, width, s.heads * s.key_value(), s.rope};
  for (size_t i = 0; i < t.size(); ++i) e.is(names[i], t[i], t[0].dtype, {rows, columns[i]});
  e.is("cos_sin", cos_sin, DType::f32, {cos_sin.rows(), s.rope}).is("positions", positions, DType::i32, {rows});
}

// For each head h: q_h = [nope | R rope] of q's head, k_h = [nope of kv's head | R rope_key], v_h = [value of kv's head
// | zeros up to D], with R the rotation of Rope, whose results are in its halves layout.
struct LatentHeads {
  Tensor qkv;        // [N, 3 H D]
  Tensor q;          // [N, H D]
  Tensor kv;         // [N, H (nope + value)]: per head first the key's channels
  Tensor rope_key;   // [N, rope]: one head for all
  Tensor cos_sin;    // [P, rope] f32, as in Rope
  Tensor positions;  // [N] i32, each < P
  LatentShape shape;
  static constexpr const char* kName = "latent_heads";
  auto fields() {
    return fields_of(Field::out("qkv", qkv), Field::in("q", q), Field::in("kv", kv), Field::in("rope_key", rope_key),
                     Field::in("cos_sin", cos_sin), Field::in("positions", positions));
  }
  void check() const {
    expect_latent_heads({kName}, shape, {"qkv", "q", "kv", "rope_key"}, {qkv, q, kv, rope_key}, cos_sin, positions);
  }
  Cost cost() const { return {3.0 * double(qkv.numel()), traffic(*this)}; }
};

// The gradients of its inputs; drope_key is the sum over all heads, in f32. The padding of dqkv's v is not read.
struct LatentHeadsBwd {
  Tensor dq;         // [N, H D]
  Tensor dkv;        // [N, H (nope + value)]
  Tensor drope_key;  // [N, rope]
  Tensor dqkv;       // [N, 3 H D]
  Tensor cos_sin;    // as in forward
  Tensor positions;
  LatentShape shape;
  static constexpr const char* kName = "latent_heads_bwd";
  auto fields() {
    return fields_of(Field::out("dq", dq), Field::out("dkv", dkv), Field::out("drope_key", drope_key),
                     Field::in("dqkv", dqkv), Field::in("cos_sin", cos_sin), Field::in("positions", positions));
  }
  void check() const {
    expect_latent_heads({kName}, shape, {"dqkv", "dq", "dkv", "drope_key"}, {dqkv, dq, dkv, drope_key}, cos_sin,
                        positions);
  }
  Cost cost() const { return {3.0 * double(dqkv.numel()), traffic(*this)}; }
};

}  // namespace athanor
