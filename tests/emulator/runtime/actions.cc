// Running one action: the grid, the copy, the fill. Every range of the arena that it touches is checked and stamped.
#include "emulator/runtime/actions.h"

#include <algorithm>
#include <cstring>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Match(Cases...) -> Match<Cases...>;

// Virtual microseconds; only their order of magnitude means anything.
constexpr double kLaunchMicroseconds = 2;
constexpr double kBlockMicroseconds = 0.05;
constexpr double kCopyBytesPerMicrosecond = 25000;  // a PCIe 4.0 x16 link
constexpr double kFillBytesPerMicrosecond = 1000000;

void run_kernel(const KernelAction& action, const Operation& operation) {
  GridLaunch launch;
  launch.operation = operation;
  launch.kernel = action.kernel->function;
  launch.trampoline = action.kernel->trampoline;
  launch.parameters = action.parameters;
  launch.shape = action.shape;
  if (action.kernel->asked_for_shared)
    launch.shared_limit = runtime().devices[size_t(operation.device)].model.shared_per_block_optin;
  run_grid(launch);
}

void run_copy(const CopyAction& action, const Operation& operation) {
  const bool staged = action.staged != nullptr;
  const uint8_t* from = staged ? action.staged->data() : action.from;
  if (!staged) check_operation(operation, const_cast<uint8_t*>(from), action.bytes, false);
  check_operation(operation, action.to, action.bytes, true);
  if (faulted()) return;
  memmove(action.to, from, action.bytes);
  if (!staged) copy_unwritten(action.to, from, action.bytes);
}

void run_fill(const FillAction& action, const Operation& operation) {
  for (size_t row = 0; row < action.height && !faulted(); ++row) {
    uint8_t* to = action.to + row * action.pitch;
    check_operation(operation, to, action.width, true);
    if (faulted()) return;
    size_t filled = std::min<size_t>(action.element_bytes, action.width);
    memcpy(to, &action.value, filled);
    for (; filled < action.width; filled = std::min(2 * filled, action.width))
      memcpy(to + filled, to, std::min(filled, action.width - filled));
  }
}

void run_library(const LibraryOperation& action, const Operation& operation) {
  for (const MemoryRange& range : action.reads) {
    check_operation(operation, const_cast<void*>(range.begin), range.bytes, false);
  }
  for (const MemoryRange& range : action.writes) {
    check_operation(operation, const_cast<void*>(range.begin), range.bytes, true);
  }
  if (!faulted() && action.compute) action.compute();
}
}  // namespace

std::string action_name(const Action& action) {
  return std::visit(Match{[](const EmptyAction& a) { return std::string(a.name); },
                          [](const KernelAction& a) { return a.kernel->name; },
                          [](const CopyAction&) { return std::string("cudaMemcpyAsync"); },
                          [](const FillAction&) { return std::string("cudaMemsetAsync"); },
                          [](const LibraryOperation& a) { return a.name; }},
                    action);
}

bool touches_memory(const Action& action) { return !std::holds_alternative<EmptyAction>(action); }

double action_microseconds(const Action& action) {
  auto kernel = [](const KernelAction& a) {
    return kLaunchMicroseconds + kBlockMicroseconds * a.shape.grid.x * a.shape.grid.y * a.shape.grid.z;
  };
  auto copy = [](const CopyAction& a) { return kLaunchMicroseconds + double(a.bytes) / kCopyBytesPerMicrosecond; };
  auto fill = [](const FillAction& a) {
    return kLaunchMicroseconds + double(a.width * a.height) / kFillBytesPerMicrosecond;
  };
  auto library = [](const LibraryOperation& a) { return a.microseconds; };
  return std::visit(Match{kernel, copy, fill, library, [](const auto&) { return 0.; }}, action);
}

bool may_write_host_memory(const Action& action) {
  return std::visit(
      Match{[](const KernelAction&) { return true; },  // through pointers to pinned memory
            [](const LibraryOperation&) { return true; }, [](const CopyAction& a) { return is_host_memory(a.to); },
            [](const FillAction& a) { return is_host_memory(a.to); }, [](const auto&) { return false; }},
      action);
}

void execute(const Action& action, Operation operation) {
  std::visit(
      Match{[](const EmptyAction&) {}, [&](const KernelAction& a) { run_kernel(a, operation); },
            [&](const CopyAction& a) { run_copy(a, operation); }, [&](const FillAction& a) { run_fill(a, operation); },
            [&](const LibraryOperation& a) { run_library(a, operation); }},
      action);
}
}  // namespace emu
