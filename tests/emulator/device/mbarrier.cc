// mbarrier objects: arrivals, expected bytes, phases. The 64 bits in shared memory are only a name; the state is here.
#include <algorithm>

#include "cuda/host/instructions.h"
#include "emulator/device/state.h"
namespace emu {
namespace {

void complete_phase(Mbarrier& m) {
  if (m.pending || m.bytes) return;
  ++m.phase;
  m.pending = m.count;
  m.done = m.arriving;
  std::vector<Thread*> waiting;
  waiting.swap(m.waiting);
  for (Thread* t : waiting) wake(t);
}

void arrive(Mbarrier& m, Block& owner) {
  if (!m.pending) fail(Fault::kMbarrier, "more arrivals than the mbarrier expects in this phase (%u)", m.count);
  release_to(m.arriving, owner);
  --m.pending;
  complete_phase(m);
}
}  // namespace

Mbarrier& find_mbarrier(void* address, bool remote) {
  require_capability(80, "mbarrier");
  check_aligned(address, 8, "mbarrier");
  note(address, 8, kRead | kAtomic);
  Block& owner = window_owner(address);
  if (!remote && &owner != &block()) fail(Fault::kMbarrier, "mbarrier of another block; only arrivals may be remote");
  const auto entry = owner.mbarriers.find(address);
  if (entry == owner.mbarriers.end()) fail(Fault::kMbarrier, "mbarrier used before mbarrier.init");
  return entry->second;
}

void complete_bytes(Block& owner, Mbarrier& m, int64_t bytes, uint32_t number) {
  m.bytes -= bytes;
  if (kCheck) {
    m.arriving.own.resize(owner.base.size());
    uint32_t& done = m.arriving.own[owner.size + kAsyncShared];
    done = std::max(done, number + 1);
  }
  complete_phase(m);
}
}  // namespace emu

namespace emu::ptx {

void mbar_init(uint64_t* p, uint32_t arrivals) {
  check_aligned(p, 8, "mbarrier");
  note(p, 8, kWrite);
  if (!arrivals || arrivals >= 1u << 20) fail(Fault::kConfigure, "mbarrier.init with %u arrivals", arrivals);
  auto [entry, fresh] = block().mbarriers.try_emplace(p);
  if (!fresh) fail(Fault::kMbarrier, "mbarrier.init of a live mbarrier");
  Mbarrier& m = entry->second;
  m.count = m.pending = arrivals;
  m.owner = self()->linear;
}

void fence_mbar_init() {
  for (auto& [address, m] : block().mbarriers) m.fenced |= m.owner == self()->linear;
}

void mbar_arrive(uint64_t* p) { arrive(find_mbarrier(p, false), block()); }

void mbar_arrive_remote(uint32_t address) {
  require_capability(90, "mbarrier.arrive.shared::cluster");
  Block& mine = block();
  const uint32_t rank = (address >> 24) - 1;
  if (rank >= mine.cluster->size) fail(Fault::kMbarrier, "remote arrival at %#x: not an address from mapa", address);
  Block& owner = *mine.gang->blocks[rank];
  arrive(find_mbarrier(owner.window + (address & 0xffffff), true), owner);
}

void mbar_expect_bytes(uint64_t* p, uint32_t bytes) {
  require_capability(90, "mbarrier.arrive.expect_tx");
  constexpr int64_t kMostBytes = (1 << 20) - 1;  // "tx-count", of the PTX manual's mbarrier
  Mbarrier& m = find_mbarrier(p, false);
  m.bytes += bytes;
  if (m.bytes > kMostBytes)
    fail(Fault::kMbarrier, "%ld bytes outstanding on an mbarrier, which counts up to %ld", long(m.bytes),
         long(kMostBytes));
  mbar_arrive(p);
}

void mbar_wait(uint64_t* p, uint32_t parity, bool cluster_scope) {
  Mbarrier& m = find_mbarrier(p, false);
  while ((m.phase & 1) == parity) {
    m.waiting.push_back(self());
    park(Wait::kMbarrier, {"an mbarrier wait%s at shared +%ld, parity %ld, %ld bytes outstanding",
                           "",
                           {long(shared_address(p)), long(parity), long(m.bytes)}});
  }
  acquire_from(m.done, block(), cluster_scope);
}

void fence_proxy_async() {
  fiber().shared_proxy_fence = advance(fiber());
  fence_mbar_init();
}
}  // namespace emu::ptx
