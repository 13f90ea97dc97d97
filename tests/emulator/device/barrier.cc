// __syncthreads, named barriers and cluster barriers.
#include <algorithm>
#include <cstring>

#include "cuda/host/instructions.h"
#include "emulator/device/state.h"
namespace emu {
namespace {

const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

// All threads have arrived: everything before is known to all.
void release_block(Block& b) {
  BlockBarrier& barrier = b.barrier;
  barrier.arrived = 0;
  barrier.file = nullptr;
  if (kCheck) {
    Others all = b.threads[0]->fiber->others;
    for (Thread* t : b.threads) {
      Fiber& f = *t->fiber;
      b.base[t->linear] = advance(f);
      for (uint32_t e = 0; e < kAsyncEngines; ++e)
        b.base[b.size + e] = std::max(b.base[b.size + e], f.ticks[b.size + e]);
      join(all, f.others);
    }
    for (Thread* t : b.threads) t->fiber->others = all;
  }
  for (Thread* t : barrier.waiting) wake(t);
  barrier.waiting.clear();
}
}  // namespace

void block_barrier(const char* path, int line) {
  Block& b = block();
  BlockBarrier& barrier = b.barrier;
  const char* file = base_name(path);
  if (b.live != b.size) {
    fail(Fault::kBarrier, "__syncthreads at %s:%d after %u threads of the block have exited", file, line,
         b.size - b.live);
  }
  if (barrier.file && (barrier.line != line || strcmp(barrier.file, file) != 0)) {
    fail(Fault::kBarrier, "threads meet in different __syncthreads: %s:%d and %s:%d", file, line, barrier.file,
         barrier.line);
  }
  barrier.file = file;
  barrier.line = line;
  if (++barrier.arrived == b.size) {
    release_block(b);
    return;
  }
  barrier.waiting.push_back(self());
  park(Wait::kBarrier, {"__syncthreads %s:%ld", file, {line}});
}

namespace {
void named_barrier(int id, int threads) {
  Block& b = block();
  if (id < 1 || id > 15) fail(Fault::kConfigure, "named barrier %d: 1 to 15 exist (0 is __syncthreads)", id);
  if (threads <= 0 || threads % 32 || unsigned(threads) > b.size) {
    fail(Fault::kConfigure, "named barrier %d: %d threads; a multiple of 32 within the block is needed", id, threads);
  }
  NamedBarrier& barrier = b.named[id];
  if (barrier.arrived && barrier.expected != unsigned(threads)) {
    fail(Fault::kBarrier, "named barrier %d: %d threads expected here, %u by those already waiting", id, threads,
         barrier.expected);
  }
  barrier.expected = unsigned(threads);
  release_to(barrier.clock, b);
  if (++barrier.arrived == barrier.expected) {
    acquire_from(barrier.clock, b, true);
    for (Thread* t : barrier.waiting) {
      if (kCheck) {
        join(t->fiber->ticks, barrier.clock.own);
        join(t->fiber->others, barrier.clock.others);
      }
      wake(t);
    }
    barrier = {};
  } else {
    barrier.waiting.push_back(self());
    park(Wait::kBarrier, {"named barrier%s %ld of %ld threads", "", {id, threads}});
  }
}
}  // namespace
}  // namespace emu

namespace emu::ptx {

void bar_sync(int id, int threads) { named_barrier(id, threads); }

void cluster_arrive() {
  require_capability(90, "barrier.cluster");
  Fiber& f = fiber();
  Cluster& cluster = *f.block->cluster;
  ClusterBarrier& barrier = cluster.barrier;
  if (f.cluster_arrived) fail(Fault::kBarrier, "barrier.cluster.arrive twice without barrier.cluster.wait between");
  f.cluster_arrived = true;
  f.cluster_phase = barrier.phase;
  if (kCheck) join(barrier.arriving, snapshot());
  unsigned threads = 0;
  for (uint32_t i = 0; i < cluster.size; ++i) threads += f.block->gang->blocks[i]->size;
  if (++barrier.arrived < threads) return;
  barrier.arrived = 0;
  ++barrier.phase;
  barrier.done = std::move(barrier.arriving);
  barrier.arriving = nullptr;
  for (Thread* t : barrier.waiting) wake(t);
  barrier.waiting.clear();
}

void cluster_wait() {
  Fiber& f = fiber();
  ClusterBarrier& barrier = f.block->cluster->barrier;
  if (!f.cluster_arrived) fail(Fault::kBarrier, "barrier.cluster.wait without barrier.cluster.arrive");
  while (barrier.phase == f.cluster_phase) {
    barrier.waiting.push_back(self());
    park(Wait::kCluster, {"barrier.cluster.wait"});
  }
  f.cluster_arrived = false;
  if (kCheck) join(f.others, barrier.done);
}
}  // namespace emu::ptx
