// The CUDA kernels written so far as a backend that the Examiner of tests/ops can hold: on a GPU, or on the emulated
// one when ATHANOR_EMULATED_GPU is defined. Ops without a kernel throw.
#pragma once
#include <memory>
#include <string>

#include "cuda/attention/cudnn_attention.h"
#include "cuda/gemm/gemm.h"
#include "tests/ops/examiner.h"
namespace athanor {

// On the emulated GPU `threads` is the number of OS threads that share the blocks, and every launch has a new schedule.
TestBackend make_cuda_backend(int threads);
// Products with an epilogue are searched for first, so that they run fused where that is faster.
TestBackend make_searching_backend(int threads);
TestBackend make_attention_backend(int threads, std::unique_ptr<cuda::CudnnAttention> attention);

// With NVIDIA's library, or the fake one on the emulated GPU; its workspace is small, so that tests are quick.
std::unique_ptr<cuda::GemmRunner> make_gemm_runner();

// Whether kernels of tests may start early (programmatic launch): yes, unless ATHANOR_TEST_EARLY_STARTS is 0.
bool early_starts_in_tests();

// Empty, or why no GPU can be used.
std::string why_no_gpu();
}  // namespace athanor
