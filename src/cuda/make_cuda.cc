#include "cuda/make_cuda.h"

#include "cuda/check.h"
#include "cuda/cuda_device.h"
#include "cuda/cuda_ops.h"
#include "cuda/peak_rates.h"

namespace athanor {
namespace {

constexpr int kOldestMajor = 8;  // compute capability 8.0: bf16 on tensor cores and cp.async

GpuReport describe(int index) {
  cudaDeviceProp p{};
  CUDA_CHECK(cudaGetDeviceProperties(&p, index));
  GpuReport gpu{.name = p.name,
                .major = p.major,
                .minor = p.minor,
                .multiprocessors = p.multiProcessorCount,
                .memory_bytes = p.totalGlobalMem,
                .peak_flops = cuda::peak_rate(p.name, DType::bf16),
                .copy_bytes = cuda::memory_rate(index)};
  if (p.major < kOldestMajor)
    gpu.problem = cat("compute capability ", p.major, ".", p.minor, " is below 8.0, the oldest with bf16 tensor cores");
  return gpu;
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
  auto device = std::make_unique<cuda::CudaDevice>(options.index);
  auto ops = std::make_unique<cuda::CudaOps>(device->stream(Lane::compute));
  std::string description = device->description();
  return {std::move(device), std::move(ops), std::move(description)};
}

}  // namespace athanor
