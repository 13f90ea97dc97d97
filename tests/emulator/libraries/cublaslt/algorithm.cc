// Which algorithms there are, what they need and how long they would take; see algorithm.h.
#include "algorithm.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../fake_library.h"

namespace emu::fakes {
namespace {

constexpr uint64_t kMagic = 0x656d755f616c676full;
constexpr uint32_t kAllReductions = CUBLASLT_REDUCTION_SCHEME_MASK;

struct TileShape {
  int64_t rows, cols;
};

TileShape tile_shape(uint32_t tile) {
  switch (tile) {
    case CUBLASLT_MATMUL_TILE_256x128:
      return {256, 128};
    case CUBLASLT_MATMUL_TILE_128x256:
      return {128, 256};
    case CUBLASLT_MATMUL_TILE_128x128:
      return {128, 128};
    case CUBLASLT_MATMUL_TILE_64x128:
      return {64, 128};
    default:
      return {64, 64};
  }
}

int64_t tiles(const Algorithm& algorithm, const Product& product) {
  TileShape shape = tile_shape(algorithm.tile);
  return (product.m + shape.rows - 1) / shape.rows * ((product.n + shape.cols - 1) / shape.cols);
}

// Arbitrary units: full waves of tiles, each k / split_k long, and the time of the reduction.
double estimate(const Algorithm& algorithm, const Product& product, const MachineDevice& device) {
  TileShape shape = tile_shape(algorithm.tile);
  double area = static_cast<double>(shape.rows * shape.cols);
  double efficiency = area / (area + 64 * 64);  // small tiles load more per product
  double main = std::ceil(waves(algorithm, product, device)) * area * static_cast<double>(product.k) /
                algorithm.split_k / efficiency;
  if (find_kernel(algorithm.id)->alignment == 0) main *= 4;  // element by element
  if (algorithm.split_k == 1) return main;
  double launch = algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE ? 2e6 : 4e6;  // a second kernel
  double reduction =
      launch + 2.0 * algorithm.split_k * static_cast<double>(product.m * product.n) / device.multiprocessors;
  return main + reduction;
}

bool aligned(const Matrix& matrix, uint32_t bytes, uint32_t promised) {
  return promised % bytes == 0 && bytes_of(matrix.type, matrix.ld) % bytes == 0;
}

bool within(const Algorithm& algorithm, const Product& product, const Roofline& limits) {
  const Kernel& kernel = *find_kernel(algorithm.id);
  if (algorithm.split_k > 1 && !(algorithm.reduction & limits.reductions)) return false;
  if (workspace_bytes(algorithm, product) > limits.workspace) return false;
  return aligned(product.a, kernel_alignment(kernel, product.a.type), limits.alignment_a) &&
         aligned(product.b, kernel_alignment(kernel, product.b.type), limits.alignment_b) &&
         aligned(product.c, kernel_alignment(kernel, product.c.type), limits.alignment_c) &&
         aligned(product.d, kernel_alignment(kernel, product.d.type), limits.alignment_d);
}

}  // namespace

static_assert(sizeof(Algorithm) + sizeof(kMagic) <= sizeof(cublasLtMatmulAlgo_t));

cublasLtMatmulAlgo_t pack(const Algorithm& algorithm) {
  cublasLtMatmulAlgo_t packed{};
  std::memcpy(&packed.data[0], &kMagic, sizeof kMagic);
  std::memcpy(&packed.data[1], &algorithm, sizeof algorithm);
  return packed;
}

bool unpack(const cublasLtMatmulAlgo_t& packed, Algorithm* out) {
  if (packed.data[0] != kMagic) return false;
  std::memcpy(static_cast<void*>(out), &packed.data[1], sizeof *out);
  return find_kernel(out->id) != nullptr;
}

const std::vector<Kernel>& kernels() {
  static const std::vector<Kernel> all = {
      {.id = 66,
       .tiles = {CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_TILE_128x256, CUBLASLT_MATMUL_TILE_256x128},
       .stages = {CUBLASLT_MATMUL_STAGES_64xAUTO},
       .alignment = 16,
       .reductions = kAllReductions},
      {.id = 67,
       .tiles = {CUBLASLT_MATMUL_TILE_64x64, CUBLASLT_MATMUL_TILE_64x128},
       .stages = {CUBLASLT_MATMUL_STAGES_32x3, CUBLASLT_MATMUL_STAGES_64x3},
       .alignment = 4,
       .reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE},
      {.id = 24,
       .tiles = {CUBLASLT_MATMUL_TILE_64x64},
       .stages = {CUBLASLT_MATMUL_STAGES_UNDEFINED},
       .alignment = 0,
       .reductions = CUBLASLT_REDUCTION_SCHEME_NONE}};
  return all;
}

const Kernel* find_kernel(int32_t id) {
  for (const Kernel& kernel : kernels()) {
    if (kernel.id == id) return &kernel;
  }
  return nullptr;
}

uint32_t kernel_alignment(const Kernel& kernel, Element type) {
  return std::max(kernel.alignment, static_cast<uint32_t>(element_bytes(type)));
}

Verdict check_algorithm(const Algorithm& algorithm, const Product& product) {
  const Kernel& kernel = *find_kernel(algorithm.id);
  auto refuse = [](const std::string& why) { return Verdict{CUBLAS_STATUS_NOT_SUPPORTED, why}; };
  if (algorithm.types != product.type_key()) {
    return {CUBLAS_STATUS_INVALID_VALUE, "the algorithm was made for other types than those of the product"};
  }
  if ((product.fp8() || product.fp4()) && kernel.alignment < 16)
    return refuse(text("algorithm ", kernel.id, " has no FP8 or FP4"));
  if (std::count(kernel.tiles.begin(), kernel.tiles.end(), algorithm.tile) == 0) {
    return refuse(text("algorithm ", kernel.id, " has no tile ", algorithm.tile));
  }
  if (std::count(kernel.stages.begin(), kernel.stages.end(), algorithm.stages) == 0) {
    return refuse(text("algorithm ", kernel.id, " has no stages ", algorithm.stages));
  }
  if (algorithm.swizzling > 1 || algorithm.custom != 0) return refuse("swizzling or custom option out of range");
  if (algorithm.split_k < 1 || algorithm.split_k > product.k) return refuse(text("K in ", algorithm.split_k, " parts"));
  bool one = algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE ||
             algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ||
             algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  if (algorithm.split_k > 1 && (!one || !(kernel.reductions & algorithm.reduction))) {
    return refuse(text("algorithm ", kernel.id, " cannot split K with reduction scheme ", algorithm.reduction));
  }
  bool aux = product.epilogue.needs_aux() || product.epilogue.gradient_a || product.epilogue.gradient_b;
  if (kernel.alignment == 0 && aux) return refuse(text("algorithm ", kernel.id, " has no such epilogue"));
  if (algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE && algorithm.split_k > 1 &&
      product.epilogue_code != CUBLASLT_EPILOGUE_DEFAULT) {
    return refuse("reduction in place has no epilogue");
  }
  return {};
}

size_t workspace_bytes(const Algorithm& algorithm, const Product& product) {
  if (algorithm.split_k <= 1) return 0;
  auto outputs = static_cast<size_t>(product.m * product.n);
  auto parts = static_cast<size_t>(algorithm.split_k);
  switch (algorithm.reduction) {
    case CUBLASLT_REDUCTION_SCHEME_INPLACE:
      return static_cast<size_t>(tiles(algorithm, product)) * sizeof(int32_t);
    case CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE:
      return parts * outputs * element_bytes(product.d.type);
    default:
      return parts * outputs * sizeof(float);
  }
}

float waves(const Algorithm& algorithm, const Product& product, const MachineDevice& device) {
  return static_cast<float>(tiles(algorithm, product) * algorithm.split_k) / static_cast<float>(device.multiprocessors);
}

std::vector<Algorithm> candidates(const Product& product, const Roofline& limits, const MachineDevice& device) {
  std::vector<Algorithm> found;
  for (const Kernel& kernel : kernels()) {
    for (uint32_t tile : kernel.tiles) {
      for (int32_t split : {1, 2, 3, 4}) {
        for (uint32_t reduction : {0u, 1u, 2u, 4u}) {
          if ((split == 1) != (reduction == 0)) continue;
          Algorithm one{.id = kernel.id,
                        .tile = tile,
                        .stages = kernel.stages.front(),
                        .split_k = split,
                        .reduction = reduction,
                        .types = product.type_key()};
          if (check_algorithm(one, product).ok() && within(one, product, limits)) found.push_back(one);
        }
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [&](const Algorithm& x, const Algorithm& y) {
    return estimate(x, product, device) < estimate(y, product, device);
  });
  return found;
}

}  // namespace emu::fakes
