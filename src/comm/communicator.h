// Communicator: collectives over a group of ranks, one axis of the process mesh. A transport is one file: a group of
// one (single.cc), threads of one process (threads.cc), sockets (tcp.cc), NCCL (cuda/nccl/communicator.cc).
#pragma once
#include <memory>
#include <span>
#include <string>

#include "base/int.h"
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
  virtual void all_reduce(Tensor x, Reduce, Stream) = 0;  // in place
  // full = size() shards in rank order; shard may be a view of this rank's slice of full.
  virtual void all_gather(Tensor full, Tensor shard, Stream) = 0;
  virtual void reduce_scatter(Tensor shard, Tensor full, Reduce,
                              Stream) = 0;  // inverse of all_gather; does not change full unless shard is a view of it
  // all_reduce and reduce_scatter of sums that are accumulated in f32, over all ranks in order, and rounded once to the
  // dtype. `workspace`: scratch tensor with sum_workspace() elements for x or full, which are overwritten.
  virtual int64_t sum_workspace(DType, int64_t) const { return 0; }
  virtual void sum(Tensor x, Tensor workspace, Stream);
  virtual void sum_scatter(Tensor shard, Tensor full, Tensor workspace, Stream);
  virtual void send(Tensor x, int dst, Stream) = 0;
  virtual void recv(Tensor x, int src, Stream) = 0;
  // Asynchronous send: other calls of this rank do not wait for it, and the peer's recv() receives sends in the order
  // in which they were started. x must not change until finish_sends(dst, n) has returned, which waits until at most n
  // sends to dst are in flight. A rank makes progress with its sends while it waits in other calls, of any group; two
  // ranks make all their calls with each other in one order. Only for tensors in host memory: a device's tensors are
  // sent on its streams.
  virtual void start_send(Tensor x, int dst, Stream stream) { send(x, dst, stream); }
  virtual void finish_sends(int /*dst*/, int64_t /*under_way*/) {}
  // Sends `out` to peer and receives `in` from it concurrently; the peer makes the matching call.
  virtual void exchange(Tensor out, Tensor in, int peer, Stream) = 0;
  // One tensor per rank, in rank order, of any sizes: out[r] arrives at rank r as its in[this rank], which must have
  // the same size. A tensor without data is not sent. Tensors of `out` may overlap.
  virtual void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream) = 0;
  // For background communicators (comm/background.h), whose calls return at once. calls(): number of calls so far;
  // finish_calls() returns when the first `calls` of them have ended.
  virtual int64_t calls() const { return 0; }
  virtual void finish_calls(int64_t /*calls*/) {}
  virtual void broadcast(Tensor x, int root, Stream) = 0;
  virtual void barrier() = 0;
};

// Communicator::sum_workspace() of a transport whose own bf16 sums are rounded at every hop: ranks exchange pieces of
// the tensor instead, each padded to whole 16-byte vectors.
constexpr int64_t piece_of_sum(int64_t n, int ranks) { return round_up<int64_t>(div_ceil<int64_t>(n, ranks), 8); }
constexpr int64_t bf16_sum_workspace(DType dtype, int64_t n, int ranks) {
  return dtype == DType::bf16 && ranks > 1 ? ranks * piece_of_sum(n, ranks) : 0;
}

// Names the purpose of this thread's collectives in messages, e.g. "model.layers.3".
class CollectiveSubject {
 public:
  explicit CollectiveSubject(std::string what);
  ~CollectiveSubject();
  CollectiveSubject(const CollectiveSubject&) = delete;
  CollectiveSubject& operator=(const CollectiveSubject&) = delete;
  static const std::string& name();  // "model.layers.3", or "" if none is set
  static std::string words();        // " for model.layers.3", or ""

 private:
  std::string outer_;
};

// A group of one: collectives copy where source and destination differ, and do nothing otherwise.
std::unique_ptr<Communicator> make_single(Device&);

}  // namespace athanor
