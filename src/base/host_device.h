// Functions that kernels call too are marked ATHANOR_HOST_DEVICE, so that a rule exists once; they keep to what a GPU's
// compiler has: arithmetic, <cmath>, structs and arrays.
#pragma once
#ifdef __CUDACC__
#define ATHANOR_HOST_DEVICE __host__ __device__
#else
#define ATHANOR_HOST_DEVICE
#endif
