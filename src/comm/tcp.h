// Ranks over TCP, or through shared memory if they are on one machine, for tensors in host memory and messages between
// hosts (wire.h). A rank has a connection to each rank that it has exchanged something with, so it has one to every
// rank after an all-reduce of a large tensor. Reductions are in rank order.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "comm/rendezvous.h"

namespace athanor {

// All ranks of the rendezvous; it must outlive the communicator and its splits. Calls of one rank come from one thread
// at a time.
// interfaces: the network interface for tensors, as in NCCL_SOCKET_IFNAME; "": the one that reaches rank 0's machine.
// name: identifies the communicator among several of one rendezvous; each has its own connections and its own thread.
// share_memory: use shared memory with ranks of the same machine, network namespace and user that ask for it too.
std::unique_ptr<Communicator> make_tcp(Rendezvous&, const std::string& interfaces, bool share_memory = false,
                                       const std::string& name = "tcp");

}  // namespace athanor
