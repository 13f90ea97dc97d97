#include "cuda/gemm/algorithms.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/rng.h"
#include "cuda/gemm/gemm.h"
namespace athanor::cuda {
namespace {

constexpr int kMostIds = 256;                                        // cuBLASLt has a few dozen
constexpr int32_t kCuts[] = {2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32};  // splits of K

template <class T>
std::optional<T> capability(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& algorithm,
                            cublasLtMatmulAlgoCapAttributes_t name) {
  T value{};
  size_t written = 0;
  const auto status = lt.cublasLtMatmulAlgoCapGetAttribute(&algorithm, name, &value, sizeof value, &written);
  return status == CUBLAS_STATUS_SUCCESS ? std::optional(value) : std::nullopt;
}

std::vector<uint32_t> list_capability(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& algorithm,
                                      cublasLtMatmulAlgoCapAttributes_t name) {
  size_t bytes = 0;
  if (lt.cublasLtMatmulAlgoCapGetAttribute(&algorithm, name, nullptr, 0, &bytes) != CUBLAS_STATUS_SUCCESS) bytes = 0;
  std::vector<uint32_t> values(bytes / sizeof(uint32_t));
  if (values.empty() ||
      lt.cublasLtMatmulAlgoCapGetAttribute(&algorithm, name, values.data(), bytes, &bytes) != CUBLAS_STATUS_SUCCESS)
    return {0};
  return values;
}

template <class T>
bool configure(const CublasLtTable& lt, cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name,
               T value) {
  return lt.cublasLtMatmulAlgoConfigSetAttribute(&algorithm, name, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
}

template <class T>
T setting(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  T value{};
  (void)lt.cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof value, nullptr);
  return value;
}

// The library's A is our b. Alignments apply to addresses and row strides; if unknown, the strictest is assumed.
bool aligned(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& algorithm, const GemmProblem& p) {
  const auto fits = [&](cublasLtMatmulAlgoCapAttributes_t name, int address, int64_t stride, DType dtype) {
    const int64_t needed = std::max(1U, capability<uint32_t>(lt, algorithm, name).value_or(kMostAlign));
    return address % needed == 0 && stride * static_cast<int64_t>(size_of(dtype)) % needed == 0;
  };
  return fits(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES, p.align_b, p.stride_b, p.b) &&
         fits(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_B_BYTES, p.align_a, p.stride_a, p.a) &&
         fits(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_C_BYTES, p.align_d, p.stride_d, p.d) &&
         fits(CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_D_BYTES, p.align_d, p.stride_d, p.d);
}

AlgorithmSettings settings_of(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& plain, const GemmProblem& p) {
  AlgorithmSettings s{.plain = plain,
                      .tiles = list_capability(lt, plain, CUBLASLT_ALGO_CAP_TILE_IDS),
                      .stages = list_capability(lt, plain, CUBLASLT_ALGO_CAP_STAGES_IDS)};
  const uint32_t reductions = capability<uint32_t>(lt, plain, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK).value_or(0);
  if (capability<int32_t>(lt, plain, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT).value_or(0) != 0 &&
      (reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) != 0)
    for (const int32_t cuts : kCuts)
      if (cuts <= p.k) s.cuts.push_back(cuts);
  if (capability<uint32_t>(lt, plain, CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT).value_or(0) != 0)
    s.swizzles.push_back(1);
  const int32_t most = capability<int32_t>(lt, plain, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX).value_or(0);
  for (int32_t option = 1; option <= most; ++option) s.custom.push_back(static_cast<uint32_t>(option));
  return s;
}

// The tiles of cublasLtMatmulTile_t in the order of the header: 35 in no regular order, then wide and tall ones in
// steps of 64 and 8 up to an area, without repetitions.
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

std::vector<AlgorithmSettings> list_algorithms(const CublasLtTable& lt, cublasLtHandle_t handle, const GemmProblem& p) {
  const cublasComputeType_t compute = compute_type_of(p);
  const cudaDataType_t a = type_of(p.b), b = type_of(p.a), d = type_of(p.d);
  int ids[kMostIds], count = 0;
  if (lt.cublasLtMatmulAlgoGetIds(handle, compute, CUDA_R_32F, a, b, d, d, kMostIds, ids, &count) !=
      CUBLAS_STATUS_SUCCESS)
    return {};
  std::vector<AlgorithmSettings> all;
  for (int i = 0; i < count; ++i) {
    cublasLtMatmulAlgo_t plain{};
    const auto status = lt.cublasLtMatmulAlgoInit(handle, compute, CUDA_R_32F, a, b, d, d, ids[i], &plain);
    if (status == CUBLAS_STATUS_SUCCESS && aligned(lt, plain, p)) all.push_back(settings_of(lt, plain, p));
  }
  return all;
}

std::vector<cublasLtMatmulAlgo_t> grid_of(const CublasLtTable& lt, const std::vector<AlgorithmSettings>& all) {
  std::vector<cublasLtMatmulAlgo_t> grid;
  for (const AlgorithmSettings& s : all)
    for (const uint32_t tile : s.tiles)
      for (const uint32_t stages : s.stages)
        for (const int32_t cuts : s.cuts) {
          cublasLtMatmulAlgo_t one = s.plain;
          const uint32_t reduction = cuts > 1 ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_NONE;
          if (configure(lt, one, CUBLASLT_ALGO_CONFIG_TILE_ID, tile) &&
              configure(lt, one, CUBLASLT_ALGO_CONFIG_STAGES_ID, stages) &&
              configure(lt, one, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, cuts) &&
              configure(lt, one, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, reduction))
            grid.push_back(one);
        }
  for (size_t left = grid.size(); left > 1; --left)  // [Fisher and Yates 1938]
    std::swap(grid[left - 1], grid[random_bits(0, stream_of("gemm grid"), left) % left]);
  return grid;
}

std::vector<cublasLtMatmulAlgo_t> neighbours_of(const CublasLtTable& lt, const std::vector<AlgorithmSettings>& all,
                                                const cublasLtMatmulAlgo_t& algorithm) {
  std::vector<cublasLtMatmulAlgo_t> found;
  const auto id = [&](const cublasLtMatmulAlgo_t& x) { return setting<int32_t>(lt, x, CUBLASLT_ALGO_CONFIG_ID); };
  const auto vary = [&](cublasLtMatmulAlgoConfigAttributes_t name, const auto& values) {
    for (const auto value : values) {
      cublasLtMatmulAlgo_t one = algorithm;
      if (configure(lt, one, name, value)) found.push_back(one);
    }
  };
  std::vector<uint16_t> clusters, inner;
  for (int i = CUBLASLT_CLUSTER_SHAPE_AUTO; i < CUBLASLT_CLUSTER_SHAPE_END; ++i)
    clusters.push_back(static_cast<uint16_t>(i));
  for (int i = CUBLASLT_MATMUL_INNER_SHAPE_UNDEFINED; i < CUBLASLT_MATMUL_INNER_SHAPE_END; ++i)
    inner.push_back(static_cast<uint16_t>(i));
  for (const AlgorithmSettings& s : all) {
    if (id(s.plain) != id(algorithm)) continue;
    vary(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, s.swizzles);
    vary(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, s.custom);
    vary(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, clusters);
    vary(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, inner);
  }
  return found;
}

ProductMethod describe_algorithm(const CublasLtTable& lt, const cublasLtMatmulAlgo_t& algorithm, double waves) {
  const auto number = [&](cublasLtMatmulAlgoConfigAttributes_t name) { return setting<uint32_t>(lt, algorithm, name); };
  const TileShape tile = tile_shape(number(CUBLASLT_ALGO_CONFIG_TILE_ID));
  ProductMethod method{.tile_rows = tile.cols, .tile_cols = tile.rows, .waves = waves};
  method.cuts = std::max(1, setting<int32_t>(lt, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
  method.words = cat("algorithm ", setting<int32_t>(lt, algorithm, CUBLASLT_ALGO_CONFIG_ID));
  if (tile.rows > 0) method.words += cat(", tile ", method.tile_rows, "x", method.tile_cols);
  const auto add = [&](const char* what, uint32_t value) {
    if (value > 0) method.words += cat(", ", what, " ", value);
  };
  add("stages", number(CUBLASLT_ALGO_CONFIG_STAGES_ID));
  if (method.cuts > 1) method.words += cat(", ", method.cuts, " cuts of K");
  add("swizzle", number(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING));
  add("custom option", number(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION));
  add("cluster", setting<uint16_t>(lt, algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
  add("inner shape", setting<uint16_t>(lt, algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID));
  return method;
}

}  // namespace athanor::cuda
