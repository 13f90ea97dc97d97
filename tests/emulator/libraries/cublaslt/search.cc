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
          .alignment_d = a.get<uint32_t>(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES),
          .waves = a.get<float>(CUBLASLT_MATMUL_PREF_MAX_WAVES_COUNT),
          .implementations = a.get<uint64_t>(CUBLASLT_MATMUL_PREF_IMPL_MASK)};
}

Verdict check_type_codes(cublasComputeType_t compute, cudaDataType_t scale, const cudaDataType_t (&types)[4]) {
  Element elements[4];
  for (int i = 0; i < 4; ++i) elements[i] = element_of(types[i]);
  Verdict verdict = check_types(compute, elements[0], elements[1], elements[2], elements[3]);
  if (!verdict.ok()) return verdict;
  if (scale != (elements[3] == Element::kF64 ? CUDA_R_64F : CUDA_R_32F)) {
    return {CUBLAS_STATUS_NOT_SUPPORTED, text("scale type ", int(scale))};
  }
  return {};
}

// Copies one value or a list out, with the rules that all Get functions share.
cublasStatus_t copy_out(const char* function, const void* value, size_t size, bool list, void* buffer, size_t bytes,
                        size_t* written) {
  auto invalid = [&](const char* why) { return refuse(function, {CUBLAS_STATUS_INVALID_VALUE, why}); };
  if (bytes == 0) {
    if (written == nullptr) return invalid("sizeInBytes is 0 and sizeWritten is NULL");
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
  }
  if (buffer == nullptr) return invalid("the buffer is NULL");
  if (list ? bytes < size : bytes != size) return invalid("sizeInBytes is not the size of the attribute");
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

uint32_t epilogue_mask(const Kernel& kernel) {
  uint32_t simple =
      CUBLASLT_EPILOGUE_DEFAULT | CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_GELU;
  return kernel.alignment == 0 ? simple
                               : simple | 128 | 8 | 16 | 64 | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB;
}

// Capabilities that are one 32-bit number; false: another attribute.
bool number_capability(const Kernel& kernel, int name, uint32_t* value) {
  switch (name) {
    case CUBLASLT_ALGO_CAP_SPLITK_SUPPORT:
      *value = kernel.reductions != 0;
      return true;
    case CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK:
      *value = kernel.reductions;
      return true;
    case CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT:
    case CUBLASLT_ALGO_CAP_STRIDED_BATCH_SUPPORT:
    case CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT:
      *value = 1;
      return true;
    case CUBLASLT_ALGO_CAP_UPLO_SUPPORT:
    case CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX:
    case CUBLASLT_ALGO_CAP_CUSTOM_MEMORY_ORDER:
    case CUBLASLT_ALGO_CAP_LD_NEGATIVE:
    case CUBLASLT_ALGO_CAP_POINTER_ARRAY_BATCH_SUPPORT:
    case CUBLASLT_ALGO_CAP_FLOATING_POINT_EMULATION_SUPPORT:
      *value = 0;
      return true;
    case CUBLASLT_ALGO_CAP_POINTER_MODE_MASK:
      *value = CUBLASLT_POINTER_MODE_MASK_HOST | CUBLASLT_POINTER_MODE_MASK_DEVICE;
      return true;
    case CUBLASLT_ALGO_CAP_EPILOGUE_MASK:
      *value = epilogue_mask(kernel);
      return true;
    default:
      return false;
  }
}

// The element type that the algorithm was made for, from Algorithm::types (A, B, C, D: four bits each).
Element type_of(const Algorithm& algorithm, int position) {
  return static_cast<Element>(algorithm.types >> (4 * (3 - position)) & 15);
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
  return describe_product(desc, layouts, *device, product);
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
  if (as_preference(preference).attributes.get<uint32_t>(CUBLASLT_MATMUL_PREF_SEARCH_MODE) !=
      CUBLASLT_SEARCH_BEST_FIT) {
    return refuse(name, {CUBLAS_STATUS_NOT_SUPPORTED, "search modes other than BEST_FIT are not emulated"});
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

cublasStatus_t algorithm_ids(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale,
                             cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d, int requested,
                             int* ids, int* returned) {
  const char* name = "cublasLtMatmulAlgoGetIds";
  if (!fake().lives(handle, kHandle))
    return refuse(name, {CUBLAS_STATUS_NOT_INITIALIZED, "the handle is not a live one"});
  if (requested <= 0 || ids == nullptr) return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, "no ids are requested"});
  int count = 0;
  bool codes = is_fp8(element_of(a)) || is_fp8(element_of(b)) || element_of(a) == Element::kE2m1;
  if (check_type_codes(compute, scale, {a, b, c, d}).ok()) {
    for (const Kernel& kernel : kernels()) {
      if (count < requested && !(codes && kernel.alignment < 16)) ids[count++] = kernel.id;
    }
  }
  if (returned) *returned = count;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t init_algorithm(cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale,
                              cudaDataType_t a, cudaDataType_t b, cudaDataType_t c, cudaDataType_t d, int id,
                              cublasLtMatmulAlgo_t* algorithm) {
  const char* name = "cublasLtMatmulAlgoInit";
  if (!fake().lives(handle, kHandle))
    return refuse(name, {CUBLAS_STATUS_NOT_INITIALIZED, "the handle is not a live one"});
  if (algorithm == nullptr) return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, "algo is NULL"});
  const Kernel* kernel = find_kernel(id);
  if (kernel == nullptr) return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, text("no algorithm ", id)});
  Verdict verdict = check_type_codes(compute, scale, {a, b, c, d});
  if (!verdict.ok()) return refuse(name, verdict);
  Product types;
  types.compute = compute;
  types.a.type = element_of(a);
  types.b.type = element_of(b);
  types.c.type = element_of(c);
  types.d.type = element_of(d);
  *algorithm = pack({.id = id, .types = types.type_key()});
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

cublasStatus_t capability(const cublasLtMatmulAlgo_t* packed, cublasLtMatmulAlgoCapAttributes_t attribute, void* buffer,
                          size_t bytes, size_t* written) {
  const char* name = "cublasLtMatmulAlgoCapGetAttribute";
  Algorithm algorithm;
  if (packed == nullptr || !unpack(*packed, &algorithm)) {
    return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, "algo is NULL or damaged"});
  }
  const Kernel& kernel = *find_kernel(algorithm.id);
  uint32_t number = 0;
  if (number_capability(kernel, attribute, &number)) return copy_out(name, &number, 4, false, buffer, bytes, written);
  switch (attribute) {
    case CUBLASLT_ALGO_CAP_TILE_IDS:
      return copy_out(name, kernel.tiles.data(), kernel.tiles.size() * 4, true, buffer, bytes, written);
    case CUBLASLT_ALGO_CAP_STAGES_IDS:
      return copy_out(name, kernel.stages.data(), kernel.stages.size() * 4, true, buffer, bytes, written);
    case CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS: {
      Product types;
      types.a.type = type_of(algorithm, 0);
      types.compute = static_cast<cublasComputeType_t>(algorithm.types >> 16);
      uint64_t flags = implementation_flags(types);
      return copy_out(name, &flags, 8, false, buffer, bytes, written);
    }
    default:
      break;
  }
  int matrix = attribute - CUBLASLT_ALGO_CAP_MIN_ALIGNMENT_A_BYTES;
  if (matrix < 0 || matrix > 3)
    return refuse(name, {CUBLAS_STATUS_INVALID_VALUE, text("no capability ", int(attribute))});
  number = kernel_alignment(kernel, type_of(algorithm, matrix));
  return copy_out(name, &number, 4, false, buffer, bytes, written);
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
  return copy_out(name, field.value, field.bytes, false, buffer, bytes, written);
}

}  // namespace lt
}  // namespace emu::fakes
