// Cases of QkClip: rows and columns of Q, K and V, biases, shards that begin and end anywhere, shared K heads, all
// formats of master weights, heads with and without logits above the threshold, skipped steps.
#include <bit>
#include <cmath>
#include <optional>

#include "tests/ops/cases.h"

namespace athanor {
namespace qk_clip {
namespace {

struct Kind {
  DType master;
  std::optional<DType> copy;
};
const Kind kKinds[] = {{DType::f32, {}},
                       {DType::f32, DType::bf16},
                       {DType::f32, DType::f16},
                       {DType::bf16, {}},
                       {DType::i16, DType::bf16}};

// Elements [begin, end) of a weight of `outputs` and `inputs`.
struct Range {
  int64_t inputs, begin, end;
  bool columns;
};
struct Heads {
  int64_t heads, kv_heads, dim;
  int64_t outputs() const { return (heads + 2 * kv_heads) * dim; }
};

QkClip::Part part(const Heads& h, const Range& r, const Kind& kind, bool also) {
  const int64_t n = r.end - r.begin;
  QkClip::Part p{.master = tensor(kind.master, {n}),
                 .top = tensor(DType::f32, {h.heads}),
                 .range = {r.begin, r.columns ? h.outputs() : r.inputs, r.columns},
                 .stream = 6,
                 .first = 1000003};
  if (kind.copy) p.param = tensor(*kind.copy, {n});
  if (also) p.also = tensor(DType::f32, {n});
  return p;
}

OpCase<QkClip> clip(const std::string& name, const Heads& h, std::vector<QkClip::Part> parts) {
  StepState s;
  s.updates = 37;
  OpCase<QkClip> c{name,
                   {.parts = std::move(parts),
                    .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
                    .threshold = 3,
                    .heads = h.heads,
                    .kv_heads = h.kv_heads,
                    .head_dim = h.dim,
                    .seed = 5}};
  c.values = {{"state", bytes_of(s)}, {"top", listed({5, 2.5, 3, 40, -INFINITY})}};
  const auto number = [](uint64_t, int64_t i) { return double(float(std::sin(1.7 * double(i) + 0.4))); };
  c.values["param"] = number;
  if (c.op.parts.front().master.dtype == DType::i16)
    c.values["master"] = [](uint64_t stream, int64_t i) {
      return double(int16_t(random_bits(kCaseSeed, stream, uint64_t(i))));
    };
  else
    c.values["master"] = number;  // the compute copy is its rounding
  return c;
}

void cases(Examiner& examine) {
  const Heads each{5, 5, 4}, shared{4, 2, 6};
  for (const Heads& h : {each, shared}) {
    const int64_t o = h.outputs();
    for (const Range& r : {Range{1, 0, o, false}, Range{1, 7, o - 5, false}, Range{37, 0, 37 * o, false},
                           Range{37, 30, 1900, false}, Range{37, 0, 37 * o, true}, Range{37, 11, 1999, true}})
      for (const Kind& kind : kKinds) {
        const std::string name = cat(h.kv_heads, " keys, ", r.inputs, " inputs ", r.begin, " to ", r.end,
                                     r.columns ? " in columns " : " ", kind.master, kind.copy ? " and copy" : "");
        OpCase<QkClip> c = clip(name, h, {part(h, r, kind, r.begin > 0)});
        examine(c);
        if (r.columns && r.begin > 0) {
          c.name += " skip";
          StepState s;
          s.skip = 1;
          c.values["state"] = bytes_of(s);
          c.exact = true;
          examine(c);
        }
      }
  }
  // Blocks without any head that is scaled, and weights for many threads.
  const Heads wide{8, 8, 64};
  for (const Kind& kind : kKinds) {
    const auto of = [&](bool columns) { return part(wide, {40, 0, 40 * wide.outputs(), columns}, kind, true); };
    examine(clip(cat("list ", kind.master, kind.copy ? " and copy" : ""), wide,
                 {of(false), of(true), part(wide, {1, 5, 900, false}, kind, true)}));
  }
}

}  // namespace
}  // namespace qk_clip

void qk_clip_cases(Examiner& examine) { qk_clip::cases(examine); }

}  // namespace athanor
