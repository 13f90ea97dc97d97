// Device memory is closed to host code: its pages allow no access except while the runtime itself works on them. A host
// thread that touches it dies like on a machine with a GPU, but with a message that names the allocation.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emulator/device/pages.h"
#include "emulator/runtime/api.h"

namespace emu {
namespace {
// Whole large pages: an end within one would make the system take it apart, and the next change slow.
void set_access(int protection) {
  for (const AddressSpace& space : runtime().device_addresses) {
    if (space.used == 0) continue;
    if (mprotect(space.base, (space.used + kLargePage - 1) / kLargePage * kLargePage, protection) != 0) {
      perror("emulator: mprotect of device memory");
      abort();
    }
  }
}
}  // namespace

void open_memory() {
  Runtime& rt = runtime();
  if (rt.memory_open) return;
  rt.memory_open = true;
  set_access(PROT_READ | PROT_WRITE);
}

void close_memory() {
  Runtime& rt = runtime();
  if (!rt.memory_open) return;
  rt.memory_open = false;
  set_access(PROT_NONE);
}

// Called from the signal handler with the process about to die, so it takes no lock.
bool explain_host_fault(void* address) {
  if (device_of(address) < 0) return false;
  std::string text = "emulator: host code touches device memory: " + describe_address(address) +
                     ". Copy it with cudaMemcpy, or use pinned memory (cudaMallocHost).\n";
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) abort();
  return false;  // as on a real machine
}
}  // namespace emu
