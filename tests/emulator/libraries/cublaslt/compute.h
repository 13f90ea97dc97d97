// The arithmetic of one matrix product on emulated memory: fp32 accumulation in order of k, as split by the algorithm,
// then the epilogue in fp32 and one rounding to each stored type.
#pragma once
#include "algorithm.h"

namespace emu::fakes {

struct Operands {
  const void* alpha = nullptr;  // host values are copied at the call: see host_alpha
  const void* beta = nullptr;
  float host_alpha = 0, host_beta = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* c = nullptr;
  void* d = nullptr;
  void* workspace = nullptr;
};

void compute_product(const Product& product, const Algorithm& algorithm, const Operands& operands);

}  // namespace emu::fakes
