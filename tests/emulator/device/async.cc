// The block's asynchronous engine, cp.async, and flat bulk copies. Targets hold NaN and count as in flight until the
// copy has happened: at the wait (cp.async) or at a random later moment (bulk copies and TMA).
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
  const bool unread =
      std::any_of(f.bulk_groups.begin(), f.bulk_groups.end(), [](const BulkGroup& g) { return !g.read; });
  if (!f.bulk.empty() || unread) {
    fail(Fault::kInFlight, "thread exits without waiting for its bulk stores to have read shared memory");
  }
}

void check_async_at_exit(const Block& leaving) {
  for (const AsyncWork& work : leaving.async) {
    if (work.fills_shared) fail(Fault::kInFlight, "block exits while a bulk copy into its shared memory is under way");
  }
}

// ---- pieces of bulk copies, shared with tma.cc
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

void begin_store(const std::vector<Piece>& pieces, unsigned number, int access) {
  const Block& b = block();
  const uint64_t reading = make_stamp({operation().id, b.number, b.size + kAsyncShared, number}) | kStampProxy;
  const uint64_t writing = make_stamp({operation().id, b.number, b.size + kAsyncGlobal, number}) | kStampProxy |
                           (access & kAtomic ? kStampAtomic : 0);
  for (const Piece& p : pieces) {
    note(p.shared, p.bytes, kRead | kAsyncProxy);
    restamp(p.shared, p.bytes, false, reading);
    if (!p.global) continue;
    note(p.global, p.valid, access);
    restamp(p.global, p.valid, true, writing);
  }
}

void queue_store(std::vector<Piece> pieces, void (*apply)(uint8_t*, const uint8_t*, uint32_t), int access) {
  Block& b = block();
  begin_store(pieces, b.next_async, access);
  auto buffer = std::make_shared<std::vector<uint8_t>>();
  auto list = std::make_shared<std::vector<Piece>>(std::move(pieces));
  const auto read = [buffer, list] {
    for (const Piece& p : *list) buffer->insert(buffer->end(), p.shared, p.shared + p.bytes);
  };
  const auto write = [buffer, list, apply] {
    size_t at = 0;
    for (const Piece& p : *list) {
      if (p.global) apply(p.global, buffer->data() + at, p.valid);
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

namespace {
std::vector<Piece> flat_pieces(void* shared, void* global, uint32_t bytes) {
  require_capability(90, "cp.async.bulk");
  check_aligned(shared, 16, "cp.async.bulk shared address");
  check_aligned(global, 16, "cp.async.bulk global address");
  if (!bytes || bytes % 16) fail(Fault::kConfigure, "cp.async.bulk of %u bytes; a multiple of 16 is needed", bytes);
  return {{static_cast<uint8_t*>(shared), static_cast<uint8_t*>(global), bytes, bytes}};
}
}  // namespace

void bulk_load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  Block& b = block();
  const auto pieces = flat_pieces(to, const_cast<void*>(from), bytes);
  Mbarrier& m = find_mbarrier(barrier, false);
  if (!m.fenced) fail(Fault::kProxy, "cp.async.bulk on an mbarrier whose init was not followed by fence.mbarrier_init");
  const unsigned number = b.next_async;
  begin_load(b, pieces, number);
  add_async(b, true, {[pieces, &b, &m, number] {
              finish_load(pieces);
              complete_bytes(b, m, pieces[0].bytes, number);
            }});
}

void bulk_store(void* to, const void* from, uint32_t bytes) {
  queue_store(
      flat_pieces(const_cast<void*>(from), to, bytes),
      [](uint8_t* global, const uint8_t* shared, uint32_t n) { memcpy(global, shared, n); }, kWrite);
}

void bulk_reduce(void* to, const void* from, uint32_t bytes, BulkReduction kind) {
  queue_store(flat_pieces(const_cast<void*>(from), to, bytes), reduction_of(kind), kWrite | kAtomic);
}

void bulk_commit() {
  Fiber& f = fiber();
  f.bulk_groups.push_back({std::move(f.bulk), false});
  f.bulk.clear();
}

void bulk_wait(unsigned groups_left, bool read_only) {
  Fiber& f = fiber();
  Block& b = *f.block;
  auto& groups = f.bulk_groups;
  for (size_t g = 0; g + groups_left < groups.size(); ++g) {
    groups[g].read = true;
    for (const unsigned number : groups[g].numbers) {
      run_async(b, number, read_only ? 1 : 2);
      if (!kCheck) continue;
      for (uint32_t e = 0; e < (read_only ? 1 : kAsyncEngines); ++e) {
        f.ticks[b.size + e] = std::max(f.ticks[b.size + e], number + 1);
      }
    }
  }
  if (!read_only && groups.size() > groups_left) groups.erase(groups.begin(), groups.end() - groups_left);
}
}  // namespace emu::ptx
