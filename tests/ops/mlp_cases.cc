// Cases of GELU, SwiGLU, other activations and sums scaled by parameters: odd sizes, far tails, in place where the ops
// allow it, gradients.
#include <cmath>
#include <limits>

#include "tests/ops/cases.h"

namespace athanor {
namespace {

// Around zero, where the functions bend, and where exp and tanh saturate or overflow.
const Init kTails =
    listed({0, -0.0, 1e-4, -1e-4, 0.3, -0.75, 1, -1, 2.5, -3.25, 5, -5, 9, -9, 20, -20, 60, -87, 90, -90, 150, -200});

template <class Fwd, class Bwd>
void family(Examiner& examine, const std::string& name, const Fwd& fwd, const Bwd& bwd, const char* input,
            const char* output, const char* in_place_over) {
  for (const Init& x : {normal(0, 2), kTails}) {
    examine(OpCase<Fwd>{name, fwd, {{input, x}}});
    examine(OpCase<Bwd>{name, bwd, {{input, x}}});
    examine(OpCase<Bwd>{cat(name, " in place"), bwd, {{input, x}}, false, {{output, in_place_over}}});
  }
}

// amax of the stored output.
template <class Op>
void amax_of(Examiner& examine, const std::string& name, Op op, const char* input, const char* output) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (op.fields()[0].t->dtype == DType::f32) {
    op.amax = tensor(DType::f32, {1});
    examine(OpCase<Op>{cat(name, " largest"), op});
    op.amax = {};
  }
  for (const Init& x :
       {normal(0, 2), kTails, constant(0), listed({1, -2, 3e4, kInf, 0, 0.5}), listed({1, std::nan("")})})
    leaves_amax(examine, OpCase<Op>{name, op, {{input, x}}}, output);
}

void amaxes(Examiner& examine) {
  for (DType dt : kFloats)
    for (const Shape& s : {Shape{1, 1}, Shape{17, 257}, Shape{300, 264}}) {
      const Tensor x = tensor(dt, s), gu = tensor(dt, {s[0], 2 * s[1]});
      const std::string name = cat(s, " ", dt);
      amax_of(examine, name, GeluFwd{.y = x, .x = x}, "x", "y");
      amax_of(examine, name, GeluBwd{.dx = x, .dy = x, .x = x}, "dy", "dx");
      amax_of(examine, name, SwigluFwd{.y = x, .gu = gu}, "gu", "y");
      amax_of(examine, name, SwigluBwd{.dgu = gu, .dy = x, .gu = gu}, "dy", "dgu");
    }
}

constexpr Activation kActivations[] = {Activation::gelu, Activation::silu, Activation::relu, Activation::relu2,
                                       Activation::gelu_erf};

// No value near 0, where the derivative of relu jumps.
const Init kSmooth = listed({0.4, -0.75, 1.1, -1.3, 2.5, -3.25, 0.9, -0.6, 1.7});

void activations(Examiner& examine, DType dt, const Shape& s, Activation f, bool gated) {
  const Tensor y = tensor(dt, s), x = tensor(dt, {s[0], gated ? 2 * s[1] : s[1]});
  const std::string name = cat(s, " ", dt, " ", int(f), gated ? " gated" : "");
  const ActivationFwd fwd{.f = f, .y = y, .x = x};
  const ActivationBwd bwd{.f = f, .dx = x, .dy = y, .x = x};
  for (const Init& values : {normal(0, 2), kTails}) {
    examine(OpCase<ActivationFwd>{name, fwd, {{"x", values}}});
    examine(OpCase<ActivationBwd>{name, bwd, {{"x", values}}});
  }
  examine(OpCase<ActivationBwd>{cat(name, " over x"), bwd, {}, false, {{"dx", "x"}}});
  if (!gated) examine(OpCase<ActivationBwd>{cat(name, " over dy"), bwd, {}, false, {{"dx", "dy"}}});
}

void activation_gradients(Examiner& examine) {
  for (const Activation f : kActivations)
    for (const bool gated : {false, true}) {
      const Tensor y = tensor(DType::f32, {3, 7}), x = tensor(DType::f32, {3, gated ? 14 : 7});
      const Values values{{"x", kSmooth}};
      examine.gradient(OpCase<ActivationFwd>{"gradient", {.f = f, .y = y, .x = x}, values},
                       OpCase<ActivationBwd>{"gradient", {.f = f, .dx = x, .dy = y, .x = x}, values}, {{"y", "dy"}},
                       {{"x", "dx"}});
    }
}

void scaled_sums(Examiner& examine, DType dt, DType scalar, const Shape& s) {
  const Tensor x = tensor(dt, s), one = tensor(scalar, {1});
  const std::string name = cat(s, " ", dt, " by ", scalar);
  const Tensor grad = tensor(scalar == DType::bf16 ? DType::bf16 : DType::f32, {1});
  for (const bool a : {false, true})
    for (const bool b : {false, true}) {
      const std::string which = cat(name, a ? " a" : "", b ? " b" : "");
      ScaledSum fwd{.y = x, .x = x, .z = x};
      ScaledSumBwd bwd{.dx = x, .dz = x, .dy = x, .x = x, .z = x};
      if (a) fwd.a = bwd.a = one, bwd.da = grad;
      if (b) fwd.b = bwd.b = one, bwd.db = grad;
      examine(OpCase<ScaledSum>{which, fwd});
      examine(OpCase<ScaledSum>{cat(which, " over x"), fwd, {}, false, {{"y", "x"}}});
      examine(OpCase<ScaledSum>{cat(which, " over z"), fwd, {}, false, {{"y", "z"}}});
      examine(OpCase<ScaledSumBwd>{which, bwd});
      examine(OpCase<ScaledSumBwd>{cat(which, " over dy"), bwd, {}, false, {{"dx", "dy"}}});
      if (dt != DType::f32 || scalar != DType::f32 || s[0] != 3) continue;
      Examiner::Pairs all{{"x", "dx"}, {"z", "dz"}};
      if (a) all.push_back({"a", "da"});
      if (b) all.push_back({"b", "db"});
      examine.gradient(OpCase<ScaledSum>{"gradient", fwd}, OpCase<ScaledSumBwd>{"gradient", bwd}, {{"y", "dy"}}, all);
    }
}

// With a gate of each group of columns or without, each term and factor there or not, in views of wider matrices.
void gated_sums(Examiner& examine, DType dt, int64_t rows, int64_t groups, int64_t width, int64_t stride) {
  const int64_t columns = groups * width;
  const Tensor x = tensor(dt, {rows, columns}, stride), gate = tensor(dt, {rows, groups});
  const Tensor scalar = tensor(DType::f32, {1});
  for (const bool has_x : {false, true})
    for (const bool has_gate : {false, true})
      for (const bool scaled : {false, true}) {
        const std::string name = cat(rows, "x", groups, "x", width, " ", dt, has_x ? " x" : "", has_gate ? " gate" : "",
                                     scaled ? " scaled" : "");
        GatedSum fwd{.y = x, .x = {}, .z = x, .factor = 3};
        GatedSumBwd bwd{.dx = {}, .dz = x, .dgate = {}, .da = {}, .db = {}, .dy = x, .x = {}, .z = {}, .factor = 3};
        if (has_x) fwd.x = bwd.dx = x;
        if (has_gate) fwd.gate = bwd.gate = bwd.dgate = gate, bwd.z = x;
        if (scaled) fwd.b = bwd.b = bwd.db = scalar, bwd.z = x;
        if (scaled && has_x) fwd.a = bwd.a = bwd.da = scalar, bwd.x = x;
        examine(OpCase<GatedSum>{name, fwd});
        examine(OpCase<GatedSumBwd>{name, bwd});
        if (has_x) examine(OpCase<GatedSum>{cat(name, " over x"), fwd, {}, false, {{"y", "x"}}});
        if (has_x) examine(OpCase<GatedSumBwd>{cat(name, " over dy"), bwd, {}, false, {{"dx", "dy"}}});
        if (dt != DType::f32 || rows != 3) continue;
        Examiner::Pairs all{{"z", "dz"}};
        if (has_x) all.push_back({"x", "dx"});
        if (has_gate) all.push_back({"gate", "dgate"});
        if (scaled) all.push_back({"b", "db"});
        if (scaled && has_x) all.push_back({"a", "da"});
        examine.gradient(OpCase<GatedSum>{"gradient", fwd}, OpCase<GatedSumBwd>{"gradient", bwd}, {{"y", "dy"}}, all);
      }
  examine(OpCase<GatedSum>{"copy", {.y = x, .x = x, .z = {}}, {}, true});
  examine(OpCase<GatedSum>{"closed and open gates", {.y = x, .x = x, .z = x, .gate = gate}, {{"gate", kTails}}});
}

}  // namespace

void mlp_cases(Examiner& examine) {
  for (DType dt : kFloats)
    for (const Shape& s :
         {Shape{1, 1}, Shape{3, 17}, Shape{17, 257}, Shape{1, 1000}, Shape{257, 40}, Shape{300, 260}}) {
      const Tensor x = tensor(dt, s), gu = tensor(dt, {s[0], 2 * s[1]});
      const GeluBwd gelu_bwd{.dx = x, .dy = x, .x = x};
      const SwigluBwd swiglu_bwd{.dgu = gu, .dy = x, .gu = gu};
      family(examine, cat(s, " ", dt), GeluFwd{.y = x, .x = x}, gelu_bwd, "x", "dx", "dy");
      family(examine, cat(s, " ", dt), SwigluFwd{.y = x, .gu = gu}, swiglu_bwd, "gu", "dgu", "gu");
      SwigluBwd with_y = swiglu_bwd;
      with_y.y = x;
      for (const Init& values : {normal(0, 2), kTails}) {
        const std::string name = cat(s, " ", dt, " and y");
        examine(OpCase<SwigluBwd>{name, with_y, {{"gu", values}}});
        examine(
            OpCase<SwigluBwd>{cat(name, " in place"), with_y, {{"gu", values}}, false, {{"dgu", "gu"}, {"y", "dy"}}});
      }
    }
  const Tensor x = tensor(DType::f32, {3, 17}), gu = tensor(DType::f32, {3, 34});
  examine.gradient(OpCase<GeluFwd>{"gradient", {.y = x, .x = x}},
                   OpCase<GeluBwd>{"gradient", {.dx = x, .dy = x, .x = x}}, {{"y", "dy"}}, {{"x", "dx"}});
  examine.gradient(OpCase<SwigluFwd>{"gradient", {.y = x, .gu = gu}},
                   OpCase<SwigluBwd>{"gradient", {.dgu = gu, .dy = x, .gu = gu}}, {{"y", "dy"}}, {{"gu", "dgu"}});
  amaxes(examine);
}

// Values first, then gradients, then what ops leave in amax: a planted mistake is met by the check that is for it.
void activation_cases(Examiner& examine) {
  for (const DType dt : kFloats)
    for (const Activation f : kActivations) {
      for (const Shape& s : {Shape{1, 2}, Shape{3, 17}, Shape{17, 257}})  // a column more is no gate
        for (const bool gated : {false, true}) activations(examine, dt, s, f, gated);
      if (f == Activation::relu2) activations(examine, dt, {300, 264}, f, false);  // work for many threads
    }
  activation_gradients(examine);
  for (const DType dt : kFloats)
    for (const Activation f : kActivations) {
      const Tensor y = tensor(dt, {17, 257}), x = tensor(dt, {17, 514});
      const std::string name = cat(dt, " ", int(f));
      amax_of(examine, name, ActivationFwd{.f = f, .y = y, .x = y}, "x", "y");
      amax_of(examine, name, ActivationBwd{.f = f, .dx = x, .dy = y, .x = x}, "dy", "dx");
    }
  for (const DType dt : kFloats)
    for (const DType scalar : dt == DType::f32 ? std::vector{dt} : std::vector{dt, DType::f32})
      for (const Shape& s : {Shape{1, 1}, Shape{3, 17}, Shape{170, 264}}) scaled_sums(examine, dt, scalar, s);
  for (const DType dt : kFloats) {
    gated_sums(examine, dt, 1, 1, 1, 0);
    gated_sums(examine, dt, 3, 4, 7, 37);
    gated_sums(examine, dt, 130, 2, 136, 280);
  }
}

}  // namespace athanor
