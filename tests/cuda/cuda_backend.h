// The CUDA kernels written so far as a backend that the Examiner of tests/ops can hold: on a GPU, or on the emulated
// one when ATHANOR_EMULATED_GPU is defined. Ops without a kernel throw.
#pragma once
#include <string>

#include "tests/ops/examiner.h"
namespace athanor {

// On the emulated GPU `threads` is the number of OS threads that share the blocks, and every launch has a new schedule.
TestBackend make_cuda_backend(int threads);

// Empty, or why no GPU can be used.
std::string why_no_gpu();
}  // namespace athanor
