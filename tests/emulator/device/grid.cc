// Runs a grid: gangs of resident blocks go to OS threads in random order.
#include <csignal>
#include <cstdio>
#include <numeric>
#include <thread>

#include "cuda/host/instructions.h"
#include "emulator/device/state.h"
#include "emulator/device/wgmma_work.h"
namespace emu {

const bool kChecking = kCheck;

namespace {
uint64_t seed_value = 1;
uint64_t launches_since_seed = 0;  // the schedule of a launch depends on these two
int os_threads = 1;
bool (*host_fault)(void*) = nullptr;
constexpr size_t kRedzone = 128;
constexpr size_t kMaxStaticShared = 48 << 10;
constexpr int kRegistersOfABlock = 65536;

// Registers per thread at the start of a kernel. The compiler decides; the maximum for a block of this size is assumed.
int first_registers(uint32_t threads) { return std::min(248, kRegistersOfABlock / int(threads) / 8 * 8); }

uint64_t block_count(const dim3& grid) { return uint64_t{grid.x} * grid.y * grid.z; }

void start_thread(Block& b, size_t pool_index, uint32_t linear, int registers) {
  const LaunchShape& shape = b.gang->grid->launch->shape;
  Thread* t = b.threads[linear] = pooled_thread(pool_index);
  Fiber& f = *t->fiber;
  f.reset();
  f.block = &b;
  f.registers = registers;
  if (kCheck) f.ticks.assign(b.size + kAsyncEngines, 0);
  const dim3 d = shape.block;
  t->thread_index = {linear % d.x, linear / d.x % d.y, linear / d.x / d.y};
  t->block_index = b.index;
  t->block_dim = d;
  t->grid_dim = shape.grid;
  t->linear = linear;
  t->lane = linear % 32;
  t->warp = linear / 32;
  b.warps[t->warp].exists |= 1u << t->lane;
  prepare_fiber(t);
  b.gang->ready.push_back(t);
}

void start_block(Gang& gang, uint32_t rank, uint32_t number, size_t window) {
  const GridLaunch& launch = *gang.grid->launch;
  const dim3 g = launch.shape.grid, d = launch.shape.block;
  gang.blocks.push_back(std::make_unique<Block>());
  Block& b = *gang.blocks.back();
  b.gang = &gang;
  b.cluster = &gang.cluster;
  b.cluster_rank = rank;
  b.number = number;
  b.index = {number % g.x, number / g.x % g.y, number / g.x / g.y};
  b.size = b.live = d.x * d.y * d.z;
  b.warps.resize((b.size + 31) / 32);
  b.register_requests.resize(b.size / 128);
  const int registers = first_registers(b.size);
  if (kCheck) b.base.assign(b.size + kAsyncEngines, 0);
  b.window = window_base(window);
  std::copy(launch.parameters.begin(), launch.parameters.end(), b.parameters);
  b.threads.resize(b.size);
  const size_t first = (gang.blocks.size() - 1) * b.size;
  gang.ready.reserve(gang.ready.size() + b.size);
  for (uint32_t i = 0; i < b.size; ++i) start_thread(b, first + i, i, registers);
  if (launch.shape.shared_bytes)
    b.dynamic = static_cast<unsigned char*>(take_shared(b, launch.shape.shared_bytes, 1024));
}

void report_stuck(const Gang& gang) {
  std::string text = gang.grid->launch->operation.name + ": nothing can proceed:";
  size_t stuck = 0;
  for (const auto& b : gang.blocks) {
    for (const Thread* t : b->threads) {
      const Fiber& f = *t->fiber;
      if (f.waiting == Wait::kExited || ++stuck > 4) continue;
      char reason[200];
      const Reason& r = f.reason;
      snprintf(reason, sizeof reason, r.format, r.file, r.value[0], r.value[1], r.value[2]);
      text += " block " + std::to_string(b->number) + " thread " + std::to_string(t->linear) + " in " + reason + ";";
    }
  }
  report(Fault::kDeadlock, text + " " + std::to_string(stuck) + " threads stuck");
}

// One gang: the blocks of a cluster, with windows from `window` on.
void run_gang(Grid& grid, uint64_t cluster, size_t window) {
  const LaunchShape& shape = grid.launch->shape;
  Gang gang{};
  gang.grid = &grid;
  gang.random.state = seed_value * 0x9e3779b97f4a7c15ull + cluster * 0x1234567ull + launches_since_seed * 77ull + 1;
  gang.random.next();
  const uint64_t per_row = shape.grid.x / shape.cluster;
  gang.cluster.size = shape.cluster;
  const uint64_t start = cluster / per_row * shape.grid.x + cluster % per_row * shape.cluster;
  for (uint32_t rank = 0; rank < shape.cluster; ++rank) start_block(gang, rank, uint32_t(start + rank), window++);
  enter_gang(gang);
  size_t live = 0;
  for (const auto& b : gang.blocks) live += b->live;
  if (!gang.failed && live) report_stuck(gang);
  flush_counters(gang);
  for (const auto& b : gang.blocks) set_state(b->window, b->window_used, ByteState::kFree);
}

void on_segv(int, siginfo_t* info, void*) {
  if (running()) fail(Fault::kBounds, "illegal address %p", info->si_addr);  // leaves the signal stack for good
  if (host_fault && host_fault(info->si_addr)) return;
  signal(SIGSEGV, SIG_DFL);
}

// Fast builds have no callbacks of plain accesses; wild pointers still become faults.
void catch_segv() {
  static thread_local std::vector<char> stack;
  if (!stack.empty()) return;
  stack.resize(128 << 10);
  stack_t alternative{};
  alternative.ss_sp = stack.data();
  alternative.ss_size = stack.size();
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, nullptr);
}

bool check_launch(const GridLaunch& launch) {
  const LaunchShape& s = launch.shape;
  const uint64_t blocks = block_count(s.grid);
  const std::string& name = launch.operation.name;
  if (kCheck && blocks > kMaxBlocks) {
    return report(Fault::kRefused,
                  name + ": " + std::to_string(blocks) + " blocks; a checked launch has at most 65536");
  }
  if (s.cluster < 1 || s.cluster > 16 || s.grid.x % s.cluster) {
    return report(Fault::kConfigure, name + ": clusters of " + std::to_string(s.cluster) +
                                         " blocks in a grid of width " + std::to_string(s.grid.x));
  }
  return true;
}
}  // namespace

void set_schedule_seed(uint64_t value) {
  seed_value = value;
  launches_since_seed = 0;
}
void set_threads(int count) { os_threads = count; }
void set_host_fault_handler(bool (*handler)(void* address)) {
  host_fault = handler;
  catch_segv();
}

bool run_grid(const GridLaunch& launch) {
  if (!check_launch(launch)) return false;
  Grid grid{};
  grid.launch = &launch;
  grid.device = launch.operation.device;
  const LaunchShape& s = launch.shape;
  const uint64_t clusters = block_count(s.grid) / s.cluster;
  std::vector<uint64_t> order(clusters);
  std::iota(order.begin(), order.end(), uint64_t{0});
  ++launches_since_seed;
  Random random{seed_value * 31 + launches_since_seed * 1299709ull + 7};
  for (uint64_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(uint32_t(i))]);
  std::atomic<uint64_t> next{0};
  const auto work = [&](size_t worker) {
    catch_segv();
    for (uint64_t k = 0; !faulted() && (k = next++) < order.size();) run_gang(grid, order[k], worker * s.cluster);
  };
  const size_t workers = std::min<size_t>({size_t(os_threads), order.size(), kWindows / s.cluster});
  std::vector<std::thread> threads;
  for (size_t w = 1; w < workers; ++w) threads.emplace_back(work, w);
  work(0);
  for (auto& t : threads) t.join();
  return !faulted();
}

void finish_thread() {
  Block& b = block();
  Fiber& f = fiber();
  const Thread& t = *self();
  check_async_at_exit();
  if (f.wgmma_finished < f.wgmma_issued) fail(Fault::kInFlight, "thread exits with wgmma products never waited for");
  if (f.cluster_arrived) fail(Fault::kBarrier, "thread exits between barrier.cluster.arrive and barrier.cluster.wait");
  f.waiting = Wait::kExited;
  if (t.linear / 128 < b.register_requests.size() && f.register_changes < b.register_requests[t.linear / 128].size()) {
    fail(Fault::kWarp, "thread exits without a setmaxnreg that other warps of its warpgroup execute");
  }
  if (--b.live == 0) {
    check_visits(b);
    check_async_at_exit(b);
  }
  Warp& warp = b.warps[t.warp];
  warp.exited |= 1u << t.lane;
  for (const Rendezvous& r : warp.open) {
    if (r.mask >> t.lane & 1) {
      fail(Fault::kWarp, "lane %u exits while lanes %#x wait for it in a warp collective", t.lane, r.arrived);
    }
  }
  if (b.barrier.arrived) {
    fail(Fault::kBarrier, "thread exits while %u threads wait in __syncthreads at %s:%d", b.barrier.arrived,
         b.barrier.file, b.barrier.line);
  }
}

// ---- shared memory of a block: objects with a redzone in front of each
void* take_shared(Block& b, size_t bytes, size_t align) {
  const size_t offset = (b.window_used + kRedzone + align - 1) / align * align;
  if (offset + bytes > size_t{256} << 10) {
    report(Fault::kConfigure, b.gang->grid->launch->operation.name + ": more shared memory than a block can have");
    b.gang->failed = true;
    return b.window;
  }
  b.window_used = offset + bytes;
  make_fresh(b.window + offset, bytes);
  return b.window + offset;
}

void* static_shared(const void* key, size_t size, size_t align) {
  Block& b = block();
  void*& object = b.statics[key];
  if (object) return object;
  b.static_bytes += size;
  if (b.static_bytes > kMaxStaticShared) fail(Fault::kConfigure, "more than 48 KiB of static shared memory");
  const GridLaunch& launch = *b.gang->grid->launch;
  const size_t dynamic = launch.shape.shared_bytes;
  const size_t fixed = dynamic == 0 ? b.static_bytes : (b.static_bytes + 1023) / 1024 * 1024;  // as nvcc does
  if (fixed + dynamic > launch.shared_limit) {
    fail(Fault::kConfigure, "%zu bytes of static and %zu of dynamic shared memory, allowed %zu together", fixed,
         dynamic, launch.shared_limit);
  }
  return object = take_shared(b, size, align);
}

unsigned char* dynamic_shared() {
  Block& b = block();
  if (!b.dynamic) fail(Fault::kConfigure, "dynamic shared memory used but none was asked for at launch");
  return b.dynamic;
}
}  // namespace emu

namespace emu::ptx {

uint32_t shared_address(const void* p) {
  const size_t offset = size_t(static_cast<const uint8_t*>(p) - block().window);
  if (offset >= kWindowBytes) fail(Fault::kBounds, "the address %p is not in shared memory of this block", p);
  return uint32_t(offset);
}
uint32_t cluster_address(const void* p, uint32_t rank) {
  require_capability(90, "mapa");
  if (rank >= block().cluster->size) {
    fail(Fault::kConfigure, "mapa to block %u of a cluster of %u", rank, block().cluster->size);
  }
  return (rank + 1) << 24 | shared_address(p);
}
void store_for_host(uint64_t* to, uint64_t value) {
  check_aligned(to, 8, "st.relaxed.sys", __builtin_return_address(0));
  if (!is_pinned(to))
    fail(Fault::kBounds, "store for the host to %p, which is not pinned memory", static_cast<void*>(to));
  note(to, 8, kWrite | kAtomic, __builtin_return_address(0));
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
}
}  // namespace emu::ptx
