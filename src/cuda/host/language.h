// The CUDA language for kernels compiled by an ordinary C++ compiler: qualifiers, thread indices, shared memory,
// barriers, warp collectives, atomics and intrinsics. Include it only when __CUDACC__ is not defined. Unsupported
// features do not compile (host/refused.h).
#pragma once
#include "cuda/host/qualifiers.h"
// The following headers use the qualifiers.
#include "cuda/host/access.h"
#include "cuda/host/atomics.h"
#include "cuda/host/collectives.h"
#include "cuda/host/intrinsics.h"
#include "cuda/host/refused.h"
#include "cuda/host/shared.h"
#include "cuda/host/thread.h"
