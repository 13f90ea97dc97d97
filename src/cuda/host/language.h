// The CUDA language for kernels compiled by an ordinary C++ compiler: qualifiers, thread indices, shared memory,
// barriers, warp collectives, atomics and intrinsics. Include it only when __CUDACC__ is not defined.
// What is missing here does not compile, or is refused by name (language/refused.h).
#pragma once
#include "cuda/host/qualifiers.h"
// then, since they use the qualifiers:
#include "cuda/host/access.h"
#include "cuda/host/atomics.h"
#include "cuda/host/collectives.h"
#include "cuda/host/intrinsics.h"
#include "cuda/host/refused.h"
#include "cuda/host/shared.h"
#include "cuda/host/thread.h"
