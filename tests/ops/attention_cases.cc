// Cases of attention: head groups, windows, sparse patterns, packed and empty spans, key/value caches, strided views;
// and of RoPE.
#include <cmath>

#include "tests/ops/attention_backward.h"
#include "tests/ops/cases.h"

namespace athanor {
namespace {

struct Setting {
  std::string name;
  std::vector<Span> spans;
  int64_t queries, keys;
  AttentionShape shape;
};

Init listed_spans(const std::vector<Span>& spans) {
  std::vector<double> words;
  for (const Span& s : spans)
    for (int32_t w : {s.q_begin, s.q_len, s.k_begin, s.k_len, s.q_pos, s.k_pos}) words.push_back(w);
  return listed(std::move(words));
}

// gap: elements between the rows of q, k, v (and of their gradients), as in packed [q | k | v].
OpCase<AttentionFwd> forward(const Setting& s, DType dt, int64_t gap) {
  const int64_t qc = s.shape.heads * s.shape.head_dim, kc = s.shape.kv_heads * s.shape.head_dim;
  const Tensor q = tensor(dt, {s.queries, qc}, gap ? qc + gap : 0), k = tensor(dt, {s.keys, kc}, gap ? kc + gap : 0);
  const auto top = gap ? tensor(DType::f32, {s.shape.heads}) : Tensor{};
  return {cat(s.name, " ", s.shape.heads, "/", s.shape.kv_heads, "x", s.shape.head_dim, " ", dt, gap ? " strided" : ""),
          {.y = tensor(dt, {s.queries, qc}),
           .lse = tensor(DType::f32, {s.queries, s.shape.heads}),
           .q = q,
           .k = k,
           .v = k,
           .spans = tensor(DType::i32, {int64_t(s.spans.size()), kSpanWords}),
           .shape = s.shape,
           .top = top},
          {{"spans", listed_spans(s.spans)}, {"top", listed({-INFINITY, 0.25, -5})}}};
}

AttentionShape heads(int64_t heads, int64_t kv_heads, int64_t dim, int64_t window = 0) {
  return {heads, kv_heads, dim, window, float(1 / std::sqrt(double(dim)))};
}

AttentionShape capped(AttentionShape shape, float softcap) {
  shape.softcap = softcap;
  return shape;
}

AttentionShape sparse(AttentionShape shape, SparsePattern pattern) {
  shape.sparse = pattern;
  return shape;
}

AttentionShape not_causal(AttentionShape shape) {
  shape.causal = false;
  return shape;
}

std::vector<Setting> settings() {
  const Span whole33{0, 33, 0, 33, 0, 0};
  return {
      {"one token", {{0, 1, 0, 1, 0, 0}}, 1, 1, heads(1, 1, 1)},
      {"three", {{0, 3, 0, 3, 0, 0}}, 3, 3, heads(2, 2, 4)},
      {"whole", {whole33}, 33, 33, heads(1, 1, 8)},
      {"group of 2", {whole33}, 33, 33, heads(4, 2, 16)},
      {"group of 4", {whole33}, 33, 33, heads(4, 1, 17)},
      {"window 1", {whole33}, 33, 33, heads(2, 1, 8, 1)},
      {"window 5", {whole33}, 33, 33, heads(2, 1, 8, 5)},
      {"window over all", {whole33}, 33, 33, heads(2, 1, 8, 1000)},
      {"long", {{0, 130, 0, 130, 0, 0}}, 130, 130, heads(2, 1, 32)},
      {"long window", {{0, 150, 0, 150, 0, 0}}, 150, 150, heads(1, 1, 64, 40)},
      {"wide heads", {{0, 70, 0, 70, 0, 0}}, 70, 70, heads(2, 1, 128)},
      {"many keys", {{0, 3, 0, 300, 297, 0}}, 3, 300, heads(2, 1, 40)},
      {"packed, empty rows",
       {{0, 5, 0, 5, 0, 0}, {5, 1, 5, 1, 0, 0}, {6, 0, 6, 0, 0, 0}, {6, 27, 6, 27, 0, 0}, {0, 0, 0, 0, 0, 0}},
       33,
       33,
       heads(4, 2, 8)},
      {"packed with window", {{0, 20, 0, 20, 0, 0}, {20, 13, 20, 13, 0, 0}}, 33, 33, heads(2, 2, 8, 4)},
      {"rows outside spans", {{3, 7, 2, 7, 0, 0}, {15, 4, 20, 4, 0, 0}}, 21, 26, heads(2, 1, 8)},
      {"no spans used", {{0, 0, 0, 0, 0, 0}, {4, 0, 4, 0, 0, 0}}, 5, 4, heads(2, 1, 8)},
      {"second half of the queries", {{0, 8, 0, 16, 8, 0}}, 8, 16, heads(2, 1, 8)},
      {"key offset", {{0, 9, 0, 12, 40, 35}}, 9, 12, heads(2, 1, 8)},
      {"queries before all keys", {{0, 6, 0, 6, 0, 4}}, 6, 6, heads(2, 1, 8)},
      {"positions as in document", {{0, 12, 0, 12, 1000, 1000}, {12, 5, 12, 5, 7, 7}}, 17, 17, heads(2, 1, 8)},
      {"cache, one query each",
       {{0, 1, 0, 7, 6, 0}, {1, 1, 32, 1, 0, 0}, {2, 1, 64, 30, 29, 0}},
       3,
       96,
       heads(4, 2, 16)},
      {"capped", {{0, 33, 0, 33, 0, 0}}, 33, 33, capped(heads(4, 2, 16), 0.7f)},
      {"capped, long window", {{0, 150, 0, 150, 0, 0}}, 150, 150, capped(heads(2, 1, 64, 40), 2)},
      {"capped, packed", {{0, 20, 0, 20, 0, 0}, {20, 13, 20, 13, 0, 0}}, 33, 33, capped(heads(2, 2, 8, 4), 50)},
      {"sparse", {whole33}, 33, 33, sparse(heads(4, 2, 16), {8, 3})},
      {"sparse, long", {{0, 150, 0, 150, 0, 0}}, 150, 150, sparse(heads(2, 1, 64), {40, 12})},
      {"sparse, groups alone", {{0, 130, 0, 130, 0, 0}}, 130, 130, sparse(heads(2, 1, 32), {24, 0})},
      {"sparse, one group", {whole33}, 33, 33, sparse(heads(2, 1, 8), {64, 16})},
      {"sparse, capped, packed",
       {{0, 20, 0, 20, 0, 0}, {20, 13, 20, 13, 0, 0}},
       33,
       33,
       sparse(capped(heads(2, 2, 8), 50), {6, 1})},
      {"sparse, positions as in document",
       {{0, 12, 0, 12, 1000, 1000}, {12, 5, 12, 5, 7, 7}},
       17,
       17,
       sparse(heads(2, 1, 8), {5, 2})},
      {"not causal", {{0, 70, 0, 70, 70, 0}, {70, 70, 70, 70, 70, 0}}, 140, 140, not_causal(heads(2, 2, 64))},
      {"cache, sparse", {{0, 1, 0, 40, 39, 0}, {1, 2, 64, 20, 18, 0}}, 3, 96, sparse(heads(2, 1, 16), {16, 4})},
      {"cache with window", {{0, 1, 0, 40, 39, 0}, {1, 2, 64, 20, 18, 0}}, 3, 96, heads(2, 1, 16, 8)},
  };
}

void gradients(Examiner& examine) {
  if (!examine.wanted(AttentionBwd::kName)) return;
  for (const Setting& s : {Setting{"gradient", {{0, 4, 0, 4, 0, 0}, {4, 3, 4, 3, 0, 0}}, 8, 8, heads(4, 2, 3)},
                           Setting{"gradient, window, offset", {{0, 5, 0, 7, 2, 0}}, 5, 7, heads(2, 1, 4, 3)},
                           Setting{"gradient, sparse", {{0, 9, 0, 9, 0, 0}}, 9, 9, sparse(heads(2, 1, 4), {3, 1})},
                           Setting{"gradient, capped", {{0, 5, 0, 5, 0, 0}}, 5, 5, capped(heads(2, 1, 4), 0.8f)}}) {
    const auto fwd = forward(s, DType::f32, 0);
    examine.gradient(fwd, backward_of(examine, fwd), {{"y", "dy"}}, {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}});
  }
}

void rotated_back_cases(Examiner& examine) {
  if (!examine.wanted(AttentionBwd::kName)) return;
  for (const Setting& s : settings())
    for (DType dt : kFloats)
      if (s.queries == s.keys && s.shape.head_dim % 2 == 0)
        rotates_back(examine, backward_of(examine, forward(s, dt, 24)));
}

// Scores of some hundreds: a softmax without its maximum overflows.
void large_scores(Examiner& examine) {
  for (double std : {0.0, 12.0}) {
    auto fwd = forward({cat("std ", std), {{0, 40, 0, 40, 0, 0}}, 40, 40, heads(2, 1, 16)}, DType::f32, 0);
    fwd.values["q"] = fwd.values["k"] = normal(0, std);
    examine(fwd);
  }
}

// amax of the stored output, for rows that see keys or none, in row blocks that end anywhere.
void amax_of_outputs(Examiner& examine) {
  for (const Setting& s :
       {Setting{"one", {{0, 1, 0, 1, 0, 0}}, 1, 1, heads(1, 1, 1)},
        Setting{"rows outside spans", {{3, 7, 2, 7, 0, 0}, {15, 4, 20, 4, 0, 0}}, 21, 26, heads(2, 1, 40)},
        Setting{"group", {{0, 140, 0, 140, 0, 0}}, 140, 140, heads(3, 1, 64)},
        Setting{"documents", {{0, 70, 0, 70, 0, 0}, {70, 130, 70, 130, 0, 0}}, 200, 200, heads(2, 1, 128, 50)},
        Setting{"no key is seen", {{0, 6, 0, 6, 0, 4}}, 6, 6, heads(2, 1, 64)},
        Setting{"no row", {{0, 0, 0, 0, 0, 0}}, 0, 6, heads(2, 1, 64)}})
    for (const DType dt : kFloats) {
      auto fwd = forward(s, dt, dt == DType::f16 ? 24 : 0);
      if (dt == DType::f32 && s.queries > 0) {
        fwd.op.amax = tensor(DType::f32, {1});
        examine(fwd);
        fwd.op.amax = {};
      }
      for (const Init& v : {normal(), constant(0), listed({1, -2, 3e4, 0, -INFINITY}), listed({-1, 2, std::nan("")})}) {
        fwd.values["v"] = v;
        leaves_amax(examine, fwd, "y");
      }
    }
}

void merge_cases(Examiner& examine) {
  const Init some = listed({-0.4, 0.9, -INFINITY, 2.5, -30, 0.1, -INFINITY});
  for (const auto& [rows, heads, dim] :
       {std::array<int64_t, 3>{1, 1, 1}, {1, 2, 3}, {33, 3, 8}, {17, 2, 64}, {260, 5, 40}})
    for (const DType type : kFloats) {
      OpCase<MergeAttention> c{cat(rows, "x", heads, "x", dim, " ", type),
                               {.y = tensor(DType::f32, {rows, heads * dim}),
                                .lse = tensor(DType::f32, {rows, heads}),
                                .part = tensor(type, {rows, heads * dim}),
                                .part_lse = tensor(DType::f32, {rows, heads})}};
      examine(c);
      c.name += ", without keys";
      c.values["lse"] = some;
      c.values["part_lse"] = listed({-INFINITY, 0.5, -INFINITY, 90});
      examine(c);
    }
}

void sink_cases(Examiner& examine) {
  const Init statistics = listed({-0.4, 0.9, -INFINITY, 2.5, -30, 0.1, 40});
  for (const auto& [rows, heads, dim] :
       {std::array<int64_t, 3>{1, 1, 1}, {1, 2, 3}, {33, 3, 8}, {17, 2, 64}, {260, 5, 40}})
    for (const DType type : kFloats)
      for (const DType of_sinks : {DType::f32, DType::bf16}) {
        OpCase<AttentionSinks> c{cat(rows, "x", heads, "x", dim, " ", type, ", sinks ", of_sinks),
                                 {.y = tensor(type, {rows, heads * dim}),
                                  .lse = tensor(DType::f32, {rows, heads}),
                                  .sinks = tensor(of_sinks, {heads})}};
        c.values["lse"] = statistics;
        examine(c);
        OpCase<AttentionSinksBwd> back{
            c.name,
            {.dsinks = tensor(of_sinks, {heads}), .dy = c.op.y, .y = c.op.y, .lse = c.op.lse, .sinks = c.op.sinks}};
        back.values["lse"] = listed({0.4, 0.9, 2.5, 7});
        examine(back);
        if (rows != 33 || type != DType::f32 || of_sinks != DType::f32 || examine.lists()) continue;
        c.values["lse"] = listed({0.4, 0.9, 2.5, -1});
        const auto results = examine.reference_results(c);
        for (const char* name : {"y", "lse"})
          back.values[name] = listed(decoded(DType::f32, result(results, name).after));
        examine.gradient(c, back, {{"y", "dy"}}, {{"sinks", "dsinks"}});
      }
}

}  // namespace

void attention_cases(Examiner& examine) {
  for (const Setting& s : settings())
    for (DType dt : kFloats)
      for (int64_t gap : {0, 24}) {
        const auto fwd = forward(s, dt, gap);
        examine(fwd);
        if (examine.wanted(AttentionBwd::kName)) examine(backward_of(examine, fwd));
      }
  // Two spans of queries may read the same keys.
  const Setting shared{"shared keys", {{0, 3, 0, 9, 2, 0}, {3, 4, 0, 9, 5, 0}}, 7, 9, heads(4, 2, 8)};
  examine(forward(shared, DType::f32, 0));
  large_scores(examine);
  amax_of_outputs(examine);
  gradients(examine);
  rotated_back_cases(examine);
  merge_cases(examine);
  sink_cases(examine);
}

void rope_cases(Examiner& examine) {
  constexpr int64_t kTable = 40;
  for (DType dt : kFloats)
    for (bool inverse : {false, true})
      for (const auto& [rows, heads, dim, gap] :
           {std::array<int64_t, 4>{1, 1, 2, 0}, {3, 3, 8, 0}, {17, 2, 34, 5}, {257, 4, 16, 32}, {65, 5, 64, 0}}) {
        OpCase<Rope> c{cat(rows, "x", heads, "x", dim, " ", dt, gap ? " strided" : "", inverse ? " inverse" : ""),
                       {.x = tensor(dt, {rows, heads * dim}, gap ? heads * dim + gap : 0),
                        .cos_sin = tensor(DType::f32, {kTable, dim}),
                        .positions = tensor(DType::i32, {rows}),
                        .heads = heads,
                        .head_dim = dim,
                        .inverse = inverse}};
        c.values["positions"] = below(kTable);
        c.values["cos_sin"] = cosines_and_sines(dim);
        examine(c);
        if (rows == 3 && dt == DType::f32) {
          OpCase<Rope> back = c;
          back.op.inverse = !inverse;
          examine.gradient(c, back, {{"x", "x"}}, {{"x", "x"}});
        }
      }
}

}  // namespace athanor
