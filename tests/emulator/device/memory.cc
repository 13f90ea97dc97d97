// The arena (device memory, pinned memory, shared windows), the state of each byte, and the check of every access:
// bounds, asynchronous copies in flight, and in check builds order, first use and proxy fences.
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "emulator/device/pages.h"
#include "emulator/device/state.h"
namespace emu {
namespace {

constexpr size_t kDevicesBytes = kMaxDevices * kDeviceBytes;
constexpr size_t kHeapBytes = kDevicesBytes + kPinnedBytes;
constexpr size_t kArenaBytes = kHeapBytes + kWindows * kWindowBytes;

struct Cell {  // the last writer and one recent reader of a byte
  uint64_t writer, reader;
};
uint8_t* arena = nullptr;
ByteState* states = nullptr;
Cell* cells = nullptr;

uint8_t* reserve(size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (p == MAP_FAILED) {
    fprintf(stderr, "emulator: cannot reserve %zu bytes of addresses; lift the limit on virtual memory\n", bytes);
    abort();
  }
  return static_cast<uint8_t*>(p);
}
size_t offset_of(const void* p) { return size_t(static_cast<const uint8_t*>(p) - arena); }

struct Range {
  uint8_t *begin, *end;
};
Range large_pages_of(void* begin, size_t bytes) {  // those that lie wholly within
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const auto first = (address + kLargePage - 1) / kLargePage * kLargePage,
             last = (address + bytes) / kLargePage * kLargePage;
  auto* base = static_cast<uint8_t*>(begin);
  return {base + (first - address), base + (std::max(first, last) - address)};
}
void release(Range pages) {
  if (pages.begin != pages.end) madvise(pages.begin, size_t(pages.end - pages.begin), MADV_DONTNEED);
}
}  // namespace

void init_memory() {
  if (arena) return;
  uint8_t* a = reserve(kArenaBytes + kLargePage);
  states = reinterpret_cast<ByteState*>(reserve(kArenaBytes));
  if (kCheck) cells = reinterpret_cast<Cell*>(reserve(kArenaBytes * sizeof(Cell)));
  arena = a + kLargePage - (reinterpret_cast<uintptr_t>(a) & (kLargePage - 1));
  // Opening and closing device memory (runtime/memory_access.cc) costs time by the page, first touches too. Only a
  // request: without large pages everything works, slower. Shared windows lie too far apart for them.
  madvise(arena, kHeapBytes, MADV_HUGEPAGE);
  if (!kCheck) return;
  const Range pages = large_pages_of(cells, kHeapBytes * sizeof(Cell));
  madvise(pages.begin, size_t(pages.end - pages.begin), MADV_HUGEPAGE);
}

uint8_t* device_base(int device) { return arena + size_t(device) * kDeviceBytes; }
uint8_t* pinned_base() { return arena + kDevicesBytes; }
uint8_t* window_base(size_t index) { return arena + kHeapBytes + index * kWindowBytes; }
bool in_arena(const void* p) { return arena && offset_of(p) < kArenaBytes; }
bool is_pinned(const void* p) { return in_arena(p) && offset_of(p) - kDevicesBytes < kPinnedBytes; }
int device_of(const void* p) { return arena && offset_of(p) < kDevicesBytes ? int(offset_of(p) / kDeviceBytes) : -1; }

void set_state(void* begin, size_t bytes, ByteState state) {
  memset(static_cast<void*>(states + offset_of(begin)), int(state), bytes);
}
void give_back_pages(void* begin, size_t bytes) {
  release(large_pages_of(begin, bytes));
  if (kCheck) release(large_pages_of(cells + offset_of(begin), bytes * sizeof(Cell)));
}
void mark_unwritten(void* begin, size_t bytes) {
  if (!kCheck) return;
  auto* first = reinterpret_cast<uint8_t*>(cells + offset_of(begin));
  uint8_t* last = first + bytes * sizeof(Cell);
  const Range whole = large_pages_of(first, bytes * sizeof(Cell));
  if (whole.begin == whole.end) {
    memset(first, 0, size_t(last - first));
    return;
  }
  memset(first, 0, size_t(whole.begin - first));
  release(whole);  // zero again at the next touch
  memset(whole.end, 0, size_t(last - whole.end));
}
void mark_written(void* begin, size_t bytes) {
  if (!kCheck) return;
  Cell* cell = cells + offset_of(begin);
  for (size_t i = 0; i < bytes; ++i) cell[i] = {kStampValid, 0};
}
void rebase_stamps(void* begin, size_t bytes) {
  if (!kCheck) return;
  Cell* cell = cells + offset_of(begin);
  for (size_t i = 0; i < bytes; ++i) cell[i] = {cell[i].writer ? kStampValid : 0, 0};
}
void make_fresh(void* begin, size_t bytes) {
  set_state(begin, bytes, ByteState::kLive);
  mark_unwritten(begin, bytes);
  memset(begin, 0xff, bytes);
}

void restamp(void* begin, size_t bytes, bool write, uint64_t stamp) {
  if (!kCheck) return;
  Cell* cell = cells + offset_of(begin);
  for (size_t i = 0; i < bytes; ++i) (write ? cell[i].writer : cell[i].reader) = stamp;
}
void restamp_read(void* begin, size_t bytes, uint64_t from, uint64_t to) {
  if (!kCheck) return;
  Cell* cell = cells + offset_of(begin);
  for (size_t i = 0; i < bytes; ++i)
    if (cell[i].reader == from) cell[i].reader = to;
}

void check_range_live(const void* begin, size_t bytes, const char* what) {
  const ByteState* s = states + offset_of(begin);
  for (size_t i = 0; i < bytes; ++i) {
    if (s[i] != ByteState::kLive) fail(Fault::kInFlight, "%s", what);
  }
}

Block& window_owner(const void* p) {
  for (auto& b : block().gang->blocks) {
    if (size_t(static_cast<const uint8_t*>(p) - b->window) < kWindowBytes) return *b;
  }
  fail(Fault::kBounds, "shared memory of a block that is not resident beside this one");
}

std::string source_of(const void* caller) {
  Dl_info info;
  if (!caller || !dladdr(caller, &info)) return "";
  const size_t offset = size_t(static_cast<const char*>(caller) - static_cast<const char*>(info.dli_fbase)) - 1;
  char command[512], line[512] = "";
  snprintf(command, sizeof command, "addr2line -i -e '%s' %#zx 2>/dev/null", info.dli_fname, offset);
  if (FILE* pipe = popen(command, "r")) {  // the first frame outside the language's own headers
    while (fgets(line, sizeof line, pipe) && (strstr(line, "cuda/host") || strstr(line, "cuda/access.h"))) {
    }
    pclose(pipe);
  }
  std::string text = line;
  text.erase(text.find_last_not_of('\n') + 1);
  text.erase(0, text.rfind('/') + 1);
  return text.empty() ? "" : " at " + text;
}

// ---- the check of one access
extern "C" {
extern char __executable_start, _end;
}
namespace {
const char* verb(int access) { return access & kAtomic ? "atomic" : access & kWrite ? "write" : "read"; }

bool own_memory(const uint8_t* p) {
  const auto* top = reinterpret_cast<const uint8_t*>(running()) + sizeof(Thread);
  const uint8_t* parameters = block().parameters;
  return size_t(top - p) <= kFiberStack ||
         (p >= reinterpret_cast<uint8_t*>(&__executable_start) && p < reinterpret_cast<uint8_t*>(&_end)) ||
         size_t(p - parameters) < sizeof block().parameters;
}

void check_region(const uint8_t* p, size_t bytes, int access, const void* caller) {
  const size_t offset = offset_of(p);
  if (offset < kDevicesBytes) {
    const auto device = offset / kDeviceBytes;
    if (device == size_t(block().gang->grid->device)) return;
    fail(Fault::kBounds, "%s of memory of device %zu by a kernel of another device%s", verb(access), device,
         source_of(caller).c_str());
  }
  if (offset < kHeapBytes) return;
  Block& mine = block();
  if (size_t(p - mine.window) < kWindowBytes) return;
  Block& owner = window_owner(p);
  if (owner.cluster != mine.cluster || owner.cluster->size == 1) {
    fail(Fault::kBounds, "%zu-byte %s of shared memory of another block%s", bytes, verb(access),
         source_of(caller).c_str());
  }
  if (!owner.live) {
    fail(Fault::kBounds, "distributed shared memory of block %u of the cluster, which has exited%s", owner.cluster_rank,
         source_of(caller).c_str());
  }
  if (kCheck && !(access & kAsyncProxy)) owner.visits[{mine.number, self()->linear}] = stamp_now();
}

bool all_live(size_t offset, size_t bytes) {
  constexpr uint64_t kEightLive = 0x0101010101010101;
  static_assert(uint8_t(ByteState::kLive) == 1);
  size_t i = 0;
  for (uint64_t eight = 0; i + 8 <= bytes; i += 8) {
    memcpy(&eight, states + offset + i, 8);
    if (eight != kEightLive) return false;
  }
  while (i < bytes && states[offset + i] == ByteState::kLive) ++i;
  return i == bytes;
}

void check_states(const uint8_t* p, size_t bytes, int access, const void* caller) {
  const size_t offset = offset_of(p);
  if (all_live(offset, bytes)) return;
  for (size_t i = 0; i < bytes; ++i) {
    const ByteState s = states[offset + i];
    if (s == ByteState::kLive) continue;
    const std::string source = source_of(caller);
    if (s == ByteState::kInFlight) {
      fail(Fault::kInFlight, "%s of shared byte %zu while an asynchronous copy into it is in flight (missing wait)%s",
           verb(access), (offset + i) & (kWindowBytes - 1), source.c_str());
    }
    fail(Fault::kBounds, "%zu-byte %s at %p, byte %zu outside any allocation%s", bytes, verb(access),
         static_cast<const void*>(p), i, source.c_str());
  }
}

[[noreturn]] void fail_race(const char* kind, uint64_t other, const uint8_t* p, const void* caller) {
  const StampFields s = stamp_fields(other);
  fail(Fault::kRace, "%s on %s byte %p; other access: %s block %u thread %u%s%s", kind,
       offset_of(p) >= kHeapBytes ? "shared" : "global", static_cast<const void*>(p),
       operation_name(s.operation).c_str(), s.block, s.thread, other & kStampProxy ? " (async proxy)" : "",
       source_of(caller).c_str());
}

// The asynchronous proxy reads or overwrites what threads wrote: they must have fenced after the write.
void check_proxy(uint64_t writer, const uint8_t* p) {
  const StampFields s = stamp_fields(writer);
  if ((writer & kStampProxy) || s.operation != (operation().id & 0x7fff)) return;
  const bool shared = offset_of(p) >= kHeapBytes;
  for (auto& b : block().gang->blocks) {
    if ((b->number & 0xffff) != s.block) continue;
    const Fiber& f = *b->threads[s.thread]->fiber;
    if (shared && s.tick < f.shared_proxy_fence) return;
    fail(Fault::kProxy,
         "async proxy touches %s byte %#zx written by thread %u with no fence.proxy.async after the write",
         shared ? "shared" : "global", shared ? size_t(p - b->window) : reinterpret_cast<size_t>(p), s.thread);
  }
}

bool unordered(uint64_t other, int access) {
  return !((other & kStampAtomic) && (access & kAtomic)) && !happened_before(other);
}

void check_order(const uint8_t* p, size_t bytes, int access, const void* caller) {
  const uint64_t mine = stamp_now() | (access & kAtomic ? kStampAtomic : 0);
  const bool write = access & kWrite;
  uint64_t good_writer = 0, good_reader = 0;  // neighbouring bytes mostly have the same history
  uint64_t last_reader = mine;                // of those that this access does or does not replace
  bool replaces = true;
  for (Cell* c = cells + offset_of(p); bytes--; ++c, ++p) {
    const uint64_t writer = c->writer, reader = c->reader;
    if (writer && writer != good_writer) {
      if (unordered(writer, access)) {
        fail_race(write ? "write after unordered write" : "read after unordered write", writer, p, caller);
      }
      if (access & kAsyncProxy) check_proxy(writer, p);
      good_writer = writer;
    }
    if (!writer && (!write || (access & kAtomic))) {
      fail(Fault::kUninitialized, "%s of never-written %s byte %p%s", verb(access),
           offset_of(p) >= kHeapBytes ? "shared" : "global", static_cast<const void*>(p), source_of(caller).c_str());
    }
    if (write) {
      if (reader && reader != good_reader && unordered(reader, access)) {
        fail_race("write after unordered read", reader, p, caller);
      }
      good_reader = reader;
      *c = {mine, 0};
      continue;
    }
    if (reader != last_reader) {
      last_reader = reader;
      replaces = !reader || reader == mine || happened_before(reader) || (block().gang->random.next() & 1);
    }
    if (replaces) c->reader = mine;
  }
}
}  // namespace

void note(const void* address, size_t bytes, int access, const void* caller) {
  if (!running()) return;
  const auto* p = static_cast<const uint8_t*>(address);
  if (offset_of(p) >= kArenaBytes) {
    if (own_memory(p)) return;
    fail(Fault::kBounds, "illegal address %p (host or foreign memory), %zu-byte %s%s", address, bytes, verb(access),
         source_of(caller).c_str());
  }
  check_region(p, bytes, access, caller);
  check_states(p, bytes, access, caller);
  if (kCheck) check_order(p, bytes, access, caller);
  if (caller) count_access(address, bytes, caller);
}

void check_aligned(const void* address, size_t bytes, const char* what, const void* caller) {
  if (!running() || reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  fail(Fault::kMisaligned, "%s at %p is not %zu-byte aligned%s", what, address, bytes, source_of(caller).c_str());
}

void check_operation(const Operation& op, void* begin, size_t bytes, bool write) {
  if (!in_arena(begin)) return;
  const size_t offset = offset_of(begin);
  if (!all_live(offset, bytes)) {
    size_t i = 0;
    while (states[offset + i] == ByteState::kLive) ++i;
    report(Fault::kBounds, op.name + (write ? " writes " : " reads ") + std::to_string(bytes) + " bytes: byte " +
                               std::to_string(i) + " is outside the allocation");
    return;
  }
  if (!kCheck) return;
  const uint64_t mine = make_stamp({op.id, 0, 0, 0});
  uint64_t good_writer = mine, good_reader = mine;  // neighbouring bytes mostly have the same history
  const auto conflicts = [&](uint64_t stamp, uint64_t& good) {
    if (stamp == 0 || stamp == good) return false;
    const uint32_t other = stamp_fields(stamp).operation;
    if (other != (op.id & 0x7fff) && !op.ordered(other, true)) return true;
    good = stamp;
    return false;
  };
  for (size_t i = 0; i < bytes; ++i) {
    Cell& c = cells[offset + i];
    const uint64_t other = conflicts(c.writer, good_writer)            ? c.writer
                           : write && conflicts(c.reader, good_reader) ? c.reader
                                                                       : 0;
    if (other) {
      report(Fault::kRace, op.name + " is not ordered after " + operation_name(stamp_fields(other).operation) +
                               " (missing event wait?), byte " + std::to_string(i));
      return;
    }
    if (write) {
      c = {mine, 0};
    } else {
      c.reader = mine;
    }
  }
}

void copy_unwritten(void* to, const void* from, size_t bytes) {
  if (!kCheck || !in_arena(to) || !in_arena(from)) return;
  Cell* target = cells + offset_of(to);
  const Cell* source = cells + offset_of(from);
  for (size_t i = 0; i < bytes; ++i) {
    if (!source[i].writer) target[i] = {0, 0};
  }
}
}  // namespace emu
