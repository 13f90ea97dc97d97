// The cases of every op, by family. A family examines its ops on whatever backend the Examiner holds.
#pragma once
#include <cmath>
#include <utility>

#include "tests/ops/examiner.h"

namespace athanor {

// Checks an op that stores the amax of `output` in `amax`: it equals the amax of the stored values to the bit, NaN if
// one is NaN, and no other result changes. `c`: the case without amax.
template <class Op>
void leaves_amax(Examiner& examine, OpCase<Op> c, const char* output) {
  if (examine.lists() || !examine.wanted(Op::kName)) return;
  const auto without = examine.backend_results(c);
  c.op.amax = tensor(DType::f32, {1});
  const auto with = examine.backend_results(c);
  for (const Result& r : without)
    if (r.after != result(with, r.name).after)
      examine.note({Fault::wrong_value, Op::kName, r.name, cat(c.name, ": not the bits of the op without amax")});
  const Result& y = result(with, output);
  double want = 0;
  for (const double x : decoded(y.like.dtype, y.after))
    if (!std::isnan(want) && !(std::abs(x) <= want)) want = std::abs(x);
  const double got = decoded(DType::f32, result(with, "amax").after)[0];
  if (got != want && !(std::isnan(got) && std::isnan(want)))
    examine.note({Fault::wrong_value, Op::kName, "amax", cat(c.name, ": ", got, ", stored ", want)});
}

// The state of a step in the middle of a run.
inline StepState running_state() {
  StepState s;
  s.updates = 37;
  s.grad_scale = 0.25f;
  s.lr = 0.01f;
  s.corrections[0] = float(1 - std::pow(0.9, 37));
  s.corrections[1] = float(1 - std::pow(0.95, 37));
  return s;
}

void gemm_cases(Examiner&);
void norm_cases(Examiner&);
void attention_cases(Examiner&);
void rope_cases(Examiner&);
void latent_cases(Examiner&);
void mlp_cases(Examiner&);
void activation_cases(Examiner&);
void embedding_cases(Examiner&);
void loss_cases(Examiner&);
void vocab_part_cases(Examiner&);
void top_logits_cases(Examiner&);
void basic_cases(Examiner&);
void quantize_cases(Examiner&);
void transposed_cases(Examiner&);  // a part of quantize_cases()
void fp4_cases(Examiner&);
void quantize_part_cases(Examiner&);
void optimizer_cases(Examiner&);
void step_control_cases(Examiner&);  // this and the next three: called by optimizer_cases()
void one_bit_cases(Examiner&);
void packed_groups_cases(Examiner&);
void trust_ratio_cases(Examiner&);
void qk_clip_cases(Examiner&);
void moe_cases(Examiner&);
void biased_expert_cases(Examiner&);
void weight_form_cases(Examiner&);

struct Family {
  const char* name;
  void (*run)(Examiner&);
};
constexpr Family kFamilies[] = {{"gemm", gemm_cases},
                                {"norm", norm_cases},
                                {"attention", attention_cases},
                                {"rope", rope_cases},
                                {"latent", latent_cases},
                                {"mlp", mlp_cases},
                                {"activation", activation_cases},
                                {"embedding", embedding_cases},
                                {"loss", loss_cases},
                                {"basic", basic_cases},
                                {"optimizer", optimizer_cases},
                                {"qk_clip", qk_clip_cases},
                                {"quantize", quantize_cases},
                                {"fp4", fp4_cases},
                                {"quantize_part", quantize_part_cases},
                                {"vocab_part", vocab_part_cases},
                                {"top_logits", top_logits_cases},
                                {"moe", moe_cases},
                                {"biased_experts", biased_expert_cases},
                                {"weight_form", weight_form_cases}};

}  // namespace athanor
