// A connection that carries tensors to and from one other rank: over TCP, authenticated by tags, or through memory that
// both ranks share (shared_link.h).
#pragma once
#include <poll.h>

#include <memory>
#include <vector>

#include "comm/seal.h"
#include "comm/socket.h"
#include "comm/wire.h"

namespace athanor {

class Link {
 public:
  enum class Outcome { moved, waiting, closed };
  virtual ~Link() = default;
  // Transfers as much as possible without blocking. At most one transfer per direction at a time.
  virtual Outcome push(Transfer&) = 0;
  // Throws Error if the header is not the expected one. Received data is valid once the transfer has ended.
  virtual Outcome pull(Transfer&, int rank) = 0;
  // True if the peer's progress is visible in shared memory, so that a short busy wait detects it before poll() would.
  virtual bool in_memory() const { return false; }
  // Called before poll(): adds descriptors that become ready when push() or pull() can make progress. Call push() and
  // pull() once more between this call and poll(): progress that the peer made before this call may have woken nobody.
  virtual void begin_wait(std::vector<pollfd>&, bool sends, bool receives) = 0;
  virtual void end_wait() {}  // called after poll()
};

// Authenticated by a tag over header and data: pull() throws Error if it is wrong.
std::unique_ptr<Link> make_tcp_link(Fd, Session);

}  // namespace athanor
