// Arena: activation memory, planned by a recorded dry run of the same code that runs later. Recording returns fake
// addresses and notes when each block is allocated and freed; pack() assigns offsets; at run time block k of a phase
// gets the offset planned for block k. Any divergence from the recording is an error that names the block.
//
// A phase may be left and entered again between two allocations, as forward and backward of a micro-batch are while
// other micro-batches run in between. Of the blocks of such a phase, those that live while it is left are a frame, of
// which there are as many as runs of the phase that are under way at once; all others share one scratch memory. A phase
// without frames runs alone: while no other one is under way.
#pragma once
#include <map>
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
  size_t packed_bytes = 0;           // needed with the chosen offsets, once bytes() has chosen them; without frames
  size_t peak_live = 0;              // lower bound: most bytes alive at once
  int frames = 0;                    // runs under way at once, also beside those of other phases; 0: it runs alone
  std::vector<int64_t> pauses = {};  // when it is left, on the clock of born and died
  size_t held_live = 0;              // most bytes alive at a pause
  size_t frame_bytes = 0;            // once bytes() has chosen offsets: of one frame; 0 where it is never left
  size_t frames_at = 0;              // where the first one begins
  bool holds(const PlannedBlock&) const;  // alive at a pause
};

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Starts recording a new phase (fake addresses: do not dereference). frames: see ArenaPhase.
  void record(std::string phase, int frames = 0);
  void finish_recording();     // every buffer must be dead
  size_t least_bytes() const;  // bytes() is this or more: most bytes alive at once
  // Of the largest phase that runs alone, or of the largest scratch memory and all frames; packs phases that have not
  // been packed yet.
  size_t bytes();
  // From now on phases run in this memory of bytes(); null: it is being released. host: the host can read it; then
  // freed blocks are poisoned (in builds with the address sanitizer).
  void commit(void* memory, bool host = false);
  void begin(std::string_view phase, int frame = 0);  // start running a recorded phase
  void end();                                         // every buffer must be dead and every planned block used
  void pause();                                       // leave the phase, only where the recording did; or record that
  void resume(std::string_view phase, int frame);     // enter again what was begun and left; nothing while recording

  Buffer alloc(std::string_view name, DType, Shape);

  bool recording() const { return mode_ == Mode::recording; }
  const std::vector<ArenaPhase>& phases() const { return phases_; }

 private:
  friend struct Buffer::Lease;
  enum class Mode { idle, recording, running };
  // A run of a phase, from begin() to end().
  struct Run {
    size_t phase = 0;  // number
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
  std::map<std::pair<size_t, int>, Run> runs_;  // the last one of each phase and frame
  Run* run_ = nullptr;                          // that is recorded or runs
  char* memory_ = nullptr;
  bool host_ = false;
};

// Greedy-by-size packing of lifetimes [Pisarchyk & Lee 2020, sec. 4]: sets offsets, returns bytes needed.
size_t pack(std::vector<PlannedBlock>& blocks);

}  // namespace athanor
