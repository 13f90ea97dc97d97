#include "cuda/make_cuda.h"

#include "base/log.h"
#include "cuda/check.h"
#include "cuda/cuda_ops.h"
#include "cuda/device/cuda_device.h"
#include "cuda/device/cupti_profiler.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "cuda/nvml_sensors.h"
#include "device/gpu_specs.h"

namespace athanor {
namespace {

constexpr int kOldestMajor = 8;  // compute capability 8.0: bf16 on tensor cores and cp.async

GpuReport describe(int index) {
  cudaDeviceProp p{};
  CUDA_CHECK(cudaGetDeviceProperties(&p, index));
  const GpuSpec* known = find_gpu_named(p.name);
  GpuReport gpu{.name = p.name,
                .major = p.major,
                .minor = p.minor,
                .multiprocessors = p.multiProcessorCount,
                .memory_bytes = p.totalGlobalMem,
                .peak_flops = known ? known->peak_flops(DType::bf16) : 0,
                .copy_bytes = cuda::memory_rate(index),
                .uuid = {}};
  for (const char byte : p.uuid.bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    gpu.uuid += {kDigits[(byte >> 4) & 15], kDigits[byte & 15]};
  }
  if (p.major < kOldestMajor)
    gpu.problem = cat("compute capability ", p.major, ".", p.minor, " is below 8.0, the oldest with bf16 tensor cores");
  return gpu;
}

// cuDNN compiles kernels with NVRTC, which it opens by name; loading it first lets cuDNN find it.
void find_compiler(const SearchPlaces& places, const std::string& cudnn_file) {
  try {
    open_nvrtc(places, cudnn_file);
  } catch (const Error& error) {
    log::warn("attention: without NVRTC, cuDNN may have no kernels: ", error.what());
  }
}

struct FoundCudnn {
  std::unique_ptr<cuda::CudnnAttention> attention;  // null: the program's own kernels compute all attention
  std::string name;                                 // name and version of cuDNN
  std::string why_not;
};

FoundCudnn cudnn_attention(const CudaOptions& options, const SearchPlaces& places, cudaStream_t stream) {
  if (options.attention == CudaAttention::builtin) return {nullptr, "", "as configured"};
  if (!options.cudnn) return {nullptr, "", "rank 0 has no cuDNN"};
  if (options.tokens == 0) return {nullptr, "", "cuDNN is asked for sequences of one length only"};
  const bool automatic = options.attention == CudaAttention::automatic;
  try {
    const Opened<CudnnTable> cudnn = open_cudnn(places);
    find_compiler(places, cudnn.library.path);
    int driver = 0;
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    const std::string key =
        cat(describe(options.index).name, ", driver ", driver, ", cuDNN ", cudnn.call.cudnnGetVersion());
    auto attention = std::make_unique<cuda::CudnnAttention>(
        cudnn.call, stream,
        cuda::CudnnAttention::Options{.tokens = options.tokens,
                                      .documents = options.documents,
                                      .most_scratch = automatic ? cuda::kMostAutomaticScratch : SIZE_MAX,
                                      .files = {options.plan_folder, key},
                                      .enter_thread = [i = options.index] { CUDA_CHECK(cudaSetDevice(i)); }});
    return {std::move(attention), cat("cuDNN ", cudnn.library.version), ""};
  } catch (const Error& error) {
    if (!automatic) throw;
    return {nullptr, "", error.what()};
  }
}

}  // namespace

std::string why_no_cuda() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver)
    return "no NVIDIA driver, or one too old for CUDA 13 (580 or later: apt nvidia-driver or nvidia-open)";
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
    return "the driver sees no GPU (CUDA_VISIBLE_DEVICES may hide it)";
  if (error != cudaSuccess) return cat("CUDA: ", cudaGetErrorString(error));
  return describe(0).problem;
}

std::string why_no_libraries() {
  try {
    open_cublaslt(search_places(library_specs()));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<GpuReport> list_gpus() {
  int count = 0;
  std::vector<GpuReport> gpus;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return gpus;
  for (int index = 0; index < count; ++index) gpus.push_back(describe(index));
  return gpus;
}

CudaBackend make_cuda(const CudaOptions& options) {
  if (const std::string why = why_no_cuda(); !why.empty()) throw Error(cat("device cuda: ", why), Exit::usage);
  if (const std::string problem = describe(options.index).problem; !problem.empty())
    throw Error(cat("device cuda:", options.index, ": ", problem), Exit::usage);
  auto device = std::make_unique<cuda::CudaDevice>(options.index, options.programmatic_launch, options.host_memory);
  const SearchPlaces places = search_places(library_specs());
  const Opened<CublasLtTable> cublaslt = open_cublaslt(places);
  std::string description = cat(device->description(), ", cuBLASLt ", cublaslt.library.version);
  FoundCudnn cudnn = cudnn_attention(options, places, device->stream(Stream::compute));
  if (cudnn.attention) description += ", " + cudnn.name;
  const bool autotuned = options.attention == CudaAttention::automatic;
  cuda::AttentionRunner attention = cudnn.attention
                                        ? cuda::AttentionRunner(std::move(cudnn.attention), autotuned)
                                        : cuda::AttentionRunner(cuda::AttentionRunner::Own{.why = cudnn.why_not});
  auto ops = std::make_unique<cuda::CudaOps>(device->stream(Stream::compute),
                                             std::make_unique<cuda::GemmRunner>(cublaslt.call), std::move(attention));
  cuda::CudaOps* tuning = ops.get();
  return {std::move(device),      std::move(ops),        tuning,
          std::move(description), std::move(cudnn.name), cuda::nvml_sensors(options.index, places)};
}

std::unique_ptr<Profiler> make_cuda_profiler() { return cuda::cupti_profiler(search_places(library_specs())); }

}  // namespace athanor
