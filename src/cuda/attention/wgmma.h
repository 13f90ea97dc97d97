// Attention by warpgroups, for compute capability 9.0: bf16 and fp16 heads of 64 and 128.
#pragma once
#include "cuda/attention/rows.h"
namespace athanor::cuda::attention {

// Depends only on the GPU, the build, and sizes, strides and addresses.
template <class T>
bool warpgroups_take(const Forward<T>& a);
template <class T>
void attend_by_warpgroups(const Forward<T>& a, cudaStream_t stream);
template <class T>
bool warpgroups_take(const Backward<T>& a);
// Seven products.
template <class T>
void differentiate_by_warpgroups(const Backward<T>& a, cudaStream_t stream);
// Five, of what warpgroups_take(). scratch: of OrderedScratch, with the statistics in front.
template <class T>
void differentiate_in_order(const Backward<T>& a, void* scratch, cudaStream_t stream);
}  // namespace athanor::cuda::attention
