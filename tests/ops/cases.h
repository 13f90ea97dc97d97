// The cases of every op, by family. A family examines its ops on whatever backend the Examiner holds.
#pragma once
#include <utility>

#include "tests/ops/examiner.h"

namespace athanor {

void gemm_cases(Examiner&);
void norm_cases(Examiner&);
void attention_cases(Examiner&);
void rope_cases(Examiner&);
void mlp_cases(Examiner&);
void embedding_cases(Examiner&);
void loss_cases(Examiner&);
void vocab_part_cases(Examiner&);
void basic_cases(Examiner&);
void quantize_cases(Examiner&);
void transposed_cases(Examiner&);  // of these
void fp4_cases(Examiner&);
void optimizer_cases(Examiner&);
void qk_clip_cases(Examiner&);

struct Family {
  const char* name;
  void (*run)(Examiner&);
};
constexpr Family kFamilies[] = {{"gemm", gemm_cases},
                                {"norm", norm_cases},
                                {"attention", attention_cases},
                                {"rope", rope_cases},
                                {"mlp", mlp_cases},
                                {"embedding", embedding_cases},
                                {"loss", loss_cases},
                                {"basic", basic_cases},
                                {"optimizer", optimizer_cases},
                                {"qk_clip", qk_clip_cases},
                                {"quantize", quantize_cases},
                                {"fp4", fp4_cases},
                                {"vocab_part", vocab_part_cases}};

}  // namespace athanor
