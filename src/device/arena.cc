#include "device/arena.h"

#include <algorithm>

#include "base/int.h"

namespace athanor {

struct Buffer::Lease {
  Arena* arena;
  size_t block;
  Lease(Arena* a, size_t b) : arena(a), block(b) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { arena->release(block); }
};

void Arena::record(std::string phase) {
  CHECK(mode_ == Mode::idle && memory_ == nullptr, "recording starts before commit");
  for (const ArenaPhase& p : phases_) CHECK(p.name != phase, "phase ", phase, " is recorded twice");
  phases_.push_back({.name = std::move(phase), .blocks = {}});
  phase_ = &phases_.back();
  mode_ = Mode::recording;
  next_ = clock_ = live_bytes_ = 0;
}

void Arena::finish_recording() {
  CHECK(mode_ == Mode::recording);
  CHECK(live_blocks_ == 0, live_blocks_, " buffers outlive phase ", phase_->name);
  mode_ = Mode::idle;
}

size_t Arena::least_bytes() const {
  size_t most = 0;
  for (const ArenaPhase& p : phases_) most = std::max(most, p.peak_live);
  return most;
}

size_t Arena::bytes() {
  size_t most = 0;
  for (ArenaPhase& p : phases_) {
    if (p.packed_bytes == 0) p.packed_bytes = pack(p.blocks);
    most = std::max(most, p.packed_bytes);
  }
  return most;
}

void Arena::commit(void* memory) {
  CHECK(mode_ == Mode::idle);
  memory_ = static_cast<char*>(memory);
}

void Arena::begin(std::string_view phase) {
  CHECK(mode_ == Mode::idle && (memory_ != nullptr || bytes() == 0), "begin(", phase,
        ") before commit or inside a phase");
  for (ArenaPhase& p : phases_)
    if (p.name == phase) {
      phase_ = &p;
      mode_ = Mode::running;
      next_ = clock_ = live_bytes_ = 0;
      return;
    }
  CHECK(false, "phase ", phase, " was never recorded");
}

void Arena::end() {
  CHECK(mode_ == Mode::running);
  mode_ = Mode::idle;
  CHECK(live_blocks_ == 0, live_blocks_, " buffers outlive phase ", phase_->name);
  CHECK(next_ == phase_->blocks.size(), "phase ", phase_->name, " used ", next_, " of ", phase_->blocks.size(),
        " planned buffers");
}

Buffer Arena::alloc(std::string_view name, DType dtype, Shape shape) {
  CHECK(mode_ != Mode::idle, "buffer ", name, " allocated outside a phase");
  Buffer b;
  b.t = {nullptr, dtype, shape};
  const size_t bytes = round_up(std::max<size_t>(b.t.bytes(), 1), kArenaAlign);
  const size_t id = next_++;
  if (mode_ == Mode::recording) {
    phase_->blocks.push_back({.name = std::string(name), .bytes = bytes, .born = clock_++});
    b.t.data = planned_address();  // a recording launches nothing
  } else {
    CHECK(id < phase_->blocks.size(), "phase ", phase_->name, " allocates '", name, "' beyond its plan");
    const PlannedBlock& planned = phase_->blocks[id];
    CHECK(planned.name == name && planned.bytes == bytes, "phase ", phase_->name, " diverged from its plan at buffer ",
          id, ": planned '", planned.name, "' of ", planned.bytes, " bytes, got '", name, "' of ", bytes);
    // A buffer held longer than in the recording may share memory with this one.
    CHECK(planned.born == clock_, "phase ", phase_->name, " diverged from its plan at buffer ", id, ", '", name,
          "': ", clock_ - int64_t(id), " buffers were released, planned ", planned.born - int64_t(id));
    ++clock_;
    b.t.data = memory_ + planned.offset;
  }
  ++live_blocks_;
  live_bytes_ += bytes;
  phase_->peak_live = std::max(phase_->peak_live, live_bytes_);
  b.lease_ = std::make_shared<Buffer::Lease>(this, id);
  return b;
}

void Arena::release(size_t block) {
  PlannedBlock& b = phase_->blocks[block];
  if (mode_ == Mode::recording) b.died = clock_;
  ++clock_;
  --live_blocks_;
  live_bytes_ -= b.bytes;
}

}  // namespace athanor
