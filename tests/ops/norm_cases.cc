// Cases of the norms and of QK-norm, their gradients, and bit-exact recomputation.
#include <cmath>
#include <limits>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

const char* name_of(NormKind k) { return k == NormKind::rms ? "rms" : "layer"; }

struct Setting {
  NormKind kind;
  DType x, w;
  int64_t rows, cols;
  bool layer() const { return kind == NormKind::layer; }
  std::string name() const { return cat(name_of(kind), " ", rows, "x", cols, " ", x, " w ", w); }
};

NormFwd forward(const Setting& s) {
  const Shape full{s.rows, s.cols};
  NormFwd op{.kind = s.kind,
             .y = tensor(s.x, full),
             .rstd = tensor(DType::f32, {s.rows}),
             .h = tensor(s.x, full),
             .w = tensor(s.w, {s.cols}),
             .eps = 1e-5f};
  if (s.layer()) {
    op.mean = op.rstd;
    op.b = op.w;
  }
  return op;
}

NormBwd backward(const Setting& s) {
  const Tensor full = tensor(s.x, {s.rows, s.cols});
  NormBwd op{.kind = s.kind,
             .dh = full,
             .dw = tensor(DType::f32, {s.cols}),
             .dy = full,
             .h = full,
             .rstd = tensor(DType::f32, {s.rows}),
             .w = tensor(s.w, {s.cols})};
  if (s.layer()) {
    op.mean = op.rstd;
    op.db = op.dw;
  }
  return op;
}

NormApply apply(const Setting& s) {
  const NormFwd f = forward(s);
  return {.kind = s.kind, .y = f.y, .h = f.h, .mean = f.mean, .rstd = f.rstd, .w = f.w, .b = f.b};
}

// Values of the forward results for the inputs of another op.
Values stored(Examiner& examine, const OpCase<NormFwd>& fwd) {
  Values values;
  for (const Result& r : examine.reference_results(fwd))
    if (r.name != "y") values[r.name] = listed(decoded(r.like.dtype, r.after));
  return values;
}

void norm(Examiner& examine, const Setting& s) {
  OpCase<NormFwd> fwd{s.name(), forward(s)};
  fwd.values["h"] = normal(0.5, 2);
  examine(fwd);
  if (!examine.wanted(NormApply::kName) && !examine.wanted(NormBwd::kName)) return;
  const Values values = stored(examine, fwd);
  examine(OpCase<NormApply>{s.name(), apply(s), values});
  OpCase<NormBwd> bwd{s.name(), backward(s), values};
  examine(bwd);
  bwd.name += " gradients bf16";
  bwd.op.dw = tensor(DType::bf16, {s.cols});
  if (s.layer()) bwd.op.db = bwd.op.dw;
  examine(bwd);
}

// A mean far above the deviation: one-pass variances cancel here.
void offset_mean(Examiner& examine) {
  OpCase<NormFwd> fwd{"mean 30", forward({NormKind::layer, DType::f32, DType::f32, 5, 257})};
  fwd.values["h"] = normal(30, 1);
  examine(fwd);
}

void gradients(Examiner& examine) {
  if (!examine.wanted(NormBwd::kName)) return;
  for (NormKind kind : {NormKind::rms, NormKind::layer}) {
    const Setting s{kind, DType::f32, DType::f32, 3, 9};
    const OpCase<NormFwd> fwd{s.name(), forward(s)};
    OpCase<NormBwd> bwd{s.name(), backward(s), stored(examine, fwd)};
    Examiner::Pairs gradients{{"h", "dh"}, {"w", "dw"}};
    if (s.layer()) gradients.push_back({"b", "db"});
    examine.gradient(fwd, bwd, {{"y", "dy"}, {"h", "dh"}}, gradients);
  }
}

// Selective recomputation: NormApply on the values stored by NormFwd gives y's bits, on the backend itself.
void repeats_bits(Examiner& examine, const Setting& s) {
  if (examine.lists() || !examine.wanted(NormApply::kName)) return;
  OpCase<NormFwd> fwd{s.name(), forward(s)};
  const auto first = examine.backend_results(fwd);
  OpCase<NormApply> again{s.name(), apply(s)};
  for (const Result& r : first)
    if (r.name != "y") again.values[r.name] = listed(decoded(r.like.dtype, r.after));
  if (result(examine.backend_results(again), "y").after != result(first, "y").after)
    examine.note({Fault::wrong_value, NormApply::kName, "y", cat(s.name(), ": not the bits of norm_fwd")});
}

// amax of the stored output for any rows: held in registers, several in a block, one by one.
void amaxes(Examiner& examine, const Setting& s) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  OpCase<NormFwd> fwd{s.name(), forward(s)};
  OpCase<NormBwd> bwd{s.name(), backward(s)};
  if (s.x == DType::f32) {
    fwd.op.amax = bwd.op.amax = tensor(DType::f32, {1});
    examine(fwd), examine(bwd);
    fwd.op.amax = bwd.op.amax = {};
  }
  for (const Init& x : {normal(), constant(0), listed({1, -2, 3e4, 0, kInf, 5}), listed({1, 2, std::nan(""), -4})}) {
    fwd.values["w"] = fwd.values["b"] = x;
    leaves_amax(examine, fwd, "y");
    bwd.values["dh"] = x;
    leaves_amax(examine, bwd, "dh");
  }
  bwd.values = {{"dy", constant(0)}, {"dh", constant(-0.0)}};
  leaves_amax(examine, bwd, "dh");
}

struct Heads {
  int64_t rows, heads, kv_heads, dim;
};

void qk_norm(Examiner& examine, DType dt, DType wt, const Heads& h) {
  const std::string name = cat(h.rows, " rows ", h.heads, "/", h.kv_heads, "x", h.dim, " ", dt, " w ", wt);
  const Tensor x = tensor(dt, {h.rows, (h.heads + 2 * h.kv_heads) * h.dim}), w = tensor(wt, {h.dim});
  const Tensor rstd = tensor(DType::f32, {h.rows, h.heads + h.kv_heads}), dw = tensor(DType::f32, {h.dim});
  const OpCase<QkNormFwd> fwd{
      name, {.y = x, .rstd = rstd, .x = x, .wq = w, .wk = w, .heads = h.heads, .kv_heads = h.kv_heads, .eps = 1e-6f}};
  examine(fwd);
  if (!examine.wanted(QkNormBwd::kName)) return;
  OpCase<QkNormBwd> bwd{name,
                        {.dx = x,
                         .dwq = dw,
                         .dwk = dw,
                         .dy = x,
                         .x = x,
                         .rstd = rstd,
                         .wq = w,
                         .wk = w,
                         .heads = h.heads,
                         .kv_heads = h.kv_heads}};
  bwd.values["rstd"] = listed(decoded(DType::f32, result(examine.reference_results(fwd), "rstd").after));
  examine(bwd);
  if (dt == DType::f32 && h.rows == 3)
    examine.gradient(fwd, bwd, {{"y", "dy"}}, {{"x", "dx"}, {"wq", "dwq"}, {"wk", "dwk"}});
  bwd.name += " gradients bf16";
  bwd.op.dwq = bwd.op.dwk = tensor(DType::bf16, {h.dim});
  examine(bwd);
}

// Heads of which each of three ranks has a part.
void qk_norm_of_parts(Examiner& examine, DType dt, DType wt, const Heads& h) {
  constexpr int64_t kParts = 3;
  const std::string name = cat("parts: ", h.rows, " rows ", h.heads, "/", h.kv_heads, "x", h.dim, " ", dt, " w ", wt);
  const Tensor x = tensor(dt, {h.rows, (h.heads + 2 * h.kv_heads) * h.dim}), w = tensor(wt, {h.dim});
  const Tensor sums = tensor(DType::f32, {h.rows, h.heads + h.kv_heads}), dw = tensor(DType::f32, {h.dim});
  QkNormSums part{.sums = sums, .dy = {}, .x = x, .wq = w, .wk = w, .heads = h.heads, .kv_heads = h.kv_heads};
  examine(OpCase<QkNormSums>{name, part});
  part.dy = x;
  examine(OpCase<QkNormSums>{name + " gradient", part});
  OpCase<QkNormFwd> fwd{name,
                        {.y = x,
                         .rstd = sums,
                         .x = x,
                         .wq = w,
                         .wk = w,
                         .heads = h.heads,
                         .kv_heads = h.kv_heads,
                         .eps = 1e-6f,
                         .sums = sums,
                         .parts = kParts}};
  fwd.values["sums"] = uniform(double(h.dim), double(5 * h.dim));
  examine(fwd);
  OpCase<QkNormBwd> bwd{name,
                        {.dx = x,
                         .dwq = dw,
                         .dwk = dw,
                         .dy = x,
                         .x = x,
                         .rstd = sums,
                         .wq = w,
                         .wk = w,
                         .heads = h.heads,
                         .kv_heads = h.kv_heads,
                         .sums = sums,
                         .parts = kParts}};
  bwd.values["rstd"] = uniform(0.5, 1.5);
  examine(bwd);
}

}  // namespace

void norm_cases(Examiner& examine) {
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType dt : kFloats) {
      for (const Shape& s : {Shape{1, 1}, Shape{3, 17}, Shape{17, 257}, Shape{257, 33}, Shape{65, 96}})
        norm(examine, {kind, dt, dt, s[0], s[1]});
      norm(examine, {kind, dt, DType::f32, 17, 65});
      repeats_bits(examine, {kind, dt, dt, 17, 257});
      repeats_bits(examine, {kind, dt, DType::f32, 3, 33});
    }
  for (DType dt : {DType::f32, DType::bf16}) {  // work for many threads
    norm(examine, {NormKind::rms, dt, dt, 700, 150});
    norm(examine, {NormKind::layer, dt, DType::f32, 700, 150});
    qk_norm(examine, dt, dt, {300, 4, 2, 48});
  }
  offset_mean(examine);
  gradients(examine);
  for (NormKind kind : {NormKind::rms, NormKind::layer})
    for (DType dt : kFloats)
      for (const Shape& shape : {Shape{1, 1}, Shape{17, 257}, Shape{19, 96}, Shape{70, 1040}})
        amaxes(examine, {kind, dt, dt, shape[0], shape[1]});
  for (DType dt : kFloats) {
    for (const Heads& h : {Heads{1, 1, 1, 2}, Heads{3, 4, 2, 8}, Heads{17, 6, 3, 16}, Heads{65, 4, 1, 64}})
      qk_norm(examine, dt, dt, h);
    qk_norm(examine, dt, DType::f32, {17, 2, 2, 33});
    for (const Heads& h : {Heads{1, 1, 1, 2}, Heads{17, 1, 1, 96}, Heads{70, 3, 2, 33}})
      qk_norm_of_parts(examine, dt, dt, h);
    qk_norm_of_parts(examine, dt, DType::f32, {5, 1, 1, 128});
  }
}

}  // namespace athanor
