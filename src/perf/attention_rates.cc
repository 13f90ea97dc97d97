#include "perf/attention_rates.h"

#include <algorithm>
#include <cmath>

#include "ops/basic.h"
#include "perf/best_seconds.h"

namespace athanor {

AttentionRates measure_attention(const Backend& backend, AttentionShape shape, DType dtype, int64_t tokens) {
  shape.window = 0, shape.sparse = {};
  shape.scale = float(1 / std::sqrt(double(shape.head_dim)));
  const int64_t q_cols = shape.heads * shape.head_dim, kv_cols = shape.kv_heads * shape.head_dim;
  AttentionFwd forward{.shape = shape};
  AttentionBwd backward{.shape = shape};
  MemoryPlan plan;
  for (const auto& [tensor, cols] : {std::pair{&forward.y, q_cols},
                                     {&forward.q, q_cols},
                                     {&forward.k, kv_cols},
                                     {&forward.v, kv_cols},
                                     {&backward.dy, q_cols},
                                     {&backward.dq, q_cols},
                                     {&backward.dk, kv_cols},
                                     {&backward.dv, kv_cols}})
    plan.add(MemoryKind::inputs, "operand", dtype, {tokens, cols}, tensor);
  plan.add(MemoryKind::inputs, "lse", DType::f32, {tokens, shape.heads}, &forward.lse);
  plan.add(MemoryKind::inputs, "spans", DType::i32, {1, kSpanWords}, &forward.spans);
  const auto connect = [&] {
    backward.y = forward.y, backward.lse = forward.lse, backward.spans = forward.spans;
    backward.q = forward.q, backward.k = forward.k, backward.v = forward.v;
  };
  connect();
  Tensor scratch;
  if (const size_t bytes = std::max(backend.ops.scratch(forward), backend.ops.scratch(backward)))
    plan.add(MemoryKind::inputs, "scratch", DType::u8, {int64_t(bytes)}, &scratch);
  plan.commit(backend.device);
  connect();
  uint64_t stream = 0;
  for (const Tensor& t : {forward.q, forward.k, forward.v, backward.dy})
    backend.ops.run(RandomNormal{.x = t.view({t.numel()}), .stream = ++stream, .std = 1}, nullptr);
  const std::vector<Span> spans = documents_to_measure(1, tokens, 1);
  backend.device.copy(forward.spans.data, spans.data(), forward.spans.bytes(), Stream::compute);
  return {forward.cost().flops / best_seconds(backend, forward, scratch.data),
          backward.cost().flops / best_seconds(backend, backward, scratch.data)};
}

}  // namespace athanor
