// What an operation does when its turn comes: the same description serves a stream's queue and a graph's node.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "emulator/device/device.h"
#include "emulator/runtime/library.h"
namespace emu {

// A kernel that the runtime has seen, and the attributes that the program gave it.
struct Kernel {
  void* function = nullptr;
  Trampoline trampoline = nullptr;
  size_t parameter_bytes = 0;
  std::string name;
  int max_dynamic_shared = 49152;  // until cudaFuncSetAttribute sets it
  bool asked_for_shared = false;   // it did
};

struct EmptyAction {  // event records, waits, the ends of a graph
  const char* name = "nothing";
};
struct KernelAction {
  const Kernel* kernel = nullptr;
  std::vector<uint8_t> parameters;
  LaunchShape shape;
};
struct CopyAction {
  uint8_t* to = nullptr;
  const uint8_t* from = nullptr;
  size_t bytes = 0;
  std::shared_ptr<const std::vector<uint8_t>> staged;  // pageable source: its bytes at the time of the call
};
struct FillAction {
  uint8_t* to = nullptr;
  size_t width = 0, height = 1, pitch = 0;  // bytes
  unsigned value = 0;
  unsigned element_bytes = 1;
};
using Action = std::variant<EmptyAction, KernelAction, CopyAction, FillAction, LibraryOperation>;

std::string action_name(const Action& action);
bool touches_memory(const Action& action);  // true: the stamps of its accesses need a number of the operation
double action_microseconds(const Action& action);
bool may_write_host_memory(const Action& action);
void execute(const Action& action, Operation operation);
}  // namespace emu
