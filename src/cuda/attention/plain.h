// Attention without tensor cores: f32, any head size, any alignment.
#pragma once
#include "cuda/attention/rows.h"
namespace athanor::cuda::attention {

template <class T>
void attend_plainly(const Forward<T>& a, cudaStream_t stream);
template <class T>
void differentiate_plainly(const Backward<T>& a, cudaStream_t stream);
}  // namespace athanor::cuda::attention
