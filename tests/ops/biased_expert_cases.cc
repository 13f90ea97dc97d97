// Cases of biases of experts and of the clamped activation: experts without rows and with all of them, rows of no
// expert, values inside and outside the clamp, gradients.
#include "tests/ops/cases.h"

namespace athanor {
namespace {

// Distinct slots in another order; 7 and 11 divide no number of rows here.
Init slots_of(int64_t rows) {
  const int64_t step = rows % 7 ? 7 : 11;
  return [=](uint64_t, int64_t i) { return double((i * step + 3) % rows); };
}

struct Rows {
  int64_t rows, experts;
  std::vector<double> offsets;
};

void biases(Examiner& examine) {
  const Rows kRows[] = {{1, 1, {0, 1}}, {24, 3, {0, 24, 24, 24}}, {66, 5, {0, 7, 7, 30, 61, 62}}};
  for (const DType dt : kFloats)
    for (const Rows& s : kRows)
      for (const int64_t cols : {1, 17, 96})
        for (const bool weighted : {false, true}) {
          const Tensor x = tensor(dt, {s.rows, cols}), bias = tensor(dt, {s.experts, cols});
          const Tensor offsets = tensor(DType::i32, {s.experts + 1});
          const Tensor weights = weighted ? tensor(DType::f32, {s.rows, 1}) : Tensor{};
          const Tensor slots = weighted ? tensor(DType::i32, {s.rows}) : Tensor{};
          const Values values{{"offsets", listed(s.offsets)}, {"slots", slots_of(s.rows)}};
          const std::string name =
              cat(s.rows, " rows of ", s.experts, " experts, ", cols, " ", dt, weighted ? " weighted" : "");
          const OpCase<AddExpertBias> fwd{name, {x, bias, offsets, weights, slots}, values};
          OpCase<AddExpertBiasBwd> bwd{name, {bias, weights, x, bias, offsets, weights, slots}, values};
          examine(fwd);
          if (dt == DType::bf16) {
            examine(bwd);
            bwd.name += " of bf16";
          }
          bwd.op.dbias.dtype = DType::f32;
          examine(bwd);
          if (weighted) {
            OpCase<AddExpertBiasBwd> frozen = bwd;
            frozen.name += " frozen", frozen.op.dbias = {};
            examine(frozen);
          }
          if (dt != DType::f32 || s.rows != 66 || cols != 17) continue;
          // Gradients are added to what is there: nothing, here.
          bwd.values["dbias"] = bwd.values["dweights"] = constant(0);
          if (weighted)
            examine.gradient(fwd, bwd, {{"x", "dx"}}, {{"bias", "dbias"}, {"weights", "dweights"}});
          else
            examine.gradient(fwd, bwd, {{"x", "dx"}}, {{"bias", "dbias"}});
        }
}

void clamped_activation(Examiner& examine) {
  for (const DType dt : kFloats)
    for (const auto& [rows, f] : {std::pair{1, 1}, {24, 17}, {66, 96}})
      for (const float limit : {7.0f, 1.5f}) {
        const Tensor y = tensor(dt, {rows, f}), gu = tensor(dt, {rows, 2 * f});
        const Tensor weights = tensor(DType::f32, {rows, 1}), slots = tensor(DType::i32, {rows});
        const Values values{{"gu", normal(0, 2)}, {"slots", slots_of(rows)}};
        const std::string name = cat(rows, "x", f, " ", dt, " limit ", limit);
        const OpCase<ClampedGluFwd> fwd{name, {y, gu, weights, slots, limit}, values};
        OpCase<ClampedGluBwd> bwd{name, {gu, weights, y, y, gu, weights, slots, limit}, values};
        examine(fwd);
        examine(bwd);
        // At the limit itself values pass; 1.5 and 7 are exact in all dtypes.
        OpCase<ClampedGluBwd> at_limit = bwd;
        at_limit.name += " at the limit", at_limit.values["gu"] = listed({limit, -limit, 9, -9, 0.5});
        examine(at_limit);
        bwd.name += " in place", bwd.shared = {{"dgu", "gu"}, {"y", "dy"}};
        examine(bwd);
        bwd.shared = {};
        if (dt == DType::f32 && rows == 24)
          examine.gradient(fwd, bwd, {{"y", "dy"}}, {{"gu", "dgu"}, {"weights", "dweights"}});
      }
}

}  // namespace

void biased_expert_cases(Examiner& examine) {
  biases(examine);
  clamped_activation(examine);
}

}  // namespace athanor
