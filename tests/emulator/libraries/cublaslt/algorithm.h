// The algorithms of the fake: a few kernels with different tiles, alignment demands and ways to split K, so that a
// search has something to choose from. An algorithm is kept in the 64 bytes of cublasLtMatmulAlgo_t, which a program
// may copy, store in a file and check again.
#pragma once
#include <string>
#include <vector>

#include "problem.h"

namespace emu::fakes {

struct Algorithm {
  int32_t id = 0;
  uint32_t tile = CUBLASLT_MATMUL_TILE_UNDEFINED;
  uint32_t stages = CUBLASLT_MATMUL_STAGES_UNDEFINED;
  int32_t split_k = 1;
  uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  uint32_t swizzling = 0, custom = 0;
  uint16_t inner_shape = 0, cluster = 0;
  uint64_t types = 0;  // Product::type_key() it was made for
};

cublasLtMatmulAlgo_t pack(const Algorithm& algorithm);
bool unpack(const cublasLtMatmulAlgo_t& packed, Algorithm* out);  // false: never initialised, or damaged

// The configurations that one algorithm supports.
struct Kernel {
  int32_t id;
  std::vector<uint32_t> tiles, stages;
  uint32_t alignment;   // bytes, of pointers and leading dimensions; 0: one element
  uint32_t reductions;  // mask; 0: cannot split K
};
const Kernel* find_kernel(int32_t id);  // null: unknown id
const std::vector<Kernel>& kernels();
uint32_t kernel_alignment(const Kernel& kernel, Element type);

// Is the configuration possible for the product, without regard to pointers?
Verdict check_algorithm(const Algorithm& algorithm, const Product& product);
size_t workspace_bytes(const Algorithm& algorithm, const Product& product);
float waves(const Algorithm& algorithm, const Product& product, const MachineDevice& device);

struct Roofline {  // limits set in a cublasLtMatmulPreference_t
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};

// All configurations that keep within the limits, the fastest (by a crude estimate) first.
std::vector<Algorithm> candidates(const Product& product, const Roofline& limits, const MachineDevice& device);

}  // namespace emu::fakes
