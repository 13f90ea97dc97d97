// Communicator: collectives over a group of ranks, one axis of the process mesh. A transport is one file: a group of
// one (single.cc), threads of one process (threads.cc), sockets (tcp.cc), NCCL (cuda/nccl/communicator.cc).
#pragma once
#include <memory>
#include <span>
#include <string>

#include "device/device.h"

namespace athanor {

enum class Reduce : uint8_t { sum, avg, max };

// Every rank of a group makes the same calls in the same order. Results are bitwise identical on all ranks. If a rank
// dies or fails, the calls of all others throw Error(peer_lost) that names it.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Ranks with the same color form a group, ordered by key, then by their rank here.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  virtual void all_reduce(Tensor x, Reduce, Lane) = 0;  // in place
  // full = size() shards in rank order; shard may be a view of this rank's slice of full.
  virtual void all_gather(Tensor full, Tensor shard, Lane) = 0;
  virtual void reduce_scatter(Tensor shard, Tensor full, Reduce,
                              Lane) = 0;  // inverse of all_gather; does not change full unless shard is a view of it
  virtual void send(Tensor x, int dst, Lane) = 0;
  virtual void recv(Tensor x, int src, Lane) = 0;
  // Sends `out` to peer and receives `in` from it concurrently; the peer makes the matching call.
  virtual void exchange(Tensor out, Tensor in, int peer, Lane) = 0;
  // One tensor per rank, in rank order, of any sizes: out[r] arrives as in[this rank] of rank r, which must be as
  // large; one without data is not sent. Tensors of `out` may overlap.
  virtual void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Lane) = 0;
  virtual void broadcast(Tensor x, int root, Lane) = 0;
  virtual void barrier() = 0;
};

// Names the purpose of this thread's collectives in messages, e.g. "model.layers.3".
class CollectiveSubject {
 public:
  explicit CollectiveSubject(std::string what);
  ~CollectiveSubject();
  CollectiveSubject(const CollectiveSubject&) = delete;
  CollectiveSubject& operator=(const CollectiveSubject&) = delete;
  static std::string words();  // " for model.layers.3", or "" if none is set

 private:
  std::string outer_;
};

// A group of one: collectives copy where source and destination differ, and do nothing otherwise.
std::unique_ptr<Communicator> make_single(Device&);

}  // namespace athanor
