// A wire: what a transport of host memory has to do, move transfers between this rank and others. All that is above it,
// the calls of a Communicator, is the same for every wire (direct.cc), and so are its bits.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace athanor {

enum class Collective : uint32_t { all_reduce, all_gather, reduce_scatter, message, broadcast, barrier };
const char* name_of(Collective);

// Before every transfer, so that ranks that do different things stop instead of exchanging garbage.
struct Header {
  uint64_t group = 0, call = 0, bytes = 0;
  uint32_t op = 0, dtype = 0;
  bool operator==(const Header&) const = default;
};

// Header and bytes on their way to or from one peer.
struct Transfer {
  int peer;  // rank of the world
  std::byte* data;
  Header header;
  size_t done = 0;  // bytes, as the wire counts them
  Header arrived = {};
};

class Wire {
 public:
  virtual ~Wire() = default;
  // Moves everything both ways at once; between two ranks in order. An Error(peer_lost) if a rank is lost meanwhile.
  virtual void run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) = 0;
};

// Throws if the peer announces something else than this rank expects of it.
void require_same_call(const Transfer& received, int rank);

// All ranks 0 ... size - 1 of a wire.
std::unique_ptr<Communicator> make_direct(std::shared_ptr<Wire>, int rank, int size);

}  // namespace athanor
