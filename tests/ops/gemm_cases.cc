// Cases of Gemm and ColumnSum: odd sizes, all transpositions and dtypes, bias, accumulation, epilogues, TF32, strided
// views.
#include "tests/ops/cases.h"

namespace athanor {
namespace {

struct Size {
  int64_t m, n, k;
};
constexpr Size kSizes[] = {{1, 1, 1}, {1, 17, 3}, {3, 1, 257}, {17, 3, 1}, {17, 33, 65}, {65, 49, 96}, {130, 70, 257}};

struct Types {
  DType d, a, b;
};

// gap: elements between the rows of d, a and b.
Gemm product(Size s, Types t, bool ta, bool tb, int64_t gap = 0) {
  const auto matrix = [&](DType dtype, int64_t rows, int64_t cols) {
    return tensor(dtype, {rows, cols}, gap ? cols + gap : 0);
  };
  return {.d = matrix(t.d, s.m, s.n),
          .a = ta ? matrix(t.a, s.k, s.m) : matrix(t.a, s.m, s.k),
          .b = tb ? matrix(t.b, s.n, s.k) : matrix(t.b, s.k, s.n),
          .ta = ta,
          .tb = tb};
}

void every_size(Examiner& examine, Types t) {
  for (const Size& s : kSizes)
    for (int flags = 0; flags < 4; ++flags) {
      const bool ta = flags & 1, tb = flags & 2;
      const std::string name =
          cat(s.m, "x", s.n, "x", s.k, ta ? " ta" : "", tb ? " tb" : "", " ", t.d, "=", t.a, "*", t.b);
      examine(OpCase<Gemm>{name, product(s, t, ta, tb)});
      Gemm accumulating = product(s, t, ta, tb);
      accumulating.accumulate = true;
      examine(OpCase<Gemm>{cat(name, " accumulate"), accumulating});
    }
}

void variants(Examiner& examine, DType dt) {
  for (const Size& s : {Size{3, 17, 5}, Size{33, 65, 40}}) {
    for (int flags = 0; flags < 4; ++flags) {
      const bool ta = flags & 1, tb = flags & 2;
      const std::string name = cat(s.m, "x", s.n, "x", s.k, ta ? " ta" : "", tb ? " tb" : "", " ", dt);
      examine(OpCase<Gemm>{cat(name, " strided"), product(s, {dt, dt, dt}, ta, tb, 5)});
      for (DType bias : {dt, DType::f32}) {
        Gemm op = product(s, {dt, dt, dt}, ta, tb);
        op.bias = tensor(bias, {s.n});
        examine(OpCase<Gemm>{cat(name, " bias ", bias), op});
      }
      Gemm strided = product(s, {DType::f32, dt, dt}, ta, tb, 3);
      strided.accumulate = true;
      examine(OpCase<Gemm>{cat(name, " strided accumulate f32"), strided});
    }
  }
}

// Beyond the blocks of any cache, one dimension at a time.
void long_sides(Examiner& examine) {
  for (DType dt : {DType::f32, DType::bf16})
    for (const Size& s : {Size{20, 30, 1300}, Size{3, 2100, 40}, Size{400, 40, 50}, Size{1, 700, 600}}) {
      examine(OpCase<Gemm>{cat(s.m, "x", s.n, "x", s.k, " ", dt), product(s, {dt, dt, dt}, false, true)});
      Gemm wgrad = product(s, {DType::f32, dt, dt}, true, false);
      wgrad.accumulate = true;
      examine(OpCase<Gemm>{cat(s.m, "x", s.n, "x", s.k, " ta accumulate f32 of ", dt), wgrad});
    }
}

void tf32(Examiner& examine) {
  for (const Size& s : kSizes) {
    Gemm op = product(s, {DType::f32, DType::f32, DType::f32}, false, true);
    op.tf32 = true;
    examine(OpCase<Gemm>{cat(s.m, "x", s.n, "x", s.k, " tf32"), op});
    op = product(s, {DType::bf16, DType::bf16, DType::bf16}, true, false);
    op.tf32 = true;  // means nothing for 16-bit inputs
    examine(OpCase<Gemm>{cat(s.m, "x", s.n, "x", s.k, " tf32 bf16"), op});
  }
}

Gemm with(Gemm op, Epilogue epilogue, Tensor tensor) {
  op.epilogue = epilogue;
  op.aux = tensor;
  return op;
}

void epilogues(Examiner& examine, DType dt) {
  for (const Size& s : {Size{3, 17, 5}, Size{33, 64, 40}, Size{300, 40, 129}}) {
    const Tensor like_d = tensor(dt, {s.m, s.n});
    for (const bool tb : {false, true}) {
      const std::string name = cat(s.m, "x", s.n, "x", s.k, tb ? " tb " : " ", dt);
      const Gemm op = product(s, {dt, dt, dt}, false, tb);
      Gemm biased = op;
      biased.bias = tensor(dt, {s.n});
      examine(OpCase<Gemm>{cat(name, " add"), with(op, Epilogue::add, like_d)});
      examine(OpCase<Gemm>{cat(name, " bias add"), with(biased, Epilogue::add, like_d)});
      examine(OpCase<Gemm>{cat(name, " gelu"), with(op, Epilogue::gelu, like_d)});
      examine(OpCase<Gemm>{cat(name, " bias gelu"), with(biased, Epilogue::gelu, like_d)});
      examine(OpCase<Gemm>{cat(name, " gelu gradient"), with(op, Epilogue::gelu_gradient, like_d)});
    }
    Gemm again = with(product(s, {dt, dt, dt}, false, true), Epilogue::gelu, like_d);  // recomputes GELU of z = k / 8
    again.recompute = true;
    const Init z = constant(double(s.k) / 8);
    examine(OpCase<Gemm>{
        cat(s.m, "x", s.n, " ", dt, " again"), again, {{"a", constant(0.5)}, {"b", constant(0.25)}, {"aux", z}}});
    for (const bool accumulate : {false, true}) {
      Gemm op = product(s, {DType::f32, dt, dt}, true, false);
      op.accumulate = accumulate;
      const std::string name = cat(s.m, "x", s.n, "x", s.k, accumulate ? " accumulate" : "", " f32 of ", dt);
      examine(OpCase<Gemm>{cat(name, " sum a"), with(op, Epilogue::sum_a, tensor(DType::f32, {s.m}))});
      examine(OpCase<Gemm>{cat(name, " sum b"), with(op, Epilogue::sum_b, tensor(DType::f32, {s.n}))});
    }
    Gemm narrow = product(s, {dt, dt, dt}, true, false);
    narrow.accumulate = true;
    const std::string name = cat(s.m, "x", s.n, "x", s.k, " accumulate ", dt, " bf16 sum");
    examine(OpCase<Gemm>{cat(name, " a"), with(narrow, Epilogue::sum_a, tensor(DType::bf16, {s.m}))});
    examine(OpCase<Gemm>{cat(name, " b"), with(narrow, Epilogue::sum_b, tensor(DType::bf16, {s.n}))});
  }
}

// The SwiGLU epilogue stores silu(gate) * up in addition to [gate | up].
void swiglu(Examiner& examine, DType dt) {
  for (const Size& s : {Size{3, 2, 5}, Size{33, 64, 40}, Size{300, 48, 136}})
    for (const bool tb : {false, true}) {
      const Gemm op = with(product(s, {dt, dt, dt}, false, tb), Epilogue::swiglu, tensor(dt, {s.m, s.n / 2}));
      examine(OpCase<Gemm>{cat(s.m, "x", s.n, "x", s.k, tb ? " tb " : " ", dt, " swiglu"), op});
    }
}

// [gate | up] becomes its gradient, and silu(gate) up what d is.
void swiglu_gradient(Examiner& examine, DType dt) {
  for (const Size& s : {Size{3, 1, 5}, Size{33, 40, 64}, Size{300, 136, 24}})
    for (const bool tb : {false, true}) {
      const Gemm op = with(product(s, {dt, dt, dt}, false, tb), Epilogue::swiglu_gradient, tensor(dt, {s.m, 2 * s.n}));
      examine(OpCase<Gemm>{cat(s.m, "x", s.n, "x", s.k, tb ? " tb " : " ", dt, " swiglu gradient"), op});
    }
}

// Heads of queries and keys rotated, values left as they are.
void rope(Examiner& examine, DType dt) {
  struct Heads {
    int64_t rows, rotated, others, dim, k;
  };
  for (const Heads& h : {Heads{3, 1, 0, 2, 5}, Heads{33, 3, 2, 8, 40}, Heads{70, 2, 1, 64, 136}})
    for (const bool bias : {false, true}) {
      constexpr int64_t kPositions = 7;
      const int64_t n = (h.rotated + h.others) * h.dim;
      Gemm op = with(product({h.rows, n, h.k}, {dt, dt, dt}, false, true), Epilogue::rope,
                     tensor(DType::f32, {kPositions, h.dim}));
      op.positions = tensor(DType::i32, {h.rows});
      op.rotated = h.rotated * h.dim;
      if (bias) op.bias = tensor(dt, {n});
      examine(OpCase<Gemm>{cat(h.rows, "x", n, "x", h.k, " ", dt, bias ? " bias" : "", " rope"),
                           op,
                           {{"positions", below(kPositions)}}});
    }
}

// y = x w^T: dx = dy w, dw += dy^T x, db += column sums of dy.
void linear_gradients(Examiner& examine) {
  constexpr DType f = DType::f32;
  OpCase<Gemm> fwd{"linear", product({5, 7, 3}, {f, f, f}, false, true)};
  fwd.op.bias = tensor(f, {7});
  OpCase<Gemm> dgrad{"dx", product({5, 3, 7}, {f, f, f}, false, false)};
  examine.gradient(fwd, dgrad, {{"d", "a"}}, {{"a", "d"}});
  OpCase<Gemm> wgrad{"dw", product({7, 3, 5}, {f, f, f}, true, false)};
  wgrad.op.accumulate = true;
  fwd.values["a"] = uniform(-1, 1);  // x, which the weight gradient calls b
  wgrad.values["b"] = [](uint64_t, int64_t i) { return uniform(-1, 1)(stream_of("a"), i); };
  examine.gradient(fwd, wgrad, {{"d", "a"}}, {{"b", "d"}});
  wgrad.op = with(wgrad.op, Epilogue::sum_a, tensor(f, {7}));
  examine.gradient(fwd, wgrad, {{"d", "a"}}, {{"b", "d"}, {"bias", "aux"}});
  const OpCase<ColumnSum> bgrad{"db", {.out = tensor(f, {7}), .x = tensor(f, {5, 7})}};
  examine.gradient(fwd, bgrad, {{"d", "x"}}, {{"bias", "out"}});
}

}  // namespace

void gemm_cases(Examiner& examine) {
  for (DType dt : kFloats) {
    every_size(examine, {dt, dt, dt});
    variants(examine, dt);
    epilogues(examine, dt);
    for (const Shape& s : {Shape{1, 1}, Shape{1, 17}, Shape{257, 3}, Shape{65, 130}, Shape{600, 33}, Shape{300, 600}})
      for (DType out : {DType::f32, DType::bf16})
        examine(OpCase<ColumnSum>{cat(s, " ", dt, " to ", out), {.out = tensor(out, {s[1]}), .x = tensor(dt, s)}});
  }
  every_size(examine, {DType::f32, DType::bf16, DType::bf16});
  examine(OpCase<Gemm>{"mixed", product({17, 33, 65}, {DType::bf16, DType::f32, DType::f16}, false, true)});
  long_sides(examine);
  tf32(examine);
  linear_gradients(examine);
  for (DType dt : kFloats) swiglu(examine, dt), swiglu_gradient(examine, dt), rope(examine, dt);
}

}  // namespace athanor
