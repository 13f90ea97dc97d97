// Attention by warpgroups, for compute capability 9.0: bf16 and fp16 heads of 64 and 128.
#pragma once
#include "cuda/attention/rows.h"
namespace athanor::cuda::attention {

// warpgroups_take() depends only on the GPU, the build, and sizes, strides and addresses.
template <class T>
bool warpgroups_take(const Forward<T>& a);
template <class T>
void attend_by_warpgroups(const Forward<T>& a, cudaStream_t stream);
template <class T>
bool warpgroups_take(const Backward<T>& a);
template <class T>
void differentiate_by_warpgroups(const Backward<T>& a, cudaStream_t stream);
}  // namespace athanor::cuda::attention
