// Replaces the kernel that cuDNN attention launches first for documents: programs that only build plans have no
// kernels.
#include "base/error.h"
#include "cuda/attention/document_bounds.h"

namespace athanor::cuda {
void run(const DocumentBounds&, cudaStream_t) { throw Error("this program has no kernels"); }
}  // namespace athanor::cuda
