// Requirements of each library, and which ones this machine has. Free of CUDA headers, so that every build can report
// what is installed; builds without CUDA headers report none as usable (no_libraries.cc).
#pragma once
#include <string>
#include <vector>

#include "cuda/libraries/library.h"

namespace athanor {

bool built_with_cuda_libraries();

// All libraries that the program opens, in the order cuBLASLt, cuDNN, NVRTC (for cuDNN), NCCL, NVML, CUPTI, driver;
// none without CUDA.
std::vector<LibrarySpec> library_specs();

struct LibraryReport {
  std::string name;
  std::string path;     // empty if it cannot be used
  Version version;      // {}: unknown
  std::string problem;  // empty if it can be used
};

// Opens each library and looks up every function of its table.
std::vector<LibraryReport> probe_libraries(const SearchPlaces& places);

}  // namespace athanor
