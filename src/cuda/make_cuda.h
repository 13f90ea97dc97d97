// The CUDA backend as the program sees it, free of CUDA's headers: a build without CUDA has the same functions, which
// say why there is none.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "device/sensors.h"
#include "ops/ops.h"
#include "ops/tuning.h"
namespace athanor {

enum class CudaAttention : uint8_t { automatic, builtin, cudnn };

struct CudaOptions {
  int index = 0;  // of the GPU, as CUDA counts those that this process sees
  // cudnn: its attention wherever it can; automatic: where it also needs little memory. Both only for sequences of
  // `tokens` tokens without gaps, which the caller promises by giving their length.
  CudaAttention attention = CudaAttention::automatic;
  int64_t tokens = 0;  // 0: sequences of any length, documents, windows: kernels of the program's own
};

struct CudaBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;          // must not outlive device
  Tuning* tuning = nullptr;          // part of ops
  std::string description;           // GPU and libraries, for the log
  std::unique_ptr<Sensors> sensors;  // null: NVML is missing
};

// A GPU of this machine, usable or not.
struct GpuReport {
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0;
  size_t memory_bytes = 0;
  double peak_flops = 0;  // bf16, of the data sheet; 0 if not known
  double copy_bytes = 0;  // per second, of the memory's data rate
  std::string problem;    // empty if it can be used
};
std::vector<GpuReport> list_gpus();

// Why no GPU can be used: no driver, none there, built without CUDA; empty if the first one can.
std::string why_no_cuda();

// Throws Error, naming what is missing and what brings it.
CudaBackend make_cuda(const CudaOptions&);
}  // namespace athanor
