// Happens-before: only what CUDA's own synchronisation orders is ordered.
#include "emulator/device/state.h"
namespace emu {

uint32_t advance(Fiber& f) {
  if (++f.tick > kMaxTick) {
    fail(Fault::kRefused, "a thread synchronises more than %u times in one launch: the race checker's clock ends",
         kMaxTick);
  }
  return f.tick;
}

uint64_t stamp_now() {
  const Block& b = block();
  return make_stamp({operation().id, b.number, self()->linear, fiber().tick});
}

namespace {
uint32_t known_tick(const Fiber& f, uint32_t of_block, uint32_t of_thread) {
  if (!f.others) return 0;
  const auto entry = f.others->find(of_block);
  return entry != f.others->end() && of_thread < entry->second->size() ? (*entry->second)[of_thread] : 0;
}

bool operation_before(Gang& gang, uint32_t other, bool waited) {
  if (other == gang.known_operation) return true;  // mostly the one that wrote the neighbouring bytes
  if (operation().ordered(other, false)) {
    gang.known_operation = other;
    return true;
  }
  return waited && operation().ordered(other, true);
}
}  // namespace

bool happened_before(uint64_t stamp) {
  const Fiber& f = fiber();
  const Block& b = *f.block;
  const StampFields s = stamp_fields(stamp);
  if (s.operation != (operation().id & 0x7fff)) return operation_before(*b.gang, s.operation, f.dependency_waited);
  if (s.block != (b.number & 0xffff)) return s.tick < known_tick(f, s.block, s.thread);
  return s.thread == self()->linear || s.tick < b.base[s.thread] || s.tick < f.ticks[s.thread] ||
         s.tick < known_tick(f, s.block, s.thread);
}

void check_visits(const Block& leaving) {
  for (const auto& [visitor, stamp] : leaving.visits) {
    if (happened_before(stamp)) continue;
    fail(Fault::kBounds,
         "exits while thread %u of block %u may still access its shared memory (missing barrier.cluster)",
         visitor.second, visitor.first);
  }
}

Others snapshot() {
  Fiber& f = fiber();
  const Block& b = *f.block;
  auto ticks = std::make_shared<Ticks>(b.base);
  join(*ticks, f.ticks);
  (*ticks)[self()->linear] = advance(f);
  auto own = std::make_shared<Knowledge>();
  (*own)[b.number & 0xffff] = std::move(ticks);
  Others all = std::move(own);
  join(all, f.others);
  return all;
}

void release_to(Clock& clock, Block& owner) {
  if (!kCheck) return;
  Fiber& f = fiber();
  if (&owner != f.block) {
    join(clock.others, snapshot());
    return;
  }
  clock.own.resize(owner.base.size());
  join(clock.own, f.ticks);
  join(clock.others, f.others);
  clock.own[self()->linear] = advance(f);
}

void acquire_from(const Clock& clock, Block& owner, bool cluster_scope) {
  if (!kCheck) return;
  Fiber& f = fiber();
  if (&owner == f.block) join(f.ticks, clock.own);
  if (cluster_scope) join(f.others, clock.others);
}

void fence() {
  if (!kCheck || !running()) return;
  Fiber& f = fiber();
  join(f.others, f.collected);
  f.collected = nullptr;
  f.released = snapshot();
}

namespace {
void publish(const void* address, const Others& known) {
  Grid& grid = *block().gang->grid;
  const std::lock_guard lock(grid.mutex);
  join(grid.published[address], known);
}

void collect(const void* address, Others& into) {
  Grid& grid = *block().gang->grid;
  const std::lock_guard lock(grid.mutex);
  const auto published = grid.published.find(address);
  if (published != grid.published.end()) join(into, published->second);
}
}  // namespace

// A release is a fence before the atomic, an acquire a fence after it.
void atomic_publishes(const void* address) {
  if (kCheck && running() && fiber().released) publish(address, fiber().released);
}
void atomic_collects(const void* address) {
  if (kCheck && running()) collect(address, fiber().collected);
}
}  // namespace emu
