// Replaces make_cuda.cc in a build without CUDA: reports that there is no GPU, and why.
#include "cuda/make_cuda.h"

namespace athanor {

std::vector<GpuReport> list_gpus() { return {}; }

std::string why_no_cuda() {
  return "this program was built without CUDA (it needs nvcc and the headers of CUDA 13.0, cuDNN 9 and NCCL 2.28; "
         "build "
         "again where they are)";
}

std::string why_no_libraries() { return why_no_cuda(); }

CudaBackend make_cuda(const CudaOptions&) { throw Error(cat("device cuda: ", why_no_cuda()), Exit::usage); }

std::unique_ptr<Profiler> make_cuda_profiler() { throw Error(cat("CUPTI: ", why_no_cuda()), Exit::usage); }

NcclTransport make_nccl(Device&, NcclOptions, std::unique_ptr<Communicator>) {
  throw Error(cat("NCCL: ", why_no_cuda()), Exit::usage);
}

}  // namespace athanor
