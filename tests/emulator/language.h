// The CUDA language for kernels compiled by an ordinary C++ compiler: qualifiers, thread indices, shared memory,
// barriers, warp collectives, atomics and intrinsics. Include it only when __CUDACC__ is not defined.
// What is missing here does not compile, or is refused by name (language/refused.h).
#pragma once
#include "emulator/language/qualifiers.h"
// then, since they use the qualifiers:
#include "emulator/language/access.h"
#include "emulator/language/atomics.h"
#include "emulator/language/collectives.h"
#include "emulator/language/intrinsics.h"
#include "emulator/language/refused.h"
#include "emulator/language/shared.h"
#include "emulator/language/thread.h"
