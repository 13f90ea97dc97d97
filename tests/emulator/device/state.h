// The state of a running grid: gangs of resident blocks, their threads as fibers, and everything that blocks and
// threads wait for. Private to the device half.
#pragma once
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/host/instructions.h"
#include "cuda/host/language.h"
#include "emulator/device/clock.h"
#include "emulator/device/counters.h"
#include "emulator/device/device.h"
namespace emu {

#ifdef EMU_CHECK
constexpr bool kCheck = true;  // kernels are instrumented: the order of all accesses is watched
#else
constexpr bool kCheck = false;
#endif

// Every resident block has a window of shared memory; offsets stay below 256 KiB, as wgmma descriptors demand.
constexpr size_t kWindowBytes = size_t{512} << 10;
constexpr size_t kWindows = 1024;

struct Random {  // xorshift64
  uint64_t state = 1;
  uint32_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return uint32_t(state >> 32);
  }
  uint32_t below(uint32_t n) { return uint32_t(uint64_t(next()) * n >> 32); }
};

struct Block;
struct Gang;

enum class Wait : uint8_t { kReady, kBarrier, kWarp, kMbarrier, kWgmma, kCluster, kRegisters, kExited };
struct Reason {  // kept unformatted: it is only read when the gang turns out to be stuck
  const char* format = "";
  const char* file = "";
  long value[3] = {};
};

struct CopyAsync {
  void* to;
  const void* from;
  unsigned bytes, valid;
};
struct HeldAccumulator {  // the true value of wgmma accumulators, until a wait names them the registers hold NaN
  float* registers;
  std::vector<float> value;
};

struct FiberState {  // fresh for each launch
  Block* block = nullptr;
  void* stack_pointer = nullptr;
  Wait waiting = Wait::kReady;
  Reason reason;
  uint32_t tick = 1;
  uint32_t shared_proxy_fence = 0;  // writes before this tick are visible to the async proxy
  bool dependency_waited = false;
  int registers = 0;
  size_t register_changes = 0;
  uint64_t cluster_phase = 0;
  bool cluster_arrived = false;
  uint64_t wgmma_issued = 0, wgmma_finished = 0;
};
struct Fiber : FiberState {
  // order
  Ticks ticks;
  Others others;
  Others released;   // as of the last fence: what an atomic publishes
  Others collected;  // by atomics: what the next fence acquires
  // asynchronous work of this thread
  std::vector<CopyAsync> copies;
  std::vector<std::vector<CopyAsync>> copy_groups;  // oldest first, as all the groups here
  std::vector<unsigned> bulk;
  std::vector<std::vector<unsigned>> bulk_groups;  // of stores, by their numbers in the block's engine
  std::vector<uint64_t> wgmma_groups;
  std::vector<HeldAccumulator> held;
  std::vector<ptx::Registers> taken;                       // by the fences since the last wait
  std::unordered_map<const void*, uint32_t> access_count;  // by call site, for KernelCounters

  void reset() {  // keeps the memory of its lists: a launch has thousands of fibers
    static_cast<FiberState&>(*this) = FiberState{};
    ticks.clear();
    others = released = collected = nullptr;
    copies.clear();
    copy_groups.clear();
    bulk.clear();
    bulk_groups.clear();
    wgmma_groups.clear();
    held.clear();
    taken.clear();
    if (!access_count.empty()) access_count.clear();
  }
};

struct Rendezvous {
  Collective kind;
  unsigned mask, arrived;
  Lanes lanes;
};
struct Warp {
  std::vector<Rendezvous> open;
  unsigned exists = 0, exited = 0;
};
struct BlockBarrier {  // __syncthreads
  unsigned arrived = 0;
  const char* file = nullptr;
  int line = 0;
  std::vector<Thread*> waiting;
};
struct NamedBarrier {
  unsigned arrived = 0, expected = 0;
  Clock clock;
  std::vector<Thread*> waiting;
};
struct Mbarrier {
  uint32_t count, pending, owner;
  bool fenced = false;
  uint32_t phase = 0;
  int64_t bytes = 0;  // expected minus arrived
  Clock arriving, done;
  std::vector<Thread*> waiting;
};
// One asynchronous instruction: its stages run at random later moments, or when somebody waits for them.
struct AsyncWork {
  unsigned number;
  bool fills_shared;  // of the block that owns it
  std::vector<std::function<void()>> stages;
  size_t next = 0;
};
struct WgmmaWork;
struct ClusterBarrier {
  unsigned arrived = 0;
  uint64_t phase = 0;
  Others arriving, done;
  std::vector<Thread*> waiting;
};
struct Cluster {
  uint32_t size = 1;  // blocks
  ClusterBarrier barrier;
};

struct Block {
  Gang* gang;
  Cluster* cluster;
  uint32_t number, cluster_rank, size, live;  // size in threads
  uint3 index;
  std::vector<Thread*> threads;
  std::vector<Warp> warps;
  BlockBarrier barrier;
  NamedBarrier named[16];
  Ticks base;  // what all threads of the block know since the last __syncthreads
  uint8_t* window;
  size_t window_used = 0, static_bytes = 0;
  unsigned char* dynamic = nullptr;
  std::map<const void*, void*> statics;
  std::map<const void*, Mbarrier> mbarriers;
  std::vector<AsyncWork> async;
  unsigned next_async = 1;
  std::vector<std::deque<WgmmaWork>> wgmma;         // by warpgroup; empty before the first one
  int free_registers = 0;                           // for setmaxnreg: what other warps have given up
  std::vector<std::vector<int>> register_requests;  // by warpgroup, in order
  std::vector<Thread*> waiting_for_registers;
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> visits;  // by block and thread: its last access to our memory
  alignas(128) uint8_t parameters[32768];
};

// What blocks on different OS threads share.
struct Grid {
  const GridLaunch* launch;
  int device;  // the one whose memory its blocks may access
  std::mutex mutex;
  std::unordered_map<const void*, Others> published;  // by the address of an atomic
};

// Blocks that are resident together on one OS thread: a block or a cluster.
struct Gang {
  Grid* grid;
  std::vector<std::unique_ptr<Block>> blocks;
  Cluster cluster;
  std::vector<Thread*> ready;
  Random random;
  void* main_stack = nullptr;
  bool failed = false;
  size_t async_open = 0;                   // stages still to run, over all blocks
  uint32_t known_operation = 0;            // the last one found to be ordered before this launch
  std::unique_ptr<GangCounters> counters;  // only while accesses are counted
};

// ---- scheduler.cc
constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kStackHeader = 4096;                  // at the top of a stack: the Thread
constexpr size_t kFiberStack = 232 << 10;              // of it at least, what is left to the fiber
extern constinit thread_local Thread* current_thread;  // a fiber stays on its OS thread
inline Thread* running() { return current_thread; }    // null outside kernels
Thread* pooled_thread(size_t index);                   // stacks are kept for the next block on this OS thread
void prepare_fiber(Thread* thread);
void enter_gang(Gang& gang);  // returns when no thread can go on
void leave_gang();            // from a fiber, for good
void park(Wait wait, const Reason& reason);
void wake(Thread* thread);

inline Fiber& fiber() { return *running()->fiber; }
inline Block& block() { return *fiber().block; }
inline const Operation& operation() { return block().gang->grid->launch->operation; }

// ---- order.cc
uint32_t advance(Fiber& fiber);  // the next tick of a thread
uint64_t stamp_now();
bool happened_before(uint64_t stamp);
void release_to(Clock& clock, Block& owner);  // the running thread arrives at an object of block `owner`
void acquire_from(const Clock& clock, Block& owner, bool cluster_scope);
void check_visits(const Block& leaving);  // others may touch shared memory only until its block exits
Others snapshot();                        // all that the running thread knows, its own block included; takes a tick

// ---- memory.cc
uint8_t* window_base(size_t index);
void make_fresh(void* begin, size_t bytes);  // live, poisoned, never written
void restamp(void* begin, size_t bytes, bool write, uint64_t stamp);
void restamp_read(void* begin, size_t bytes, uint64_t from, uint64_t to);  // where `from` was the last noted
void check_range_live(const void* begin, size_t bytes, const char* what);
Block& window_owner(const void* address);   // the block of this gang whose shared memory that is
std::string source_of(const void* caller);  // " at file:line"

// ---- async.cc
unsigned add_async(Block& owner, bool fills_shared, std::vector<std::function<void()>> stages);
void run_async(Block& owner, unsigned number, size_t stages);  // at least the first `stages` of it
void run_random_async(Gang& gang);
void check_async_at_exit();  // of a thread
void check_async_at_exit(const Block& leaving);

// ---- mbarrier.cc
Mbarrier& find_mbarrier(void* address, bool remote);
void complete_bytes(Block& owner, Mbarrier& barrier, int64_t bytes, uint32_t async_number);

// ---- counters.cc
void flush_counters(Gang& gang);
void count_matrix_rows(const Lanes& lanes, int matrices);

// ---- symbols.cc
std::string symbol_at(const void* function);  // mangled

// ---- grid.cc
void* take_shared(Block& owner, size_t bytes, size_t align);
void finish_thread();
void require_capability(int least, const char* instruction);
void require_hopper(const char* instruction);  // 9.0 and nothing else: wgmma
}  // namespace emu
