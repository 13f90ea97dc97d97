#include "cuda/gemm/algorithms.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
namespace athanor::cuda {
namespace {

template <class T>
T setting(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  T value{};
  (void)lt.cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof value, nullptr);
  return value;
}

// The tiles of cublasLtMatmulTile_t in the order of the header: 35 in no regular order, then wide and tall tiles in
// steps of 64 and 8 up to a maximum area, without repetitions.
std::vector<TileShape> all_tiles() {
  std::vector<std::pair<int, int>> tiles = {
      {0, 0},    {8, 8},    {8, 16},    {16, 8},    {8, 32},    {16, 16},   {32, 8},    {8, 64},   {16, 32},
      {32, 16},  {64, 8},   {32, 32},   {32, 64},   {64, 32},   {32, 128},  {64, 64},   {128, 32}, {64, 128},
      {128, 64}, {64, 256}, {128, 128}, {256, 64},  {64, 512},  {128, 256}, {256, 128}, {512, 64}, {64, 96},
      {96, 64},  {96, 128}, {128, 160}, {160, 128}, {192, 128}, {128, 192}, {128, 96},  {32, 256}, {256, 32}};
  std::set<std::pair<int, int>> named(tiles.begin(), tiles.end());
  const auto add = [&](int rows, int cols) {
    if (named.insert({rows, cols}).second) tiles.push_back({rows, cols});
  };
  for (int rows = 8; rows <= 768; rows += 8)
    for (int cols = 64; rows * cols <= 64 * 768 && cols <= 768; cols += 64) add(rows, cols);
  for (int rows = 64; rows <= 768; rows += 64)
    for (int cols = 8; rows * cols <= (rows == 64 ? 64 * 760 : 256 * 256); cols += 8) add(rows, cols);
  for (const auto& [rows, cols] : {std::pair{256, 512}, {256, 1024}, {512, 512}, {512, 1024}}) add(rows, cols);
  std::vector<TileShape> shapes;
  for (const auto& [rows, cols] : tiles) shapes.push_back({rows, cols});
  return shapes;
}

}  // namespace

TileShape tile_shape(uint32_t tile) {
  static const std::vector<TileShape> shapes = all_tiles();
  return tile < shapes.size() ? shapes[tile] : TileShape{};
}

std::string describe_algorithm(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& algorithm) {
  const auto number = [&](cublasLtMatmulAlgoConfigAttributes_t name) { return setting<uint32_t>(lt, algorithm, name); };
  const TileShape tile = tile_shape(number(CUBLASLT_ALGO_CONFIG_TILE_ID));
  const int32_t cuts = setting<int32_t>(lt, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
  std::string words = cat("algorithm ", setting<int32_t>(lt, algorithm, CUBLASLT_ALGO_CONFIG_ID));
  if (tile.rows > 0) words += cat(", tile ", tile.cols, "x", tile.rows);
  const auto add = [&](const char* what, uint32_t value) {
    if (value > 0) words += cat(", ", what, " ", value);
  };
  add("stages", number(CUBLASLT_ALGO_CONFIG_STAGES_ID));
  if (cuts > 1) words += cat(", ", cuts, " cuts of K");
  add("swizzle", number(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING));
  add("custom option", number(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION));
  add("cluster", setting<uint16_t>(lt, algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
  add("inner shape", setting<uint16_t>(lt, algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID));
  return words;
}

}  // namespace athanor::cuda
