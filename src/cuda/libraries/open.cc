// Requirements of each library, how its version is read, and how its table is filled.
#include "cuda/libraries/open.h"

#include <dlfcn.h>

#include <cstdint>

#include "base/error.h"
#include "cuda/libraries/driver_table.h"
#include "cuda/libraries/specs.h"

namespace athanor {
namespace {

template <class Fn>
Fn function(void* handle, const char* name) {
  return reinterpret_cast<Fn>(dlsym(handle, name));
}

Version cublaslt_version(void* handle) {
  auto get = function<decltype(&cublasLtGetVersion)>(handle, "cublasLtGetVersion");
  return get ? decimal_version(static_cast<long>(get())) : Version{};
}

Version cudnn_version(void* handle) {
  auto get = function<decltype(&cudnnGetVersion)>(handle, "cudnnGetVersion");
  return get ? decimal_version(static_cast<long>(get())) : Version{};
}

Version nccl_version(void* handle) {
  auto get = function<decltype(&ncclGetVersion)>(handle, "ncclGetVersion");
  int code = 0;
  return get && get(&code) == ncclSuccess ? decimal_version(code) : Version{};
}

// Returns {} without a driver, since cuptiGetVersion() of CUPTI 13.2 then crashes.
Version cupti_version(void* handle) {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!driver) return {};
  dlclose(driver);
  auto get = function<decltype(&cuptiGetVersion)>(handle, "cuptiGetVersion");
  uint32_t code = 0;
  return get && get(&code) == CUPTI_SUCCESS ? decimal_version(code) : Version{};
}

Version driver_version(void* handle) {  // 1000 * major + 10 * minor of the newest supported CUDA
  auto get = function<decltype(&cuDriverGetVersion)>(handle, "cuDriverGetVersion");
  int code = 0;
  return get && get(&code) == CUDA_SUCCESS ? Version{code / 1000, code / 10 % 100, code % 10} : Version{};
}

constexpr const char* kDriverPackages = "NVIDIA's driver, 580 or later (apt: nvidia-driver or nvidia-open)";

LibrarySpec cublaslt_spec() {
  return {.name = "cuBLASLt",
          .file = "libcublasLt.so.13",
          .variable = "ATHANOR_CUBLASLT",
          .pip_folders = {"nvidia/cu13/lib", "nvidia/cublas/lib"},
          .packages = "apt: libcublas-13-0, or pip: nvidia-cublas",
          .oldest = {13, 0, 0},
          .version_of = cublaslt_version};
}

LibrarySpec cudnn_spec() {
  return {.name = "cuDNN",
          .file = "libcudnn.so.9",
          .variable = "ATHANOR_CUDNN",
          .pip_folders = {"nvidia/cudnn/lib"},
          .packages = "apt: libcudnn9-cuda-13, or pip: nvidia-cudnn-cu13",
          .oldest = {9, 10, 0},  // earlier versions discourage masks of -inf [cudnn-frontend, attn_score_modifiers.h]
          .version_of = cudnn_version};
}

Version nvrtc_version(void* handle) {
  auto get = function<int (*)(int*, int*)>(handle, "nvrtcVersion");
  Version found;
  return get && get(&found.major, &found.minor) == 0 ? found : Version{};
}

LibrarySpec nvrtc_spec() {
  return {.name = "NVRTC",
          .file = "libnvrtc.so.13",
          .variable = "ATHANOR_NVRTC",
          .pip_folders = {"nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"},
          .packages = "apt: cuda-nvrtc-13-0, or pip: nvidia-cuda-nvrtc",
          .oldest = {13, 0, 0},
          .version_of = nvrtc_version};
}

LibrarySpec nccl_spec() {
  return {.name = "NCCL",
          .file = "libnccl.so.2",
          .variable = "ATHANOR_NCCL",
          .pip_folders = {"nvidia/nccl/lib"},
          .packages = "apt: libnccl2, or pip: nvidia-nccl-cu13",
          .oldest = {2, 14, 0},  // the first with non-blocking communicators
          .version_of = nccl_version};
}

LibrarySpec nvml_spec() {
  return {.name = "NVML",
          .file = "libnvidia-ml.so.1",
          .variable = "ATHANOR_NVML",
          .pip_folders = {},
          .packages = kDriverPackages,
          .oldest = {1, 0, 0},
          .version_of = nullptr};
}

LibrarySpec cupti_spec() {
  return {.name = "CUPTI",
          .file = "libcupti.so.13",
          .variable = "ATHANOR_CUPTI",
          .pip_folders = {"nvidia/cu13/lib", "nvidia/cuda_cupti/lib"},
          .packages = "apt: cuda-cupti-13-0, or pip: nvidia-cuda-cupti",
          .oldest = {13, 0, 0},
          .version_of = cupti_version};
}

LibrarySpec driver_spec() {
  return {.name = "CUDA driver",
          .file = "libcuda.so.1",
          .variable = "ATHANOR_CUDA_DRIVER",
          .pip_folders = {},
          .packages = kDriverPackages,
          .oldest = {13, 0, 0},
          .version_of = driver_version};
}

template <class Table>
Opened<Table> open_table(const LibrarySpec& spec, const SearchPlaces& places) {
  Opened<Table> opened{.call = {}, .library = open_library(spec, places)};
  for_each_function(opened.call, [&](const char* name, auto& member) {
    void* address = dlsym(opened.library.handle, name);
    bool needed = true;
    if constexpr (requires { may_be_missing(opened.call, name); }) needed = !may_be_missing(opened.call, name);
    if (!address && needed) address = find_function(spec, opened.library, name);  // throws naming it
    member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(address);
  });
  return opened;
}

template <class Open>
LibraryReport report_of(const LibrarySpec& spec, Open&& open) {
  LibraryReport report{.name = spec.name, .path = {}, .version = {}, .problem = {}};
  try {
    const Library library = open();
    report.path = library.path;
    report.version = library.version;
  } catch (const Error& error) {
    report.problem = error.what();
  }
  return report;
}

template <class Table>
LibraryReport probe(const LibrarySpec& spec, const SearchPlaces& places) {
  return report_of(spec, [&] { return open_table<Table>(spec, places).library; });
}

}  // namespace

bool built_with_cuda_libraries() { return true; }

std::vector<LibrarySpec> library_specs() {
  return {cublaslt_spec(), cudnn_spec(), nvrtc_spec(), nccl_spec(), nvml_spec(), cupti_spec(), driver_spec()};
}

std::vector<LibraryReport> probe_libraries(const SearchPlaces& places) {
  const LibraryReport cudnn = probe<CudnnTable>(cudnn_spec(), places);
  return {probe<CublasLtTable>(cublaslt_spec(), places),
          cudnn,
          report_of(nvrtc_spec(), [&] { return open_nvrtc(places, cudnn.path); }),
          probe<NcclTable>(nccl_spec(), places),
          probe<NvmlTable>(nvml_spec(), places),
          probe<CuptiTable>(cupti_spec(), places),
          probe<DriverTable>(driver_spec(), places)};
}

Opened<CublasLtTable> open_cublaslt(const SearchPlaces& places) {
  return open_table<CublasLtTable>(cublaslt_spec(), places);
}
Opened<CudnnTable> open_cudnn(const SearchPlaces& places) { return open_table<CudnnTable>(cudnn_spec(), places); }
Library open_nvrtc(const SearchPlaces& places, const std::string& cudnn_file) {
  Library library = open_library(nvrtc_spec(), places_near(cudnn_file, places));
  open_neighbours(library, "libnvrtc-builtins.so.");  // NVRTC opens it by name on first use
  return library;
}
Opened<NcclTable> open_nccl(const SearchPlaces& places) { return open_table<NcclTable>(nccl_spec(), places); }
Opened<NvmlTable> open_nvml(const SearchPlaces& places) { return open_table<NvmlTable>(nvml_spec(), places); }
Opened<CuptiTable> open_cupti(const SearchPlaces& places) { return open_table<CuptiTable>(cupti_spec(), places); }

}  // namespace athanor
