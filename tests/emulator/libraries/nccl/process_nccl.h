// An NCCL whose ranks are processes of one machine: what they send goes through files of a folder. For whole programs;
// as far as they use it, and without the strictness of FakeNccl. A rank that dies leaves the others waiting, as
// NCCL does, until they abort.
#pragma once
#include "../machine.h"
#include "cuda/libraries/nccl_table.h"

namespace emu::fakes {

// machine: for the life of the process. Files are below TMPDIR.
athanor::NcclTable process_nccl(Machine machine);

}  // namespace emu::fakes
