// Communicator: collectives over one axis of the process mesh. Single here; MPI, NCCL and threads are further files.
#pragma once
#include <memory>

#include "device/device.h"

namespace athanor {

enum class Reduce : uint8_t { sum, avg, max };

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  virtual void all_reduce(Tensor x, Reduce, Lane) = 0;           // in place
  virtual void all_gather(Tensor full, Tensor shard, Lane) = 0;  // full = size() shards in rank order
  virtual void reduce_scatter(Tensor shard, Tensor full, Reduce, Lane) = 0;
  virtual void send(Tensor x, int dst, Lane) = 0;
  virtual void recv(Tensor x, int src, Lane) = 0;
  virtual void broadcast(Tensor x, int root, Lane) = 0;
  virtual void barrier() = 0;
};

// A group of one: collectives copy where source and destination differ, and do nothing otherwise.
std::unique_ptr<Communicator> make_single(Device&);

}  // namespace athanor
