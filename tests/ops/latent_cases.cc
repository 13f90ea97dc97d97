// Cases of the heads of multi-head latent attention: pairs of neighbours and of halves, no channels without RoPE, value
// heads with and without padding.
#include "tests/ops/attention_backward.h"
#include "tests/ops/cases.h"

namespace athanor {

void latent_cases(Examiner& examine) {
  constexpr int64_t kTable = 40;
  for (const DType dt : kFloats)
    for (const bool interleaved : {true, false})
      for (const auto& [rows, s] : {std::pair{1, LatentShape{1, 0, 2, 1}},
                                    {3, LatentShape{3, 5, 4, 7}},
                                    {17, LatentShape{2, 6, 10, 16}},
                                    {65, LatentShape{4, 32, 16, 24}}}) {
        LatentShape shape = s;
        shape.interleaved = interleaved;
        const int64_t width = s.heads * s.head_dim();
        const Tensor qkv = tensor(dt, {rows, 3 * width}), q = tensor(dt, {rows, width}),
                     kv = tensor(dt, {rows, s.heads * s.key_value()}), key = tensor(dt, {rows, s.rope}),
                     table = tensor(DType::f32, {kTable, s.rope}), positions = tensor(DType::i32, {rows});
        const Values values = {{"positions", below(kTable)}, {"cos_sin", cosines_and_sines(s.rope)}};
        const std::string name = cat(rows, "x", s.heads, "x", s.nope, "+", s.rope, " values of ", s.value, " ", dt,
                                     interleaved ? " interleaved" : "");
        const OpCase<LatentHeads> fwd{name, {qkv, q, kv, key, table, positions, shape}, values};
        const OpCase<LatentHeadsBwd> bwd{name, {q, kv, key, qkv, table, positions, shape}, values};
        examine(fwd);
        examine(bwd);
        if (rows == 3 && dt == DType::f32)
          examine.gradient(fwd, bwd, {{"qkv", "dqkv"}}, {{"q", "dq"}, {"kv", "dkv"}, {"rope_key", "drope_key"}});
      }
}

}  // namespace athanor
