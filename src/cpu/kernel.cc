// Chooses the kernels for this CPU.
#include "cpu/kernel.h"

namespace athanor {

const Kernels* kernels_amx_bf16();
const Kernels* kernels_avx512_bf16();
const Kernels* kernels_avx512();
const Kernels* kernels_avx2();
const Kernels* kernels_baseline();

const Kernels* kernels_of(Isa isa) {
  if (!cpu_has(isa)) return nullptr;
  switch (isa) {
#if defined(__x86_64__)
    case Isa::amx_bf16:
      return kernels_amx_bf16();
    case Isa::avx512_bf16:
      return kernels_avx512_bf16();
    case Isa::avx512:
      return kernels_avx512();
    case Isa::avx2:
      return kernels_avx2();
#endif
    default:
      return kernels_baseline();
  }
}

namespace {
const Kernels& choose() {
  for (int i = int(isa()); i > 0; --i)
    if (const Kernels* found = kernels_of(kIsas[i])) return *found;
  return *kernels_baseline();
}
}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace athanor
