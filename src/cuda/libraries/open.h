// Opens each library at run time and fills its table. Libraries are never linked, so that one program runs with and
// without a GPU and starts without mapping 541 MB of cuBLASLt. open_*() throw Error if the library is missing or too
// old.
#pragma once
#include "cuda/libraries/cublaslt_table.h"
#include "cuda/libraries/cudnn_table.h"
#include "cuda/libraries/cupti_table.h"
#include "cuda/libraries/library.h"
#include "cuda/libraries/nccl_table.h"
#include "cuda/libraries/nvml_table.h"

namespace athanor {

template <class Table>
struct Opened {
  Table call;
  Library library;  // the opened file, for the record of the run
};

Opened<CublasLtTable> open_cublaslt(const SearchPlaces& places);
Opened<CudnnTable> open_cudnn(const SearchPlaces& places);
// Opens NVRTC, which cuDNN opens by name to compile kernels. Looks in the search places and next to cuDNN's file, which
// may be outside the dynamic linker's path.
Library open_nvrtc(const SearchPlaces&, const std::string& cudnn_file);
Opened<NcclTable> open_nccl(const SearchPlaces& places);
Opened<NvmlTable> open_nvml(const SearchPlaces& places);
Opened<CuptiTable> open_cupti(const SearchPlaces& places);

}  // namespace athanor
