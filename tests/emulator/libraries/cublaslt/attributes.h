// Descriptors of cuBLASLt as the real library keeps them: attributes of fixed sizes with defaults, checked for nothing
// but their size when they are set. What the values mean is checked when a product is asked for (problem.h).
#pragma once
#include <array>
#include <cstring>
#include <map>

#include "cuda/libraries/cublaslt_table.h"

namespace emu::fakes {

class Attributes {
 public:
  template <class T>
  void define(int name, T value) {
    static_assert(sizeof(T) <= 8);
    Slot& slot = slots_[name];
    slot.bytes = sizeof(T);
    std::memcpy(slot.value.data(), &value, sizeof(T));
  }
  template <class T>
  T get(int name) const {
    T value;
    std::memcpy(&value, slots_.at(name).value.data(), sizeof(T));
    return value;
  }
  bool same(int name, const Attributes& other) const { return slots_.at(name).value == other.slots_.at(name).value; }

  // CUBLAS_STATUS_INVALID_VALUE for an unknown name, a null buffer, a wrong size; why is set then.
  cublasStatus_t set(int name, const void* buffer, size_t bytes, const char** why);
  cublasStatus_t read(int name, void* buffer, size_t bytes, size_t* written, const char** why) const;

 private:
  struct Slot {
    size_t bytes = 0;
    std::array<char, 8> value{};
  };
  std::map<int, Slot> slots_;
};

struct MatmulDesc {
  Attributes attributes;
};
struct MatrixLayout {
  cudaDataType_t type = CUDA_R_32F;
  int64_t rows = 0, cols = 0, ld = 0;
};
struct Preference {
  Attributes attributes;
};

MatmulDesc make_matmul_desc(cublasComputeType_t compute, cudaDataType_t scale);
Preference make_preference();

inline const MatmulDesc& as_desc(cublasLtMatmulDesc_t p) { return *reinterpret_cast<const MatmulDesc*>(p); }
inline const MatrixLayout& as_layout(cublasLtMatrixLayout_t p) { return *reinterpret_cast<const MatrixLayout*>(p); }
inline const Preference& as_preference(cublasLtMatmulPreference_t p) { return *reinterpret_cast<const Preference*>(p); }

}  // namespace emu::fakes
