// Names, sizes and defaults from cublasLt.h 13.1; a test compares those of products with the installed library.
#include "attributes.h"

namespace emu::fakes {

cublasStatus_t Attributes::set(int name, const void* buffer, size_t bytes, const char** why) {
  auto slot = slots_.find(name);
  if (slot == slots_.end()) {
    *why = "no such attribute";
  } else if (buffer == nullptr) {
    *why = "the buffer is NULL";
  } else if (bytes != slot->second.bytes) {
    *why = "sizeInBytes is not the size of the attribute";
  } else {
    std::memcpy(slot->second.value.data(), buffer, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t Attributes::read(int name, void* buffer, size_t bytes, size_t* written, const char** why) const {
  auto slot = slots_.find(name);
  if (slot == slots_.end()) {
    *why = "no such attribute";
  } else if (bytes == 0 && written == nullptr) {
    *why = "sizeInBytes is 0 and sizeWritten is NULL";
  } else if (bytes == 0) {
    *written = slot->second.bytes;
    return CUBLAS_STATUS_SUCCESS;
  } else if (buffer == nullptr) {
    *why = "the buffer is NULL";
  } else if (bytes != slot->second.bytes) {
    *why = "sizeInBytes is not the size of the attribute";
  } else {
    std::memcpy(buffer, slot->second.value.data(), bytes);
    if (written) *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

MatmulDesc make_matmul_desc(cublasComputeType_t compute, cudaDataType_t scale) {
  MatmulDesc desc;
  Attributes& a = desc.attributes;
  a.define<int32_t>(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, compute);
  a.define<int32_t>(CUBLASLT_MATMUL_DESC_SCALE_TYPE, scale);
  a.define<int32_t>(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_HOST);
  a.define<int32_t>(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N);
  a.define<int32_t>(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  a.define<int32_t>(CUBLASLT_MATMUL_DESC_TRANSC, CUBLAS_OP_N);
  a.define<int32_t>(CUBLASLT_MATMUL_DESC_FILL_MODE, CUBLAS_FILL_MODE_FULL);
  a.define<uint32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  a.define<int64_t>(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 0);
  a.define<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
  a.define<int64_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, 0);
  a.define<int64_t>(CUBLASLT_MATMUL_DESC_ALPHA_VECTOR_BATCH_STRIDE, 0);
  a.define<int32_t>(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, 0);
  a.define<int32_t>(16, 0);  // not in the header; the library answers it
  a.define<int32_t>(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, -1);
  a.define<int32_t>(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, -1);
  a.define<int8_t>(CUBLASLT_MATMUL_DESC_FAST_ACCUM, 0);
  for (auto pointer :
       {CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
        CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        CUBLASLT_MATMUL_DESC_C_SCALE_POINTER, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
        CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_AMAX_POINTER,
        CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER, CUBLASLT_MATMUL_DESC_EMULATION_DESCRIPTOR}) {
    a.define<void*>(pointer, nullptr);
  }
  for (auto mode : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
                    CUBLASLT_MATMUL_DESC_C_SCALE_MODE, CUBLASLT_MATMUL_DESC_D_SCALE_MODE,
                    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_SCALE_MODE, CUBLASLT_MATMUL_DESC_D_OUT_SCALE_MODE}) {
    a.define<int32_t>(mode, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
  }
  return desc;
}

Preference make_preference() {
  Preference preference;
  Attributes& a = preference.attributes;
  a.define<uint64_t>(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0);
  a.define<uint32_t>(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_MASK);
  for (auto alignment : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                         CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    a.define<uint32_t>(alignment, 256);
  }
  return preference;
}

}  // namespace emu::fakes
