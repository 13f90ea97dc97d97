// Makes AttentionBwd and its cases from AttentionFwd and its cases. Gradients have the shapes of their tensors, and y
// and lse are those of the reference; also with the angles of RoPE.
#pragma once
#include <cmath>

#include "ops/attention.h"
#include "tests/ops/cases.h"

namespace athanor {

inline AttentionBwd backward_of(const AttentionFwd& f) {
  return {.dq = f.q,
          .dk = f.k,
          .dv = f.v,
          .dy = f.y,
          .y = f.y,
          .lse = f.lse,
          .q = f.q,
          .k = f.k,
          .v = f.v,
          .spans = f.spans,
          .shape = f.shape};
}

inline OpCase<AttentionBwd> backward_of(Examiner& examine, const OpCase<AttentionFwd>& fwd) {
  const AttentionFwd& f = fwd.op;
  OpCase<AttentionBwd> bwd{fwd.name, backward_of(f), fwd.values};
  const auto results = examine.reference_results(fwd);
  for (const char* name : {"y", "lse"}) {
    const Result& r = result(results, name);
    bwd.values[name] = listed(decoded(r.like.dtype, r.after));
  }
  // With one key per query the scores have no gradient, and every rounding error would be infinitely large: another y
  // gives them one.
  if (f.shape.window == 1 || f.k.rows() == 1) bwd.values["y"] = normal();
  return bwd;
}

// A table of cosines and sines of RoPE for heads of `dim`.
inline Init cosines_and_sines(int64_t dim) {
  return [=, half = dim / 2](uint64_t, int64_t i) {
    const double angle = double(i / dim) * std::pow(10000.0, -double(i % half) / double(half));
    return i % dim < half ? std::cos(angle) : std::sin(angle);
  };
}

// Adds RoPE angles to a case. The result must match the reference and be bit-identical to separate ops.
inline void rotates_back(Examiner& examine, const OpCase<AttentionBwd>& plain) {
  constexpr int64_t kTable = 40;
  const AttentionShape& s = plain.op.shape;
  OpCase<AttentionBwd> c = plain;
  c.name += ", rotated back";
  c.op.cos_sin = tensor(DType::f32, {kTable, s.head_dim});
  c.op.positions = tensor(DType::i32, {c.op.q.rows()});
  c.values["cos_sin"] = cosines_and_sines(s.head_dim);
  c.values["positions"] = below(kTable);
  examine(c);
  if (examine.lists() || !examine.wanted(AttentionBwd::kName)) return;
  const auto whole = examine.backend_results(c), parts = examine.backend_results(plain);
  const auto same_bits = [&](const char* name, const std::vector<std::byte>& want) {
    if (result(whole, name).after != want)
      examine.note({Fault::wrong_value, AttentionBwd::kName, name, cat(c.name, ": not the bits of the two parts")});
  };
  for (const auto& [name, heads] : {std::pair{"dq", s.heads}, {"dk", s.kv_heads}}) {
    const Result& d = result(parts, name);
    OpCase<Rope> back{c.name,
                      {.x = tensor(d.like.dtype, d.like.shape),
                       .cos_sin = c.op.cos_sin,
                       .positions = c.op.positions,
                       .heads = heads,
                       .head_dim = s.head_dim,
                       .inverse = true},
                      c.values};
    back.values["x"] = listed(decoded(d.like.dtype, d.after));
    same_bits(name, result(examine.backend_results(back), "x").after);
  }
  same_bits("dv", result(parts, "dv").after);
}

}  // namespace athanor
