// Faults: the first one of a run is kept, with kernel, block, thread and source line; it ends the launch.
#include <cxxabi.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "emulator/device/state.h"
namespace emu {
namespace {
std::mutex mutex;
std::atomic<bool> any_fault{false};
Report first;
}  // namespace

const char* fault_name(Fault fault) {
  constexpr const char* kNames[] = {
      "none",    "race", "out of bounds", "misaligned",  "uninitialised", "async copy in flight", "deadlock",
      "barrier", "warp", "mbarrier",      "proxy fence", "refused",       "configuration",        "host code",
  };
  return kNames[int(fault)];
}

bool report(Fault fault, const std::string& text) {
  const std::lock_guard lock(mutex);
  if (!any_fault) first = {fault, std::string(fault_name(fault)) + ": " + text};
  any_fault = true;
  return false;
}
bool faulted() { return any_fault; }
Report first_report() {
  const std::lock_guard lock(mutex);
  return any_fault ? first : Report{};
}
void clear_report() {
  const std::lock_guard lock(mutex);
  any_fault = false;
}

std::string kernel_name(const void* kernel) {
  const std::string symbol = symbol_at(kernel);
  int status = 0;
  char* demangled = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string name = demangled ? demangled : symbol;
  free(demangled);
  if (name.starts_with("void ")) name.erase(0, 5);  // templates carry their return type
  int depth = 0;
  for (size_t i = 0; i < name.size(); ++i) {  // up to the parameters, over template arguments
    if (name.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
      continue;
    }
    depth += name[i] == '<' ? 1 : name[i] == '>' ? -1 : 0;
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
  }
  return name;
}

void fail(Fault fault, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const Thread* t = running();
  if (!t) {
    fprintf(stderr, "emulator: %s outside a kernel: %s\n", fault_name(fault), text);
    abort();
  }
  char place[128];
  snprintf(place, sizeof place, " block (%u,%u,%u) thread (%u,%u,%u): ", t->block_index.x, t->block_index.y,
           t->block_index.z, t->thread_index.x, t->thread_index.y, t->thread_index.z);
  report(fault, operation().name + place + text);
  block().gang->failed = true;
  leave_gang();
  __builtin_unreachable();
}

void require_capability(int least, const char* instruction) {
  const int have = operation().compute_capability;
  if (have < least) {
    fail(Fault::kRefused, "%s needs compute capability %d.%d, this GPU has %d.%d", instruction, least / 10, least % 10,
         have / 10, have % 10);
  }
}
void require_hopper(const char* instruction) {
  const int have = operation().compute_capability;
  if (have != 90) {
    fail(Fault::kRefused, "%s exists on compute capability 9.0 only, this GPU has %d.%d", instruction, have / 10,
         have % 10);
  }
}
}  // namespace emu
