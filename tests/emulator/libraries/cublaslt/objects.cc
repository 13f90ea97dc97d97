// The functions of cuBLASLt about handles, descriptors, layouts and preferences, and the fake itself.
#include <cstdlib>

#include "functions.h"

namespace emu::fakes {
namespace {

template <class T, class Pointer, class... A>
cublasStatus_t create(const char* kind, Pointer* out, T value) {
  FakeCublasLt& fake = Installed<FakeCublasLt>::get();
  if (out == nullptr) return fake.refuse(CUBLAS_STATUS_INVALID_VALUE, text(kind, ": the result pointer is NULL"));
  auto* object = new T(std::move(value));
  fake.made(object, kind);
  *out = reinterpret_cast<Pointer>(object);
  return CUBLAS_STATUS_SUCCESS;
}

// The real library accepts NULL here; a second destruction corrupts its memory, so the fake refuses it.
template <class T>
cublasStatus_t destroy(const char* kind, void* pointer) {
  if (pointer == nullptr) return CUBLAS_STATUS_SUCCESS;
  FakeCublasLt& fake = Installed<FakeCublasLt>::get();
  if (!fake.destroy(pointer, kind)) {
    return fake.refuse(CUBLAS_STATUS_INVALID_VALUE, text(kind, ": destroyed already, or never made"));
  }
  delete static_cast<T*>(pointer);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t set(const char* kind, void* pointer, int name, const void* buffer, size_t bytes) {
  FakeCublasLt& fake = Installed<FakeCublasLt>::get();
  if (!fake.lives(pointer, kind)) return fake.refuse(CUBLAS_STATUS_INVALID_VALUE, text(kind, ": not a live object"));
  const char* why = "";
  cublasStatus_t status = static_cast<T*>(pointer)->attributes.set(name, buffer, bytes, &why);
  if (status != CUBLAS_STATUS_SUCCESS) fake.refuse(status, text(kind, " attribute ", name, ": ", why));
  return status;
}

}  // namespace

bool planned(const char* function, cublasStatus_t* status) {
  FakeCublasLt& fake = Installed<FakeCublasLt>::get();
  int code = 0;
  if (!fake.machine().planned_failure(function, &code)) return false;
  *status = fake.refuse(static_cast<cublasStatus_t>(code), text(function, ": planned failure"));
  return true;
}

namespace lt {

cublasStatus_t create_handle(cublasLtHandle_t* handle) {
  cublasStatus_t status;
  if (planned("cublasLtCreate", &status)) return status;
  return create(kHandle, handle, Handle{Installed<FakeCublasLt>::get().machine().current_device()});
}
cublasStatus_t destroy_handle(cublasLtHandle_t handle) {
  FakeCublasLt& fake = Installed<FakeCublasLt>::get();
  if (handle == nullptr) return fake.refuse(CUBLAS_STATUS_NOT_INITIALIZED, "cublasLtDestroy: the handle is NULL");
  return destroy<Handle>(kHandle, handle);
}
size_t version() { return CUBLAS_VERSION; }

const char* status_name(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR:
      return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "unknown cuBLAS status";
}

cublasStatus_t create_desc(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  return create(kDesc, desc, make_matmul_desc(compute, scale));
}
cublasStatus_t destroy_desc(cublasLtMatmulDesc_t desc) { return destroy<MatmulDesc>(kDesc, desc); }
cublasStatus_t set_desc(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, const void* buffer,
                        size_t bytes) {
  return set<MatmulDesc>(kDesc, desc, name, buffer, bytes);
}
cublasStatus_t get_desc(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, void* buffer, size_t bytes,
                        size_t* written) {
  FakeCublasLt& fake = Installed<FakeCublasLt>::get();
  if (!fake.lives(desc, kDesc)) return fake.refuse(CUBLAS_STATUS_INVALID_VALUE, text(kDesc, ": not a live object"));
  const char* why = "";
  cublasStatus_t status = as_desc(desc).attributes.read(name, buffer, bytes, written, &why);
  if (status != CUBLAS_STATUS_SUCCESS) fake.refuse(status, text(kDesc, " attribute ", int(name), ": ", why));
  return status;
}

cublasStatus_t create_layout(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t cols,
                             int64_t ld) {
  return create(kLayout, layout, MatrixLayout{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld});
}
cublasStatus_t destroy_layout(cublasLtMatrixLayout_t layout) { return destroy<MatrixLayout>(kLayout, layout); }
cublasStatus_t create_preference(cublasLtMatmulPreference_t* preference) {
  return create(kPreference, preference, make_preference());
}
cublasStatus_t destroy_preference(cublasLtMatmulPreference_t preference) {
  return destroy<Preference>(kPreference, preference);
}
cublasStatus_t set_preference(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name,
                              const void* buffer, size_t bytes) {
  return set<Preference>(kPreference, preference, name, buffer, bytes);
}
}  // namespace lt

FakeCublasLt::FakeCublasLt(Machine machine) : machine_(std::move(machine)), installed_(this) {}
FakeCublasLt::~FakeCublasLt() = default;

cublasStatus_t FakeCublasLt::refuse(cublasStatus_t status, const std::string& why) {
  refusals_.add(why);
  return status;
}

void FakeCublasLt::made(const void* object, std::string_view kind) {
  std::lock_guard lock(mutex_);
  objects_[object] = kind;
}

bool FakeCublasLt::lives(const void* object, std::string_view kind) const {
  std::lock_guard lock(mutex_);
  auto found = objects_.find(object);
  return found != objects_.end() && found->second == kind;
}

bool FakeCublasLt::destroy(const void* object, std::string_view kind) {
  std::lock_guard lock(mutex_);
  auto found = objects_.find(object);
  if (found == objects_.end() || found->second != kind) return false;
  objects_.erase(found);
  return true;
}

std::vector<std::string> FakeCublasLt::leaks() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> kinds;
  for (const auto& object : objects_) kinds.emplace_back(object.second);
  return kinds;
}

athanor::CublasLtTable FakeCublasLt::table() const {
  return {.cublasLtCreate = lt::create_handle,
          .cublasLtDestroy = lt::destroy_handle,
          .cublasLtGetVersion = lt::version,
          .cublasLtGetStatusName = lt::status_name,
          .cublasLtMatmul = lt::matmul,
          .cublasLtMatmulDescCreate = lt::create_desc,
          .cublasLtMatmulDescDestroy = lt::destroy_desc,
          .cublasLtMatmulDescSetAttribute = lt::set_desc,
          .cublasLtMatmulDescGetAttribute = lt::get_desc,
          .cublasLtMatrixLayoutCreate = lt::create_layout,
          .cublasLtMatrixLayoutDestroy = lt::destroy_layout,
          .cublasLtMatmulPreferenceCreate = lt::create_preference,
          .cublasLtMatmulPreferenceDestroy = lt::destroy_preference,
          .cublasLtMatmulPreferenceSetAttribute = lt::set_preference,
          .cublasLtMatmulAlgoGetHeuristic = lt::heuristic,
          .cublasLtMatmulAlgoCheck = lt::check,
          .cublasLtMatmulAlgoConfigGetAttribute = lt::get_config};
}

}  // namespace emu::fakes
