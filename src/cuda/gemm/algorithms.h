// All configurations of cuBLASLt for a product, listed from the reported capabilities of its algorithms, and their text
// form. Runs nothing.
#pragma once
#include <string>
#include <vector>

#include "cuda/libraries/cublaslt_table.h"
#include "ops/gemm_problem.h"
#include "ops/tuning.h"
namespace athanor::cuda {

// An algorithm of the library and the possible values of its settings.
struct AlgorithmSettings {
  cublasLtMatmulAlgo_t plain{};         // without settings
  std::vector<uint32_t> tiles, stages;  // at least one each: the library's "undefined"
  std::vector<int32_t> cuts = {1};      // splits of K; only those that repeat their bits
  std::vector<uint32_t> swizzles = {0}, custom = {0};
};

// Algorithms that may compute the problem: their alignment requirement is met. Empty if the library returns nothing.
std::vector<AlgorithmSettings> list_algorithms(const CublasLtTable& lt, cublasLtHandle_t handle, const GemmProblem& p);

// Every tile with all stages and cuts, shuffled, so that a search that ends early has covered all kinds. Not yet
// checked by the library.
std::vector<cublasLtMatmulAlgo_t> grid_of(const CublasLtTable& lt, const std::vector<AlgorithmSettings>& all);

// Configurations that differ from `algorithm` in one setting: swizzle, custom option, cluster or inner shape.
std::vector<cublasLtMatmulAlgo_t> neighbours_of(const CublasLtTable& lt, const std::vector<AlgorithmSettings>& all,
                                                const cublasLtMatmulAlgo_t& algorithm);

// waves: from the library's check. Rows and columns are those of row-major matrices; the library is column-major.
ProductMethod describe_algorithm(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& algorithm, double waves);

// Rows and columns of a cublasLtMatmulTile_t, as the library names them; 0 if unknown to this program.
struct TileShape {
  int64_t rows = 0, cols = 0;
};
TileShape tile_shape(uint32_t tile);

}  // namespace athanor::cuda
