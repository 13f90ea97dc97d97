// All configurations of cuBLASLt for a product, listed from the reported capabilities of its algorithms, and their text
// form. Runs nothing.
#pragma once
#include <string>
#include <vector>

#include "cuda/libraries/cublaslt_table.h"
#include "ops/gemm_problem.h"
#include "ops/tuning.h"
namespace athanor::cuda {

// An algorithm of the library and the values that its settings may have.
struct AlgorithmSettings {
  cublasLtMatmulAlgo_t plain{};         // none of them set
  std::vector<uint32_t> tiles, stages;  // at least one each: what the library calls undefined
  std::vector<int32_t> cuts = {1};      // of K; only sums that repeat their bits
  std::vector<uint32_t> swizzles = {0}, custom = {0};
};

// Algorithms that may compute the problem: their alignment requirement is met. Empty if the library returns nothing.
std::vector<AlgorithmSettings> list_algorithms(const CublasLtTable& lt, cublasLtHandle_t handle, const GemmProblem& p);

// Every tile with all stages and cuts, in an order that leaves nothing for last: a search that ends early has seen some
// of everything. The library has not checked them.
std::vector<cublasLtMatmulAlgo_t> grid_of(const CublasLtTable& lt, const std::vector<AlgorithmSettings>& all);

// Configurations that differ from one of the given in a single setting: swizzle, custom option, cluster or inner shape.
std::vector<cublasLtMatmulAlgo_t> neighbours_of(const CublasLtTable& lt, const std::vector<AlgorithmSettings>& all,
                                                const cublasLtMatmulAlgo_t& algorithm);

// waves: of the library's check. Rows and columns are ours: the library counts columns first.
ProductMethod describe_algorithm(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& algorithm, double waves);

// Rows and columns of a cublasLtMatmulTile_t as the library names them; 0 for one that this program does not know.
struct TileShape {
  int64_t rows = 0, cols = 0;
};
TileShape tile_shape(uint32_t tile);

}  // namespace athanor::cuda
