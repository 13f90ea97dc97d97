// Warp collectives: the rendezvous of lanes, and what shuffles, votes and matches compute there.
#include <cstring>

#include "cuda/host/instructions.h"
#include "emulator/device/state.h"
namespace emu {
namespace {

const char* name_of(Collective kind) {
  constexpr const char* kNames[] = {"shuffle", "vote", "redux", "match", "__syncwarp", "ldmatrix", "mma", "setmaxnreg"};
  return kNames[int(kind)];
}

void check_mask(Collective kind, unsigned mask, const Warp& warp, unsigned lane) {
  const char* name = name_of(kind);
  if (!(mask >> lane & 1)) {
    fail(Fault::kWarp, "%s: lane %u calls with mask %#x that leaves it out", name, lane, mask);
  }
  if (mask & ~warp.exists) {
    fail(Fault::kWarp, "%s: mask %#x names lanes beyond the block (existing %#x)", name, mask, warp.exists);
  }
  if (mask & warp.exited) {
    fail(Fault::kWarp, "%s: mask %#x names exited lanes %#x", name, mask, mask & warp.exited);
  }
}

Rendezvous& join_rendezvous(Collective kind, unsigned mask, Warp& warp, unsigned lane) {
  for (Rendezvous& r : warp.open) {
    if (r.kind == kind && r.mask == mask) return r;
    if (r.mask & mask & ~r.arrived & (1u << lane)) {
      fail(Fault::kWarp, "%s mask %#x: lanes %#x wait for this lane in %s mask %#x", name_of(kind), mask, r.arrived,
           name_of(r.kind), r.mask);
    }
  }
  warp.open.push_back({kind, mask, 0, {}});
  return warp.open.back();
}
}  // namespace

void warp_collective(Collective kind, unsigned mask, const void* in, void* out, Finish finish) {
  Block& b = block();
  const Thread* me = self();
  Warp& warp = b.warps[me->warp];
  check_mask(kind, mask, warp, me->lane);
  Rendezvous& r = join_rendezvous(kind, mask, warp, me->lane);
  r.arrived |= 1u << me->lane;
  r.lanes.in[me->lane] = in;
  r.lanes.out[me->lane] = out;
  if (r.arrived != mask) {
    park(Wait::kWarp, {"%s, a warp collective with mask %#lx", name_of(kind), {long(mask)}});
    return;
  }
  Rendezvous done = r;
  warp.open.erase(warp.open.begin() + (&r - warp.open.data()));
  done.lanes.mask = mask;
  if (finish) finish(done.lanes);
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) && i != me->lane) wake(b.threads[me->warp * 32 + i]);
  }
}

void finish_shuffle(Lanes& lanes) {
  for (int i = 0; i < 32; ++i) {
    if (!(lanes.mask >> i & 1)) continue;
    const auto* in = static_cast<const ShuffleInput*>(lanes.in[i]);
    const int source = in->source < 0 ? i : in->source & 31;
    if (!(lanes.mask >> source & 1)) {
      fail(Fault::kWarp, "shuffle mask %#x: lane %d reads lane %d, which does not take part", lanes.mask, i, source);
    }
    *static_cast<uint64_t*>(lanes.out[i]) = static_cast<const ShuffleInput*>(lanes.in[source])->value;
  }
}

void finish_vote(Lanes& lanes) {
  unsigned votes = 0;
  for (int i = 0; i < 32; ++i) {
    if (lanes.mask >> i & 1) votes |= unsigned(*static_cast<const bool*>(lanes.in[i])) << i;
  }
  for (int i = 0; i < 32; ++i) {
    if (lanes.mask >> i & 1) *static_cast<unsigned*>(lanes.out[i]) = votes;
  }
}

void finish_match_any(Lanes& lanes) {
  for (int i = 0; i < 32; ++i) {
    if (!(lanes.mask >> i & 1)) continue;
    unsigned same = 0;
    for (int k = 0; k < 32; ++k) {
      if (!(lanes.mask >> k & 1)) continue;
      same |= unsigned(memcmp(lanes.in[i], lanes.in[k], sizeof(uint64_t)) == 0) << k;
    }
    *static_cast<unsigned*>(lanes.out[i]) = same;
  }
}

namespace {
void finish_syncwarp(Lanes& lanes) {  // unlike the others it orders memory
  Block& b = block();
  const unsigned first = self()->warp * 32;
  Ticks all(b.base.size());
  Others others;
  for (unsigned i = 0; i < 32; ++i) {
    if (!(lanes.mask >> i & 1)) continue;
    Fiber& f = *b.threads[first + i]->fiber;
    join(all, f.ticks);
    join(others, f.others);
    all[first + i] = advance(f);
  }
  for (unsigned i = 0; i < 32; ++i) {
    if (!(lanes.mask >> i & 1)) continue;
    b.threads[first + i]->fiber->ticks = all;
    b.threads[first + i]->fiber->others = others;
  }
}
}  // namespace

void syncwarp(unsigned mask) {
  warp_collective(Collective::kSyncwarp, mask, nullptr, nullptr, kCheck ? finish_syncwarp : nullptr);
}
}  // namespace emu

namespace emu::ptx {

namespace {
// All warps of a warpgroup execute the same ones.
void request_registers(Block& b, Fiber& f, int count) {
  const unsigned group = self()->linear / 128;
  if (group >= b.register_requests.size()) fail(Fault::kWarp, "setmaxnreg by an incomplete warpgroup");
  std::vector<int>& requests = b.register_requests[group];
  if (f.register_changes == requests.size()) {
    for (unsigned i = 0; i < 128; ++i) {
      if (b.threads[group * 128 + i]->fiber->waiting == Wait::kExited)
        fail(Fault::kWarp, "setmaxnreg in a warpgroup of which threads have exited");
    }
    requests.push_back(count);
  }
  const int first = requests[f.register_changes++];
  if (first != count) fail(Fault::kWarp, "setmaxnreg %d, while other warps of the warpgroup ask for %d", count, first);
}
}  // namespace

// Registers of a block are a pool that is empty at first: an increase waits until other warps have given up enough.
void setmaxnreg(int count) {
  require_capability(90, "setmaxnreg");
  if (count % 8 || count < 24 || count > 256) {
    fail(Fault::kConfigure, "setmaxnreg %d: a multiple of 8 from 24 to 256 is needed", count);
  }
  warp_collective(Collective::kSetmaxnreg, ~0u, nullptr, nullptr, nullptr);
  Fiber& f = fiber();
  Block& b = *f.block;
  request_registers(b, f, count);
  while (b.free_registers < count - f.registers) {
    b.waiting_for_registers.push_back(self());
    park(Wait::kRegisters, {"setmaxnreg%s %ld with %ld registers left in the block", "", {count, b.free_registers}});
  }
  b.free_registers -= count - f.registers;
  f.registers = count;
  std::vector<Thread*> waiting;
  waiting.swap(b.waiting_for_registers);
  for (Thread* t : waiting) wake(t);
}

void griddep_wait() { fiber().dependency_waited = true; }
void griddep_launch() {}
}  // namespace emu::ptx
