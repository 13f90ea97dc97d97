// Cost of memory accesses, by kernel: 32-byte sectors of global memory, passes over the banks of shared memory.
// Lanes run one after the other, so the k-th access of each lane through one call site forms a warp-wide access.
#include <algorithm>
#include <array>

#include "emulator/device/counters.h"
#include "emulator/device/state.h"
namespace emu {
namespace {

std::atomic<bool> counting{false};
std::mutex mutex;
std::map<std::string, KernelCounters>& totals() {
  static std::map<std::string, KernelCounters> map;
  return map;
}

bool is_shared(const void* p) { return in_arena(p) && device_of(p) < 0 && !is_pinned(p); }

uint64_t distinct(std::vector<uint64_t>& v) {
  std::sort(v.begin(), v.end());
  return uint64_t(std::unique(v.begin(), v.end()) - v.begin());
}

void count_global(const WarpAccess& a, KernelCounters& sum) {
  std::vector<uint64_t> sectors, bytes;
  for (unsigned i = 0; i < 32; ++i) {
    if (!(a.lanes >> i & 1)) continue;
    const auto at = reinterpret_cast<uint64_t>(a.address[i]);
    for (uint64_t b = at; b < at + a.bytes; ++b) {
      sectors.push_back(b / 32);
      bytes.push_back(b);
    }
  }
  ++sum.global_requests;
  sum.global_sectors += distinct(sectors);
  sum.global_sectors_min += (distinct(bytes) + 31) / 32;
}

// Accesses of 8 and 16 bytes go in halves and quarters of a warp; a pass serves one word of each bank.
uint64_t passes_of(const std::vector<uint64_t>& addresses, size_t bytes) {
  std::array<std::vector<uint64_t>, 32> words;
  for (const uint64_t a : addresses) {
    for (uint64_t w = a / 4; w <= (a + bytes - 1) / 4; ++w) words[w % 32].push_back(w);
  }
  uint64_t most = 0;
  for (auto& w : words) most = std::max(most, distinct(w));
  return most;
}
void count_shared(const WarpAccess& a, KernelCounters& sum) {
  const unsigned phase = a.bytes <= 4 ? 32 : a.bytes <= 8 ? 16 : 8;
  ++sum.shared_requests;
  for (unsigned first = 0; first < 32; first += phase) {
    std::vector<uint64_t> addresses;
    for (unsigned i = first; i < first + phase; ++i) {
      if (a.lanes >> i & 1) addresses.push_back(reinterpret_cast<uint64_t>(a.address[i]));
    }
    if (addresses.empty()) continue;
    sum.shared_passes += passes_of(addresses, a.bytes);
    ++sum.shared_passes_min;
  }
}

void count(const WarpAccess& a, KernelCounters& sum) {
  const void* any = a.address[__builtin_ctz(a.lanes)];
  if (is_shared(any)) {
    count_shared(a, sum);
  } else if (in_arena(any)) {
    count_global(a, sum);
  }
}

KernelCounters& gang_counters(Gang& gang) {
  if (!gang.counters) gang.counters = std::make_unique<GangCounters>();
  return gang.counters->sum;
}
}  // namespace

void count_accesses(bool on) { counting = on; }
std::map<std::string, KernelCounters> kernel_counters() {
  const std::lock_guard lock(mutex);
  return totals();
}
void reset_kernel_counters() {
  const std::lock_guard lock(mutex);
  totals().clear();
}

void count_access(const void* address, size_t bytes, const void* caller) {
  if (!counting) return;
  Block& b = block();
  Gang& gang = *b.gang;
  KernelCounters& sum = gang_counters(gang);
  const Thread& t = *self();
  const uint32_t nth = fiber().access_count[caller]++;
  auto& open = gang.counters->open;
  const auto entry = open.try_emplace({b.number, t.warp, caller, nth}).first;
  WarpAccess& access = entry->second;
  access.lanes |= 1u << t.lane;
  access.bytes = bytes;
  access.address[t.lane] = address;
  if (access.lanes != b.warps[t.warp].exists) return;
  count(access, sum);
  open.erase(entry);
}

void count_matrix_rows(const Lanes& lanes, int matrices) {
  if (!counting) return;
  KernelCounters& sum = gang_counters(*block().gang);
  ++sum.shared_requests;
  for (int m = 0; m < matrices; ++m) {  // eight rows of 16 bytes at a time
    std::vector<uint64_t> rows;
    for (int r = 0; r < 8; ++r) rows.push_back(reinterpret_cast<uint64_t>(lanes.in[m * 8 + r]));
    sum.shared_passes += passes_of(rows, 16);
    ++sum.shared_passes_min;
  }
}

void flush_counters(Gang& gang) {
  if (!gang.counters) return;
  KernelCounters& sum = gang.counters->sum;
  for (const auto& [key, access] : gang.counters->open) count(access, sum);
  const std::lock_guard lock(mutex);
  KernelCounters& total = totals()[gang.grid->launch->operation.name];
  total.global_requests += sum.global_requests;
  total.global_sectors += sum.global_sectors;
  total.global_sectors_min += sum.global_sectors_min;
  total.shared_requests += sum.shared_requests;
  total.shared_passes += sum.shared_passes;
  total.shared_passes_min += sum.shared_passes_min;
}
}  // namespace emu
