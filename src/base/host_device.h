// ATHANOR_HOST_DEVICE marks functions that kernels call too, so that they exist once. They use only what device code
// may: arithmetic, <cmath>, structs and arrays.
#pragma once
#ifdef __CUDACC__
#define ATHANOR_HOST_DEVICE __host__ __device__
#else
#define ATHANOR_HOST_DEVICE
#endif
