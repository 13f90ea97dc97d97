// The CUDA kernels as a backend for the Examiner of tests/ops: on a GPU, or on the emulated one if ATHANOR_EMULATED_GPU
// is defined. Ops without a kernel throw.
#pragma once
#include <memory>
#include <string>

#include "cuda/attention/cudnn_attention.h"
#include "cuda/gemm/gemm.h"
#include "tests/ops/examiner.h"
namespace athanor {

// On the emulated GPU, `threads` is the number of OS threads that run the blocks, and every launch uses a new schedule.
TestBackend make_cuda_backend(int threads);
// Autotunes GEMMs with an epilogue first, so that they run fused if that is faster.
TestBackend make_searching_backend(int threads);
TestBackend make_attention_backend(int threads, std::unique_ptr<cuda::CudnnAttention> attention);

// Uses NVIDIA's library, or the fake one on the emulated GPU; the workspace is small, to keep tests quick.
std::unique_ptr<cuda::GemmRunner> make_gemm_runner();

// Whether kernels in tests use programmatic launch (early start): yes, unless ATHANOR_TEST_EARLY_STARTS is 0.
bool early_starts_in_tests();

// Why no GPU can be used; empty if one can.
std::string why_no_gpu();
}  // namespace athanor
