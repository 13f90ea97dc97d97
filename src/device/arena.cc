#include "device/arena.h"

#include <algorithm>

#include "base/int.h"
#include "base/poison.h"

namespace athanor {

struct Buffer::Lease {
  Arena* arena;
  Arena::Run* run;
  size_t block;
  Lease(Arena* a, Arena::Run* r, size_t b) : arena(a), run(r), block(b) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { arena->release(*run, block); }
};

bool ArenaPhase::holds(const PlannedBlock& b) const {
  return std::ranges::any_of(pauses, [&](int64_t at) { return b.born < at && b.died >= at; });
}

void Arena::record(std::string phase, int frames) {
  CHECK(mode_ == Mode::idle && memory_ == nullptr, "recording starts before commit");
  for (const ArenaPhase& p : phases_) CHECK(p.name != phase, "phase ", phase, " is recorded twice");
  phases_.push_back({.name = std::move(phase), .blocks = {}, .frames = frames});
  run_ = &(runs_[{phases_.size() - 1, 0}] = {.phase = phases_.size() - 1});
  mode_ = Mode::recording;
}

void Arena::finish_recording() {
  CHECK(mode_ == Mode::recording);
  CHECK(run_->live_blocks == 0, run_->live_blocks, " buffers outlive phase ", phase_of(*run_).name);
  mode_ = Mode::idle;
}

size_t Arena::least_bytes() const {
  size_t most = 0, held = 0;
  for (const ArenaPhase& p : phases_) most = std::max(most, p.peak_live), held += size_t(p.frames) * p.held_live;
  return std::max(most, held);
}

size_t Arena::bytes() {
  size_t most = 0, scratch = 0, frames = 0;
  for (ArenaPhase& p : phases_) {
    if (p.packed_bytes == 0 && p.frame_bytes == 0) pack(p);
    size_t& bytes = p.frames > 0 ? scratch : most;
    bytes = std::max(bytes, p.packed_bytes);
  }
  for (ArenaPhase& p : phases_) {
    p.frames_at = scratch + frames;
    frames += size_t(p.frames) * p.frame_bytes;
  }
  return std::max(most, scratch + frames);
}

// Packs blocks that are alive at a pause in a frame, and all others in the scratch memory.
void Arena::pack(ArenaPhase& p) {
  std::vector<PlannedBlock> held, rest;
  for (const PlannedBlock& b : p.blocks) (p.holds(b) ? held : rest).push_back(b);
  p.frame_bytes = held.empty() ? 0 : athanor::pack(held);
  p.packed_bytes = athanor::pack(rest);
  size_t h = 0, r = 0;
  for (PlannedBlock& b : p.blocks) b.offset = p.holds(b) ? held[h++].offset : rest[r++].offset;
}

void Arena::commit(void* memory, bool host) {
  CHECK(mode_ == Mode::idle || !memory);
  memory_ = static_cast<char*>(memory);
  host_ = host;
}

size_t Arena::find(std::string_view phase) const {
  const auto at = std::ranges::find(phases_, phase, &ArenaPhase::name);
  CHECK(at != phases_.end(), "phase ", phase, " was never recorded");
  return size_t(at - phases_.begin());
}

void Arena::begin(std::string_view phase, int frame) {
  CHECK(mode_ == Mode::idle && (memory_ != nullptr || bytes() == 0), "begin(", phase,
        ") before commit or inside a phase");
  const size_t number = find(phase);
  const int frames = phases_[number].frames;
  CHECK(frame < std::max(1, frames), "frame ", frame, " of phase ", phase, ", planned for ", frames);
  for (const auto& [key, other] : runs_)
    CHECK(frames > 0 || other.live_blocks == 0, "phase ", phase, " begins while phase ", phase_of(other).name,
          " is under way");
  Run& run = runs_[{number, frame}];
  CHECK(run.live_blocks == 0, "phase ", phase, " begins where another run of it has not ended");
  run = {.phase = number, .frame = frame};
  run_ = &run;
  mode_ = Mode::running;
}

void Arena::end() {
  CHECK(mode_ == Mode::running);
  mode_ = Mode::idle;
  const ArenaPhase& phase = phase_of(*run_);
  CHECK(run_->live_blocks == 0, run_->live_blocks, " buffers outlive phase ", phase.name);
  CHECK(run_->next == phase.blocks.size(), "phase ", phase.name, " used ", run_->next, " of ", phase.blocks.size(),
        " planned buffers");
}

void Arena::pause() {
  CHECK(mode_ != Mode::idle, "pause outside a phase");
  ArenaPhase& phase = phase_of(*run_);
  if (mode_ == Mode::recording) {
    phase.pauses.push_back(run_->clock);
    phase.held_live = std::max(phase.held_live, run_->live_bytes);
    return;
  }
  CHECK(std::ranges::find(phase.pauses, run_->clock) != phase.pauses.end(), "phase ", phase.name, " is left at ",
        run_->clock, ", where the recording was not");
  mode_ = Mode::idle;
}

void Arena::resume(std::string_view phase, int frame) {
  if (mode_ == Mode::recording) return;
  CHECK(mode_ == Mode::idle, "phase ", phase, " is entered inside another one");
  run_ = &runs_.at({find(phase), frame});
  mode_ = Mode::running;
}

char* Arena::address(const Run& run, const PlannedBlock& block) const {
  const ArenaPhase& phase = phases_[run.phase];
  const size_t frame = phase.holds(block) ? phase.frames_at + size_t(run.frame) * phase.frame_bytes : 0;
  return memory_ + frame + block.offset;
}

Buffer Arena::alloc(std::string_view name, DType dtype, Shape shape) {
  CHECK(mode_ != Mode::idle, "buffer ", name, " allocated outside a phase");
  Run& run = *run_;
  ArenaPhase& phase = phase_of(run);
  Buffer b;
  b.t = {nullptr, dtype, shape};
  const size_t bytes = round_up(std::max<size_t>(b.t.bytes(), 1), kArenaAlign);
  const size_t id = run.next++;
  if (mode_ == Mode::recording) {
    phase.blocks.push_back({.name = std::string(name), .bytes = bytes, .born = run.clock++});
    b.t.data = planned_address();  // a recording launches no work
  } else {
    CHECK(id < phase.blocks.size(), "phase ", phase.name, " allocates '", name, "' beyond its plan");
    const PlannedBlock& planned = phase.blocks[id];
    CHECK(planned.name == name && planned.bytes == bytes, "phase ", phase.name, " diverged from its plan at buffer ",
          id, ": planned '", planned.name, "' of ", planned.bytes, " bytes, got '", name, "' of ", bytes);
    // A buffer held longer than in the recording may share memory with this one.
    CHECK(planned.born == run.clock, "phase ", phase.name, " diverged from its plan at buffer ", id, ", '", name,
          "': ", run.clock - int64_t(id), " buffers were released, planned ", planned.born - int64_t(id));
    ++run.clock;
    b.t.data = address(run, planned);
    if (host_) unpoison(b.t.data, bytes);
  }
  ++run.live_blocks;
  run.live_bytes += bytes;
  phase.peak_live = std::max(phase.peak_live, run.live_bytes);
  b.lease_ = std::make_shared<Buffer::Lease>(this, &run, id);
  return b;
}

void Arena::release(Run& run, size_t block) {
  PlannedBlock& b = phase_of(run).blocks[block];
  if (mode_ == Mode::recording)
    b.died = run.clock;
  else if (host_)
    poison(address(run, b), b.bytes);
  ++run.clock;
  --run.live_blocks;
  run.live_bytes -= b.bytes;
}

}  // namespace athanor
