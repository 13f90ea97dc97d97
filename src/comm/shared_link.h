// Links between ranks on one machine: two rings of bytes in memory that both processes map. The memory and the event
// descriptors that wake a waiting rank are passed over a Unix socket in Linux's abstract namespace, which is
// unreachable from a network; the kernel reports which user is at its other end. The socket stays open until one of the
// processes ends, so it shows when the peer ends.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "comm/link.h"

namespace athanor {

// Socket on which a rank listens for other ranks of its machine. Its address, a text for them, names the machine (boot
// id, network namespace and user, which must all be the same) and the socket.
class SharedEntry {
 public:
  struct Guest {
    int rank;
    std::unique_ptr<Link> link;
  };
  SharedEntry() = default;  // has no address and no guests: the rank uses TCP with all others
  // Listens on such a socket; if the machine offers none, the address is empty.
  static SharedEntry listening();
  const std::string& address() const { return address_; }
  // Starts to accept connections of the other `world` - 1 ranks of the job, which must prove that they know its secret.
  void open(std::string secret, int rank, int world);
  void add_to(std::vector<pollfd>&) const;
  // Call after poll(): returns the guests that have come. Strangers are sent away.
  std::vector<Guest> admit();
  void close() { listener_ = {}; }

 private:
  Fd listener_;
  std::string address_, secret_;
  int rank_ = 0, world_ = 0;
};

// True if both addresses are on one machine, in one network namespace and of one user.
bool on_one_machine(const std::string& address, const std::string& other);

// Connects rank `from` to rank `to`, which listens at `address`. Null if it does not answer by the deadline, or if
// shared memory is not available: the caller then uses TCP.
std::unique_ptr<Link> dial_shared(const std::string& address, const std::string& secret, int from, int to, Deadline);

}  // namespace athanor
