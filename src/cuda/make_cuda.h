// Interface of the CUDA backend, free of CUDA headers. A build without CUDA has the same functions (absent/no_cuda.cc),
// which report that there is none.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/choices.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "device/profiler.h"
#include "device/sensors.h"
#include "ops/ops.h"
#include "ops/tuning.h"
namespace athanor {

struct CudaOptions {
  int index = 0;  // CUDA's index among the visible GPUs
  // cudnn: cuDNN's attention wherever it supports the op; automatic: cuDNN's attention where its plan fits in memory,
  // unless autotuning (Tuning) finds the program's own kernels faster. Both need sequences of exactly `tokens` tokens:
  // setting `tokens` promises that, and setting `documents` promises that all other tables of spans describe documents
  // within such sequences.
  CudaAttention attention = CudaAttention::automatic;
  bool cudnn = true;   // false: behave as if cuDNN were not installed
  int64_t tokens = 0;  // 0: any lengths, for which only the program's own kernels are used
  bool documents = false;
  bool programmatic_launch = true;  // kernels may start before earlier ones have ended; does not change results
  size_t host_memory = 0;           // Device::capacity(Mem::pinned) in bytes; 0: unknown
  std::string plan_folder;          // stores cuDNN's plans for later runs; "": plans are built at each start
};

struct CudaBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;          // must not outlive device
  Tuning* tuning = nullptr;          // part of ops
  std::string description;           // GPU and libraries, for the log
  std::string attention;             // library used besides the program's own kernels: "cuDNN 9.19.0"; "": none
  std::unique_ptr<Sensors> sensors;  // null: NVML is missing
};

// A GPU of this machine, usable or not.
struct GpuReport {
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0;
  size_t memory_bytes = 0;
  double peak_flops = 0;  // bf16, from the data sheet; 0: unknown
  double copy_bytes = 0;  // per second, from the memory's data rate
  std::string uuid;       // hexadecimal
  std::string problem;    // empty if it can be used
};
std::vector<GpuReport> list_gpus();

// Reason why no GPU can be used: no driver, no GPU, built without CUDA; empty if the first one can be used.
std::string why_no_cuda();

// The required NVIDIA library that is missing and the packages that provide it; empty if none is missing.
std::string why_no_libraries();

// Throws Error naming what is missing and the packages that provide it.
CudaBackend make_cuda(const CudaOptions&);

// Profiler of this process' GPU, through CUPTI; one at a time. Not verified on hardware. Throws Error like make_cuda().
std::unique_ptr<Profiler> make_cuda_profiler();

// Ranks with one GPU each, over NCCL. Not verified on hardware.
struct NcclOptions {
  std::function<std::string()> place = [] { return std::string(); };  // for messages: "rank 3 (node-7) at step 17"
  // Limit in seconds for creating a communicator, and for a collective without another known failure.
  std::function<double()> timeout = [] { return 600.0; };
  std::function<void(const std::string& why)> fail = [](const std::string&) {};  // reports a failure to other ranks
  std::function<std::string()> failure = [] { return std::string(); };           // reported by some rank; "": none
  // Receives how many collectives this rank's device has begun, and whether one is running. Called on a thread of the
  // transport.
  std::function<void(uint64_t begun, bool inside)> progress = [](uint64_t, bool) {};
};

struct NcclTransport {
  std::unique_ptr<Communicator> world;
  std::string version;  // version of the library
};

// Collective over all ranks of `control`, which carries the hosts' messages (ids, groups, barriers) and which the
// transport then owns. device: made by make_cuda() on this thread; must outlive the communicators. Throws Error like
// make_cuda().
NcclTransport make_nccl(Device& device, NcclOptions, std::unique_ptr<Communicator> control);
}  // namespace athanor
