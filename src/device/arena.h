// Arena: activation memory, planned by a recorded dry run of the same code that runs later. Recording returns fake
// addresses and notes when each block is allocated and freed; pack() assigns offsets; at run time block k of a phase
// gets the offset planned for block k. Any divergence from the recording is an error that names the block.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace athanor {

constexpr size_t kArenaAlign = 256;  // bytes; the alignment that CUDA libraries prefer

// What tensors point to while memory is only planned: aligned and not null; dereferencing it faults.
inline void* planned_address() {
  return reinterpret_cast<void*>(uintptr_t{kArenaAlign});  // NOLINT(performance-no-int-to-ptr)
}

struct PlannedBlock {
  std::string name;
  size_t bytes = 0;  // rounded up to kArenaAlign
  int64_t born = 0, died = 0;
  size_t offset = 0;
};

class Arena;

// Shared ownership of one arena block: the block dies with the last Buffer.
class Buffer {
 public:
  Tensor t;
  // None, or [1] f32 of longer life that holds the largest magnitude of t as it is now. Whoever writes to t again sets
  // it again, or drops it.
  Tensor amax = {};
  Buffer() = default;
  explicit operator bool() const { return lease_ != nullptr; }

 private:
  friend class Arena;
  struct Lease;
  std::shared_ptr<Lease> lease_;
};

// The recorded allocations of one repeatable piece of work (a micro-batch, an evaluation batch, an optimizer step).
struct ArenaPhase {
  std::string name;
  std::vector<PlannedBlock> blocks;
  size_t packed_bytes = 0;  // needed with the chosen offsets, once bytes() has chosen them
  size_t peak_live = 0;     // lower bound: most bytes alive at once
};

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void record(std::string phase);      // start recording a new phase (fake addresses: do not dereference)
  void finish_recording();             // every buffer must be dead
  size_t least_bytes() const;          // the largest phase takes at least this: most bytes alive at once
  size_t bytes();                      // largest phase; packs those that have not been packed yet
  void commit(void* memory);           // from now on phases run in this memory of bytes()
  void begin(std::string_view phase);  // start running a recorded phase
  void end();                          // every buffer must be dead and every planned block used

  Buffer alloc(std::string_view name, DType, Shape);

  bool recording() const { return mode_ == Mode::recording; }
  const std::vector<ArenaPhase>& phases() const { return phases_; }

 private:
  friend struct Buffer::Lease;
  enum class Mode { idle, recording, running };
  void release(size_t block);

  Mode mode_ = Mode::idle;
  std::vector<ArenaPhase> phases_;
  ArenaPhase* phase_ = nullptr;
  size_t next_ = 0, live_blocks_ = 0, live_bytes_ = 0;
  int64_t clock_ = 0;
  char* memory_ = nullptr;
};

// Greedy-by-size packing of lifetimes [Pisarchyk & Lee 2020, sec. 4]: sets offsets, returns bytes needed.
size_t pack(std::vector<PlannedBlock>& blocks);

}  // namespace athanor
