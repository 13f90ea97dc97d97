// In place of the kernel that cuDNN's attention of documents launches first: programs that only make plans have none.
#include "base/error.h"
#include "cuda/attention/document_bounds.h"

namespace athanor::cuda {
void run(const DocumentBounds&, cudaStream_t) { throw Error("this program has no kernels"); }
}  // namespace athanor::cuda
