// The block's asynchronous engine, cp.async, and what all TMA copies share. Targets hold NaN and count as in flight
// until the copy has happened: at the wait (cp.async) or at a random later moment (TMA).
#include <algorithm>

#include "cuda/host/instructions.h"
#include "emulator/device/bulk.h"
#include "emulator/device/state.h"
namespace emu {

unsigned add_async(Block& owner, bool fills_shared, std::vector<std::function<void()>> stages) {
  const unsigned number = owner.next_async++;
  if (kCheck && number >= kMaxTick) {
    fail(Fault::kRefused, "more than %u asynchronous copies by one block: the race checker's clock ends", kMaxTick);
  }
  owner.gang->async_open += stages.size();
  owner.async.push_back({number, fills_shared, std::move(stages)});
  return number;
}

namespace {
void run_stage(Block& owner, size_t k) {
  // Moved out first: a stage may wake threads, but never adds work.
  AsyncWork& work = owner.async[k];
  const auto stage = std::move(work.stages[work.next]);
  if (++work.next == work.stages.size()) owner.async.erase(owner.async.begin() + long(k));
  --owner.gang->async_open;
  stage();
}
}  // namespace

void run_async(Block& owner, unsigned number, size_t stages) {
  for (size_t k = 0; k < owner.async.size();) {
    if (owner.async[k].number != number) {
      ++k;
    } else if (owner.async[k].next < stages) {
      run_stage(owner, k);
    } else {
      return;
    }
  }
}

void run_random_async(Gang& gang) {
  size_t pieces = 0;
  for (auto& b : gang.blocks) pieces += b->async.size();
  size_t k = gang.random.below(uint32_t(pieces));
  for (auto& b : gang.blocks) {
    if (k < b->async.size()) {
      run_stage(*b, k);
      return;
    }
    k -= b->async.size();
  }
}

void check_async_at_exit() {
  const Fiber& f = fiber();
  if (!f.copies.empty() || !f.copy_groups.empty()) {
    fail(Fault::kInFlight, "thread exits with cp.async copies never waited for");
  }
  if (!f.bulk.empty() || !f.bulk_groups.empty()) {
    fail(Fault::kInFlight, "thread exits without waiting for its bulk stores to have read shared memory");
  }
}

void check_async_at_exit(const Block& leaving) {
  for (const AsyncWork& work : leaving.async) {
    if (work.fills_shared) fail(Fault::kInFlight, "block exits while a bulk copy into its shared memory is under way");
  }
}

// ---- pieces of tiles, for tma.cc
void begin_load(Block& to_block, const std::vector<Piece>& pieces, unsigned number) {
  const uint64_t stamp =
      make_stamp({operation().id, to_block.number, to_block.size + kAsyncShared, number}) | kStampProxy;
  const uint64_t issued = kCheck ? stamp_now() : 0;
  for (const Piece& p : pieces) {
    note(p.shared, p.bytes, kWrite | kAsyncProxy);
    if (!p.global) continue;
    note(p.global, p.valid, kRead | kAsyncProxy);
    restamp_read(p.global, p.valid, issued, stamp);  // over when the bytes are there
  }
  for (const Piece& p : pieces) {
    set_state(p.shared, p.bytes, ByteState::kInFlight);
    memset(p.shared, 0xff, p.bytes);
    restamp(p.shared, p.bytes, true, stamp);
  }
}

void finish_load(const std::vector<Piece>& pieces) {
  for (const Piece& p : pieces) {
    set_state(p.shared, p.bytes, ByteState::kLive);
    memset(p.shared, 0, p.bytes);
    if (p.global) memcpy(p.shared, p.global, p.valid);
  }
}

void begin_store(const std::vector<Piece>& pieces, unsigned number) {
  const Block& b = block();
  const uint64_t reading = make_stamp({operation().id, b.number, b.size + kAsyncShared, number}) | kStampProxy;
  const uint64_t writing = make_stamp({operation().id, b.number, b.size + kAsyncGlobal, number}) | kStampProxy;
  for (const Piece& p : pieces) {
    note(p.shared, p.bytes, kRead | kAsyncProxy);
    restamp(p.shared, p.bytes, false, reading);
    if (!p.global) continue;
    note(p.global, p.valid, kWrite);
    restamp(p.global, p.valid, true, writing);
  }
}

void queue_store(std::vector<Piece> pieces) {
  Block& b = block();
  begin_store(pieces, b.next_async);
  auto buffer = std::make_shared<std::vector<uint8_t>>();
  auto list = std::make_shared<std::vector<Piece>>(std::move(pieces));
  const auto read = [buffer, list] {
    for (const Piece& p : *list) buffer->insert(buffer->end(), p.shared, p.shared + p.bytes);
  };
  const auto write = [buffer, list] {
    size_t at = 0;
    for (const Piece& p : *list) {
      if (p.global) memcpy(p.global, buffer->data() + at, p.valid);
      at += p.bytes;
    }
  };
  fiber().bulk.push_back(add_async(b, false, {read, write}));
}
}  // namespace emu

namespace emu::ptx {

void copy_async(void* to, const void* from, unsigned bytes, unsigned valid) {
  const void* caller = __builtin_return_address(0);
  if (bytes != 4 && bytes != 8 && bytes != 16) fail(Fault::kConfigure, "cp.async of %u bytes; 4, 8 or 16", bytes);
  check_aligned(to, bytes, "cp.async destination", caller);
  check_aligned(from, bytes, "cp.async source", caller);
  note(to, bytes, kWrite, caller);
  if (valid) note(from, valid, kRead, caller);
  set_state(to, bytes, ByteState::kInFlight);
  memset(to, 0xff, bytes);
  fiber().copies.push_back({to, from, bytes, valid});
}

void copy_async_commit() {
  Fiber& f = fiber();
  f.copy_groups.push_back(std::move(f.copies));
  f.copies.clear();
}

void copy_async_wait(unsigned groups_left) {
  auto& groups = fiber().copy_groups;
  while (groups.size() > groups_left) {
    for (const CopyAsync& c : groups.front()) {
      set_state(c.to, c.bytes, ByteState::kLive);
      memset(c.to, 0, c.bytes);
      memcpy(c.to, c.from, c.valid);
      note(c.to, c.bytes, kWrite);
    }
    groups.erase(groups.begin());
  }
}

void bulk_commit() {
  Fiber& f = fiber();
  f.bulk_groups.push_back(std::move(f.bulk));
  f.bulk.clear();
}

void bulk_wait_read(unsigned groups_left) {
  Fiber& f = fiber();
  Block& b = *f.block;
  auto& groups = f.bulk_groups;
  while (groups.size() > groups_left) {
    for (const unsigned number : groups.front()) {
      run_async(b, number, 1);
      if (kCheck) f.ticks[b.size] = std::max(f.ticks[b.size], number + 1);
    }
    groups.erase(groups.begin());
  }
}
}  // namespace emu::ptx
