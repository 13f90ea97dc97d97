// Ranks over MPI, for tensors in host memory, through the plug-in libathanor_mpi.so. MPI moves tensors and nothing
// else: how ranks meet and miss each other is the rendezvous' task as with every transport.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace athanor {

// All ranks of the rendezvous, which must be MPI's too, started by mpirun or srun --mpi. The rendezvous must outlive
// it. One thread only. Throws Error(usage) where there is no plug-in, or MPI knows other ranks.
std::unique_ptr<Communicator> make_mpi(Rendezvous&);

}  // namespace athanor
