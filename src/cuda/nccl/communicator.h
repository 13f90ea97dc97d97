// NCCL as a Communicator. Asynchronous: a call queues work on the given stream; the caller orders streams by events. A
// call may be captured in a graph after it has been made once outside of a graph. Reductions use NCCL's order: the same
// bits on all ranks and in every run on the same machines, but not the bits of a sum in rank order.
#pragma once
#include <memory>

#include "cuda/libraries/nccl_table.h"
#include "cuda/make_cuda.h"
namespace athanor::cuda {

class CudaDevice;

// make_nccl() with a given library.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclTable&, CudaDevice&, NcclOptions,
                                                     std::unique_ptr<Communicator> control);
}  // namespace athanor::cuda
