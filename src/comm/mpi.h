// Ranks over MPI for tensors in host memory, through the plug-in libathanor_mpi.so. MPI only transfers tensors: startup
// and failure detection are the rendezvous' task, as with every transport.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace athanor {

// All ranks of the rendezvous, which must be the ranks of MPI (started by mpirun or srun --mpi). The rendezvous must
// outlive the communicator. One thread only. Throws Error(usage) if there is no plug-in or MPI's ranks differ.
std::unique_ptr<Communicator> make_mpi(Rendezvous&);

}  // namespace athanor
