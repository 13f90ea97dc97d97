// ATHANOR_HOST_DEVICE marks functions that are called from host code and kernels. They use only what device code may:
// arithmetic, <cmath>, structs and arrays. ATHANOR_INLINE functions are always inlined, so that they are compiled for
// the instruction set of their caller.
#pragma once
#ifdef __CUDACC__
#define ATHANOR_HOST_DEVICE __host__ __device__
#else
#define ATHANOR_HOST_DEVICE
#endif
// Sanitized builds do not force inlining: instrumenting one large inlined CPU kernel takes the compiler minutes.
#if defined(ATHANOR_SANITIZED)
#define ATHANOR_INLINE inline
#else
#define ATHANOR_INLINE __attribute__((always_inline)) inline
#endif
