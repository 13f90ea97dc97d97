// Opens each library at run time and fills its table. Never linked: one program serves machines with and without a GPU
// and starts without mapping 541 MB of cuBLASLt. Each open_*() throws Error if the library is missing or too old.
#pragma once
#include "cuda/libraries/cublaslt_table.h"
#include "cuda/libraries/cudnn_table.h"
#include "cuda/libraries/cupti_table.h"
#include "cuda/libraries/driver_table.h"
#include "cuda/libraries/library.h"
#include "cuda/libraries/nccl_table.h"
#include "cuda/libraries/nvml_table.h"

namespace athanor {

template <class Table>
struct Opened {
  Table call;
  Library library;  // where it came from, for the record of the run
};

Opened<CublasLtTable> open_cublaslt(const SearchPlaces& places);
Opened<CudnnTable> open_cudnn(const SearchPlaces& places);
// The compiler that cuDNN compiles its kernels with, so that it finds it by name: of the places, and beside cuDNN's
// file, which need not be where the dynamic linker looks.
Library open_nvrtc(const SearchPlaces&, const std::string& cudnn_file);
Opened<NcclTable> open_nccl(const SearchPlaces& places);
Opened<NvmlTable> open_nvml(const SearchPlaces& places);
Opened<CuptiTable> open_cupti(const SearchPlaces& places);
Opened<DriverTable> open_driver(const SearchPlaces& places);

}  // namespace athanor
