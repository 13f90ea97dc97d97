// Cases of GELU and SwiGLU: odd sizes, far tails, in place where the ops allow it, gradients.
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

// The largest magnitude of what is stored.
template <class Op>
void largest_magnitude(Examiner& examine, const std::string& name, Op op, const char* input, const char* output) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (op.fields()[0].t->dtype == DType::f32) {
    op.amax = tensor(DType::f32, {1});
    examine(OpCase<Op>{cat(name, " largest"), op});
    op.amax = {};
  }
  for (const Init& x :
       {normal(0, 2), kTails, constant(0), listed({1, -2, 3e4, kInf, 0, 0.5}), listed({1, std::nan("")})})
    leaves_largest(examine, OpCase<Op>{name, op, {{input, x}}}, output);
}

void largest_magnitudes(Examiner& examine) {
  for (DType dt : kFloats)
    for (const Shape& s : {Shape{1, 1}, Shape{17, 257}, Shape{300, 264}}) {
      const Tensor x = tensor(dt, s), gu = tensor(dt, {s[0], 2 * s[1]});
      const std::string name = cat(s, " ", dt);
      largest_magnitude(examine, name, GeluFwd{.y = x, .x = x}, "x", "y");
      largest_magnitude(examine, name, GeluBwd{.dx = x, .dy = x, .x = x}, "dy", "dx");
      largest_magnitude(examine, name, SwigluFwd{.y = x, .gu = gu}, "gu", "y");
      largest_magnitude(examine, name, SwigluBwd{.dgu = gu, .dy = x, .gu = gu}, "dy", "dgu");
    }
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
  largest_magnitudes(examine);
}

}  // namespace athanor
