#include "cuda/device/cuda_device.h"

#include "cuda/check.h"
#include "cuda/programmatic.h"
#include "device/gpu_specs.h"

namespace athanor::cuda {
namespace {

struct CudaEvent final : Event {
  CudaEvent() { CUDA_CHECK(cudaEventCreate(&event)); }
  ~CudaEvent() override { (void)cudaEventDestroy(event); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  cudaEvent_t event = nullptr;
};
cudaEvent_t handle(const Event& e) { return dynamic_cast<const CudaEvent&>(e).event; }

struct CudaGraph final : Graph {
  CudaGraph() = default;
  ~CudaGraph() override { (void)cudaGraphExecDestroy(exec); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  cudaGraphExec_t exec = nullptr;
};

// Throws the error of a failed allocation.
[[noreturn]] void out_of_memory(const std::string& gpu, size_t bytes, size_t free, size_t total) {
  throw Error(cat(gpu, ": ", bytes, " bytes were requested, but ", free, " of ", total,
                  " bytes are free: use a smaller micro-batch or model, or end other programs on this GPU"));
}

}  // namespace

double memory_rate(int index) {
  int khz = 0, bits = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, index));
  CUDA_CHECK(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, index));
  return 2e3 * khz * bits / 8;  // two transfers per clock
}

void allow_programmatic_launches(bool allowed) {
  int index = 0, major = 0;
  if (allowed) {
    CUDA_CHECK(cudaGetDevice(&index));
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  }
  programmatic_launches() = major >= 9;
}

CudaDevice::CudaDevice(int index, bool programmatic_launch, size_t host_memory)
    : index_(index), host_capacity_(host_memory ? host_memory : SIZE_MAX) {
  CUDA_CHECK(cudaSetDevice(index));
  CUDA_CHECK(cudaGetDeviceProperties(&properties_, index));
  allow_programmatic_launches(programmatic_launch);
  description_ = cat("cuda:", index, " ", properties_.name, ", sm_", properties_.major, properties_.minor, ", ",
                     properties_.multiProcessorCount, " multiprocessors");
  int least = 0, greatest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  for (const Stream which :
       // Collectives have priority over pending compute blocks.
       {Stream::compute, Stream::comm, Stream::copy, Stream::copy_back, Stream::workers})
    CUDA_CHECK(cudaStreamCreateWithPriority(&streams_[static_cast<size_t>(which)], cudaStreamNonBlocking,
                                            which == Stream::comm || which == Stream::workers ? greatest : least));
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  capacity_ = free;
}

CudaDevice::~CudaDevice() {
  programmatic_launches() = false;
  for (cudaStream_t stream : streams_) (void)cudaStreamDestroy(stream);
}

void* CudaDevice::allocate(size_t bytes, Mem kind) {
  void* memory = nullptr;
  if (kind != Mem::device) {
    const cudaError_t error = cudaMallocHost(&memory, bytes);
    if (error == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      throw Error(cat(
          description_, ": ", bytes, " bytes of pinned host memory were requested, more than the system can provide: ",
          "keep less there (offload.optimizer, checkpoint.async_save), or raise its limit on locked memory"));
    }
    CUDA_CHECK(error);
    std::fill_n(static_cast<char*>(memory), bytes, 0);
    return memory;
  }
  if (source_.allocate) memory = source_.allocate(bytes);
  if (memory) from_source_[memory] = source_.free;
  const cudaError_t error = memory ? cudaSuccess : cudaMalloc(&memory, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();  // clears the error, so that the next launch does not report it
    size_t free = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&free, &total));
    out_of_memory(description_, bytes, free, total);
  }
  CUDA_CHECK(error);
  CUDA_CHECK(cudaMemsetAsync(memory, 0, bytes, stream(Stream::compute)));
  CUDA_CHECK(cudaStreamSynchronize(stream(Stream::compute)));
  allocated_ += bytes;
  return memory;
}

// Ignores errors: they stem from earlier work and are reported elsewhere.
void CudaDevice::release(void* memory, size_t bytes, Mem kind) {
  if (kind != Mem::device) {
    (void)cudaFreeHost(memory);
    return;
  }
  allocated_ -= bytes;
  const auto block = from_source_.find(memory);
  if (block == from_source_.end()) {
    (void)cudaFree(memory);
    return;
  }
  if (source_.released) source_.released(memory);
  block->second(memory);
  from_source_.erase(block);
}

void CudaDevice::copy(void* to, const void* from, size_t bytes, Stream which) {
  if (bytes) CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream(which)));
}

std::unique_ptr<Event> CudaDevice::record(Stream which) {
  auto event = std::make_unique<CudaEvent>();
  CUDA_CHECK(cudaEventRecord(event->event, stream(which)));
  return event;
}
void CudaDevice::wait(Stream which, const Event& e) { CUDA_CHECK(cudaStreamWaitEvent(stream(which), handle(e), 0)); }
void CudaDevice::wait(const Event& e) {
  ++host_waits_;
  waited(cudaEventSynchronize(handle(e)));
}

void CudaDevice::waited(cudaError_t error) {
  if (wait_check_) wait_check_();
  CUDA_CHECK(error);
}

double CudaDevice::seconds(const Event& from, const Event& to) const {
  float ms = 0;
  CUDA_CHECK(cudaEventElapsedTime(&ms, handle(from), handle(to)));
  return double(ms) * 1e-3;
}

void CudaDevice::sync() {
  ++host_waits_;
  for (cudaStream_t stream : streams_) waited(cudaStreamSynchronize(stream));
}

size_t CudaDevice::capacity(Mem kind) const { return kind == Mem::device ? capacity_ : host_capacity_; }

size_t CudaDevice::in_use() const {
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return total - free;
}

double CudaDevice::peak_flops(DType dtype) const {
  const GpuSpec* known = find_gpu_named(properties_.name);
  return known ? known->peak_flops(dtype) : 0;
}
double CudaDevice::peak_plain_flops() const {
  const GpuSpec* known = find_gpu_named(properties_.name);
  return known ? known->f32_flops : 0;
}

// Thread-local capture mode: calls of other threads, including those of libraries, neither enter nor break the capture.
void CudaDevice::begin_capture() {
  CUDA_CHECK(cudaStreamBeginCapture(stream(Stream::compute), cudaStreamCaptureModeThreadLocal));
}

std::unique_ptr<Graph> CudaDevice::end_capture() {
  cudaGraph_t graph = nullptr;
  CUDA_CHECK(cudaStreamEndCapture(stream(Stream::compute), &graph));
  auto result = std::make_unique<CudaGraph>();
  const cudaError_t error = cudaGraphInstantiate(&result->exec, graph, 0);
  (void)cudaGraphDestroy(graph);
  CUDA_CHECK(error);
  CUDA_CHECK(cudaGraphUpload(result->exec, stream(Stream::compute)));
  return result;
}

void CudaDevice::launch(const Graph& graph) {
  CUDA_CHECK(cudaGraphLaunch(dynamic_cast<const CudaGraph&>(graph).exec, stream(Stream::compute)));
}
}  // namespace athanor::cuda
