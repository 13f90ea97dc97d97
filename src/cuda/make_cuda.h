// The CUDA backend as the program sees it, free of CUDA's headers: a build without CUDA has the same functions, which
// say why there is none.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "device/device.h"
#include "device/profiler.h"
#include "device/sensors.h"
#include "ops/ops.h"
#include "ops/tuning.h"
namespace athanor {

enum class CudaAttention : uint8_t { automatic, builtin, cudnn };

struct CudaOptions {
  int index = 0;  // of the GPU, as CUDA counts those that this process sees
  // cudnn: its attention wherever it can; automatic: where a plan has memory for it, unless the program's own is
  // found to be faster (Tuning). Both only for sequences of `tokens` tokens without gaps, which the caller promises by
  // giving their length.
  CudaAttention attention = CudaAttention::automatic;
  int64_t tokens = 0;       // 0: sequences of any length, documents, windows: kernels of the program's own
  std::string plan_folder;  // keeps cuDNN's plans for later runs; "": they are made at each start
};

struct CudaBackend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;          // must not outlive device
  Tuning* tuning = nullptr;          // part of ops
  std::string description;           // GPU and libraries, for the log
  std::string attention;             // whose may be used beside the program's own: "cuDNN 9.19.0"; "" for none
  std::unique_ptr<Sensors> sensors;  // null: NVML is missing
};

// A GPU of this machine, usable or not.
struct GpuReport {
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0;
  size_t memory_bytes = 0;
  double peak_flops = 0;  // bf16, of the data sheet; 0 if not known
  double copy_bytes = 0;  // per second, of the memory's data rate
  std::string uuid;       // of this very GPU, in hexadecimal
  std::string problem;    // empty if it can be used
};
std::vector<GpuReport> list_gpus();

// Why no GPU can be used: no driver, none there, built without CUDA; empty if the first one can.
std::string why_no_cuda();

// Which of NVIDIA's libraries without which a GPU is of no use is missing, and what brings it; empty if none is.
std::string why_no_libraries();

// Throws Error, naming what is missing and what brings it.
CudaBackend make_cuda(const CudaOptions&);

// Of the GPU that this process uses, through CUPTI; one at a time. Not verified on hardware. Throws Error, naming what
// is missing and what brings it.
std::unique_ptr<Profiler> make_cuda_profiler();

// Ranks with a GPU each, over NCCL. Not verified on hardware.
struct NcclOptions {
  std::function<std::string()> place = [] { return std::string(); };  // of this rank: "rank 3 (node-7) at step 17"
  // Seconds, as of now: to make a communicator, and of a collective whose end nobody else explains.
  std::function<double()> timeout = [] { return 600.0; };
  std::function<void(const std::string& why)> fail = [](const std::string&) {};  // tells the other ranks
  std::function<std::string()> failure = [] { return std::string(); };           // of some rank, as told; "": none
  // How many collectives this rank's device has begun, and whether it is within one. On a thread of the transport.
  std::function<void(uint64_t begun, bool inside)> progress = [](uint64_t, bool) {};
};

struct NcclTransport {
  std::unique_ptr<Communicator> world;
  std::string version;  // of the library
};

// All ranks of `control`, which carries what hosts say to each other (ids, groups, barriers) and belongs to the
// transport from now on. device: that of make_cuda(), made by this thread; outlives the communicators. Throws Error
// naming what is missing and what brings it.
NcclTransport make_nccl(Device& device, NcclOptions, std::unique_ptr<Communicator> control);
}  // namespace athanor
