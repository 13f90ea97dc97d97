// Ranks over TCP, for tensors in host memory and what hosts tell each other (wire.h): a rank has a connection to each
// other that it has exchanged something with, so to all after a reduction of tensors among all. Reductions are in rank
// order.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace athanor {

// All ranks of the rendezvous; it must outlive the communicator and its splits. Calls of one rank come from one thread.
// interfaces: the network interface for tensors, as in NCCL_SOCKET_IFNAME; "": the one that reaches rank 0's machine.
std::unique_ptr<Communicator> make_tcp(Rendezvous&, const std::string& interfaces);

}  // namespace athanor
