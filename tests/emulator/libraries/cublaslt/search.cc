// Choosing, checking and configuring algorithms of the fake cuBLASLt.
#include <cstring>

#include "functions.h"

namespace emu::fakes {
namespace {

FakeCublasLt& fake() { return Installed<FakeCublasLt>::get(); }

cublasStatus_t refuse(const char* function, const Verdict& verdict) {
  return fake().refuse(verdict.status, text(function, ": ", verdict.why));
}

Roofline read_limits(cublasLtMatmulPreference_t preference) {
  const Attributes& a = as_preference(preference).attributes;
  return {.workspace = a.get<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES),
          .reductions = a.get<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK),
          .alignment_a = a.get<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES),
          .alignment_b = a.get<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES),
          .alignment_c = a.get<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES),
          .alignment_d = a.get<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)};
}

// Copies one value out, with the rules that all Get functions share.
cublasStatus_t copy_out(const char* function, const void* value, size_t size, void* buffer, size_t bytes,
                        size_t* written) {
  auto invalid = [&](const char* why) { return refuse(function, {CUBLAS_STATUS_INVALID_VALUE, why}); };
  if (bytes == 0) {
    if (written == nullptr) return invalid("sizeInBytes is 0 and sizeWritten is NULL");
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
  }
  if (buffer == nullptr) return invalid("the buffer is NULL");
  if (bytes != size) return invalid("sizeInBytes is not the size of the attribute");
  std::memcpy(buffer, value, size);
  if (written) *written = size;
  return CUBLAS_STATUS_SUCCESS;
}

struct Field {
  void* value = nullptr;
  size_t bytes = 0;
};

Field config_field(Algorithm* algorithm, int name) {
  switch (name) {
    case CUBLASLT_ALGO_CONFIG_ID:
      return {&algorithm->id, sizeof algorithm->id};
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
      return {&algorithm->tile, sizeof algorithm->tile};
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      return {&algorithm->split_k, sizeof algorithm->split_k};
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      return {&algorithm->reduction, sizeof algorithm->reduction};
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
      return {&algorithm->swizzling, sizeof algorithm->swizzling};
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
      return {&algorithm->custom, sizeof algorithm->custom};
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
      return {&algorithm->stages, sizeof algorithm->stages};
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID:
      return {&algorithm->inner_shape, sizeof algorithm->inner_shape};
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
      return {&algorithm->cluster, sizeof algorithm->cluster};
    default:
      return {};
  }
}

}  // namespace

Verdict read_call(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const Layouts& layouts, MachineDevice* device,
                  Product* product) {
  if (!fake().lives(handle, kHandle)) return {CUBLAS_STATUS_NOT_INITIALIZED, "the handle is not a live one"};
  if (!fake().lives(desc, kDesc)) return {CUBLAS_STATUS_INVALID_VALUE, "the operation descriptor is not a live one"};
  for (cublasLtMatrixLayout_t layout : {layouts.a, layouts.b, layouts.c, layouts.d}) {
    if (!fake().lives(layout, kLayout)) return {CUBLAS_STATUS_INVALID_VALUE, "a matrix layout is not a live one"};
  }
  *device = fake().machine().describe(reinterpret_cast<const Handle*>(handle)->device);
  Verdict verdict = describe_product(desc, layouts, *device, product);
  if (!verdict.ok() || !fake().lacks()) return verdict;
  const std::string why = fake().lacks()(*product);
  return why.empty() ? verdict : Verdict{CUBLAS_STATUS_NOT_SUPPORTED, why};
}

namespace lt {

cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                         cublasLtMatmulPreference_t preference, int requested, cublasLtMatmulHeuristicResult_t* results,
                         int* returned) {
  const char* name = "cublasLtMatmulAlgoGetHeuristic";
  cublasStatus_t status;
  if (planned(name, &status)) return status;
  if (requested <= 0 || results == nullptr || returned == nullptr) {
    return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, "no results are requested"});
  }
  *returned = 0;
  MachineDevice device;
  Product product;
  Verdict verdict = read_call(handle, desc, {a, b, c, d}, &device, &product);
  if (!verdict.ok()) return refuse(name, verdict);
  if (!fake().lives(preference, kPreference)) {
    return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, "the preference is not a live one"});
  }
  std::vector<Algorithm> found = candidates(product, read_limits(preference), device);
  if (found.empty()) {
    return refuse(name,
                  {CUBLAS_STATUS_NOT_SUPPORTED, "no algorithm keeps within the preferences (workspace, alignment)"});
  }
  for (const Algorithm& algorithm : found) {
    if (*returned == requested) break;
    results[(*returned)++] = {.algo = pack(algorithm),
                              .workspaceSize = workspace_bytes(algorithm, product),
                              .state = CUBLAS_STATUS_SUCCESS,
                              .wavesCount = waves(algorithm, product, device),
                              .reserved = {}};
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                     const cublasLtMatmulAlgo_t* packed, cublasLtMatmulHeuristicResult_t* result) {
  const char* name = "cublasLtMatmulAlgoCheck";
  cublasStatus_t status;
  if (planned(name, &status)) return status;
  MachineDevice device;
  Product product;
  Algorithm algorithm;
  Verdict verdict = read_call(handle, desc, {a, b, c, d}, &device, &product);
  if (verdict.ok() && (packed == nullptr || result == nullptr || !unpack(*packed, &algorithm))) {
    verdict = {CUBLAS_STATUS_INVALID_VALUE, "algo is NULL, damaged or of another library version"};
  }
  if (verdict.ok()) verdict = check_algorithm(algorithm, product);
  if (!verdict.ok()) return refuse(name, verdict);
  result->workspaceSize = workspace_bytes(algorithm, product);
  result->wavesCount = waves(algorithm, product, device);
  result->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_config(cublasLtMatmulAlgo_t* packed, cublasLtMatmulAlgoConfigAttributes_t attribute,
                          const void* buffer, size_t bytes) {
  const char* name = "cublasLtMatmulAlgoConfigSetAttribute";
  Algorithm algorithm;
  if (packed == nullptr || !unpack(*packed, &algorithm)) {
    return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, "algo is NULL or damaged"});
  }
  Field field = config_field(&algorithm, attribute);
  if (attribute == CUBLASLT_ALGO_CONFIG_ID || field.value == nullptr) {
    return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, text("attribute ", int(attribute), " cannot be set")});
  }
  if (buffer == nullptr || bytes != field.bytes) {
    return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, "buffer is NULL or not of the attribute's size"});
  }
  std::memcpy(field.value, buffer, bytes);
  *packed = pack(algorithm);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t get_config(const cublasLtMatmulAlgo_t* packed, cublasLtMatmulAlgoConfigAttributes_t attribute,
                          void* buffer, size_t bytes, size_t* written) {
  const char* name = "cublasLtMatmulAlgoConfigGetAttribute";
  Algorithm algorithm;
  if (packed == nullptr || !unpack(*packed, &algorithm)) {
    return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, "algo is NULL or damaged"});
  }
  Field field = config_field(&algorithm, attribute);
  if (field.value == nullptr) return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, text("no attribute ", int(attribute))});
  return copy_out(name, field.value, field.bytes, buffer, bytes, written);
}

}  // namespace lt
}  // namespace emu::fakes
