// ATHANOR_HOST_DEVICE marks functions that kernels call too, so that they exist once. They use only what device code
// may: arithmetic, <cmath>, structs and arrays. ATHANOR_INLINE functions are compiled into their callers, for the
// instruction set of these.
#pragma once
#ifdef __CUDACC__
#define ATHANOR_HOST_DEVICE __host__ __device__
#else
#define ATHANOR_HOST_DEVICE
#endif
// Sanitized builds call what others inline: instrumenting the inlined whole of a CPU kernel takes the compiler minutes.
#if defined(ATHANOR_SANITIZED)
#define ATHANOR_INLINE inline
#else
#define ATHANOR_INLINE __attribute__((always_inline)) inline
#endif
