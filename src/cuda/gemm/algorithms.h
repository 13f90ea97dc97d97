// All that cuBLASLt can be configured to compute a product by, listed from what its algorithms say they can do, and how
// an algorithm is told in words. Nothing here runs.
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

// Those that may compute the problem: their alignment is not more than its addresses and rows have. Empty where the
// library answers nothing.
std::vector<AlgorithmSettings> list_algorithms(const CublasLtTable& lt, cublasLtHandle_t handle, const GemmProblem& p);

// Every tile with all stages and cuts, in an order that leaves nothing for last: a search that ends early has seen some
// of everything. The library has not checked them.
std::vector<cublasLtMatmulAlgo_t> grid_of(const CublasLtTable& lt, const std::vector<AlgorithmSettings>& all);

// Those that differ from one of them in a single setting: swizzle, custom option, cluster or inner shape.
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
