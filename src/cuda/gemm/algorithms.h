// Describes an algorithm of cuBLASLt in words.
#pragma once
#include <string>

#include "cuda/libraries/cublaslt_table.h"
#include "ops/tuning.h"
namespace athanor::cuda {

// "algorithm 66, tile 128x256, stages 36, 2 cuts of K". Rows and columns of a tile are those of row-major matrices; the
// library is column-major.
std::string describe_algorithm(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& algorithm);

// Rows and columns of a cublasLtMatmulTile_t, as the library names them; 0 if unknown to this program.
struct TileShape {
  int64_t rows = 0, cols = 0;
};
TileShape tile_shape(uint32_t tile);

}  // namespace athanor::cuda
