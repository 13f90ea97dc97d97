// Replaces open.cc in a build without CUDA headers: reports that no library can be used, and why.
#include "cuda/libraries/specs.h"

namespace athanor {

bool built_with_cuda_libraries() { return false; }

std::vector<LibrarySpec> library_specs() { return {}; }

std::vector<LibraryReport> probe_libraries(const SearchPlaces&) {
  std::string problem =
      "this program was built without the headers of the CUDA toolkit (13.0 or later), cuDNN and NCCL: "
      "install them and build again";
  std::vector<LibraryReport> reports;
  for (const char* name : {"cuBLASLt", "cuDNN", "NVRTC", "NCCL", "NVML", "CUPTI", "CUDA driver"}) {
    reports.push_back({.name = name, .path = {}, .version = {}, .problem = problem});
  }
  return reports;
}

}  // namespace athanor
