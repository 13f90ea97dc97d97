// Arena: activation memory, planned by a recorded dry run of the same code that runs later. Recording returns fake
// addresses and notes when each block is allocated and freed; pack() assigns offsets; at run time block k of a phase
// gets the offset planned for block k. Any divergence from the recording is an error that names the block.
//
// A phase may be paused and resumed between two allocations, as forward and backward of a micro-batch are while other
// micro-batches run. Blocks of such a phase that are alive during a pause form a frame; there are as many frames as
// runs of the phase that can be in progress at once. All other blocks share one scratch memory. A phase without frames
// runs only while no other phase is in progress.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/tensor.h"

namespace athanor {

constexpr size_t kArenaAlign = 256;  // bytes; the alignment that CUDA libraries prefer

// Fake address of tensors while memory is only planned: aligned and not null; dereferencing it faults.
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
  // Optional [1] f32 that outlives the buffer: the amax of t's current contents. Code that writes to t updates or
  // resets it.
  Tensor amax = {};
  Buffer() = default;
  explicit operator bool() const { return lease_ != nullptr; }
  bool is_shared() const { return lease_.use_count() > 1; }

 private:
  friend class Arena;
  struct Lease;
  std::shared_ptr<Lease> lease_;
};

// The recorded allocations of one repeatable piece of work (a micro-batch, an evaluation batch, an optimizer step).
struct ArenaPhase {
  std::string name;
  std::vector<PlannedBlock> blocks;
  size_t packed_bytes = 0;           // bytes of all blocks outside frames, once bytes() has packed them
  size_t peak_live = 0;              // lower bound: maximum of the bytes alive at once
  int frames = 0;                    // runs in progress at once, possibly together with other phases; 0: runs alone
  std::vector<int64_t> pauses = {};  // times of the pauses, on the clock of born and died
  size_t held_live = 0;              // maximum of the bytes alive at a pause
  size_t frame_bytes = 0;            // bytes of one frame, once bytes() has packed them; 0 without pauses
  size_t frames_at = 0;              // offset of the first frame
  bool holds(const PlannedBlock&) const;  // true for blocks that are alive at a pause
};

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Starts recording a new phase; addresses are fake and must not be dereferenced. frames: see ArenaPhase.
  void record(std::string phase, int frames = 0);
  void finish_recording();     // every buffer must be dead
  size_t least_bytes() const;  // lower bound of bytes(): maximum of the bytes alive at once
  // Returns the memory needed: the largest phase without frames, or the largest scratch memory plus all frames. Packs
  // phases that are not packed yet.
  size_t bytes();
  // Sets the memory, of size bytes(), in which phases run from now on; null to release it. host: the host can access
  // the memory; freed blocks are then poisoned (in builds with the address sanitizer).
  void commit(void* memory, bool host = false);
  void begin(std::string_view phase, int frame = 0);  // start running a recorded phase
  void end();                                         // every buffer must be dead and every planned block used
  void pause();                                       // records a pause, or pauses where one was recorded
  void resume(std::string_view phase, int frame);     // re-enters a paused run; no-op while recording

  Buffer alloc(std::string_view name, DType, Shape);

  bool recording() const { return mode_ == Mode::recording; }
  const std::vector<ArenaPhase>& phases() const { return phases_; }

 private:
  friend struct Buffer::Lease;
  enum class Mode { idle, recording, running };
  // One run of a phase, from begin() to end().
  struct Run {
    size_t phase = 0;  // index into phases_
    int frame = 0;
    size_t next = 0, live_blocks = 0, live_bytes = 0;
    int64_t clock = 0;
  };
  size_t find(std::string_view phase) const;
  static void pack(ArenaPhase&);
  ArenaPhase& phase_of(const Run& run) { return phases_[run.phase]; }
  void release(Run&, size_t block);
  char* address(const Run&, const PlannedBlock&) const;

  Mode mode_ = Mode::idle;
  std::vector<ArenaPhase> phases_;
  std::map<std::pair<size_t, int>, Run> runs_;  // the latest run of each phase and frame
  Run* run_ = nullptr;                          // the run being recorded or executed
  char* memory_ = nullptr;
  bool host_ = false;
};

// Greedy-by-size packing of lifetimes [Pisarchyk & Lee 2020, sec. 4]: sets offsets, returns bytes needed.
size_t pack(std::vector<PlannedBlock>& blocks);

}  // namespace athanor
