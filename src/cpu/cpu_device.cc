// Host memory from mmap, in huge pages if the kernel has them (fewer TLB misses in GEMMs).
#include "cpu/cpu_device.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/int.h"
#include "base/poison.h"
#include "cpu/cores.h"
#include "cpu/isa.h"

namespace athanor {
namespace {
constexpr size_t kPage = 4096;          // guaranteed alignment
constexpr size_t kHugePage = 2u << 20;  // x86-64's and arm64's usual size
size_t pages(size_t bytes) { return round_up(bytes ? bytes : 1, kPage); }
}  // namespace

CpuDevice::CpuDevice(int threads, size_t limit) : pool_(threads), capacity_(limit ? limit : usable_memory()) {}

std::string CpuDevice::description() const {
  const std::string refusal = amx_refusal();
  return cat("cpu, ", pool_.size(), pool_.size() == 1 ? " thread, " : " threads, ", name_of(isa()),
             refusal.empty() ? "" : cat(" (not AMX: ", refusal, ")"));
}

void* CpuDevice::allocate(size_t bytes, Mem) {
  const size_t before = allocated_.fetch_add(bytes);
  if (bytes > capacity_ || before > capacity_ - bytes) {
    allocated_.fetch_sub(bytes);
    throw Error(cat("cpu memory: ", bytes, " bytes were requested, but ", before, " of ", capacity_,
                    " bytes are in use: use a smaller micro-batch or model, or raise the memory limit"));
  }
  void* memory = mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    const int reason = errno;
    allocated_.fetch_sub(bytes);
    throw Error(cat("cpu memory: the system refused ", bytes, " bytes: ", std::strerror(reason),
                    ": free memory on this machine, or use a smaller micro-batch or model"));
  }
  if (bytes >= kHugePage) madvise(memory, pages(bytes), MADV_HUGEPAGE);  // a hint: failure changes nothing
  return memory;
}

void CpuDevice::release(void* memory, size_t bytes, Mem) {
  if (!memory) return;
  unpoison(memory, bytes);  // blocks of an arena may still be poisoned
  CHECK(munmap(memory, pages(bytes)) == 0, "releasing ", bytes, " bytes: ", std::strerror(errno));
  allocated_.fetch_sub(bytes);
}

void CpuDevice::copy(void* dst, const void* src, size_t bytes, Stream) {
  if (bytes) std::memmove(dst, src, bytes);
}

}  // namespace athanor
