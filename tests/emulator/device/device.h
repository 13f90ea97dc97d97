// The interface between the two halves of the emulator: the device half (this folder) runs one grid at a time and
// watches memory; the runtime half (../runtime) owns allocations, streams and the order of operations.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/host/launch_raw.h"
#include "emulator/emulator.h"
namespace emu {

// ---- memory: one reserved range of addresses, [device 0] ... [device 7] [pinned host memory] [shared windows]
constexpr int kMaxDevices = 8;
constexpr size_t kDeviceBytes = size_t{16} << 30;  // addresses, not memory: pages come when touched
constexpr size_t kPinnedBytes = size_t{16} << 30;

enum class ByteState : uint8_t { kFree = 0, kLive = 1, kInFlight = 2 };

void init_memory();  // reserves the addresses; may be called again
uint8_t* device_base(int device);
uint8_t* pinned_base();
bool in_arena(const void* address);   // any of the three kinds
bool is_pinned(const void* address);  // handed out from the pinned range
int device_of(const void* address);   // the device whose memory this is, -1 for anything else
void set_state(void* begin, size_t bytes, ByteState state);
void give_back_pages(void* begin, size_t bytes);  // freed memory: what it held is gone, large ranges cost nothing more
void mark_unwritten(void* begin, size_t bytes);   // nobody wrote it: reading is a fault in a check build
void mark_written(void* begin, size_t bytes);     // written before all operations
void rebase_stamps(void* begin, size_t bytes);    // forget who wrote what, keep whether; after a device synchronisation

// ---- operations: what is queued on streams
// Stamps in memory name an operation by a small number. 0 is "before everything". The runtime starts again at 1 after
// a device synchronisation (rebase_stamps on all allocations) and must not go beyond kMaxOperation.
constexpr uint32_t kMaxOperation = 32767;

struct Operation {
  uint32_t id = 0;
  std::string name;  // kernel name or "cudaMemcpyAsync"
  int device = 0;
  int compute_capability = 90;  // of the simulated GPU, 10 * major + minor
  // Did operation `other` finish before this one starts? `waited`: griddepcontrol.wait has been executed.
  std::function<bool(uint32_t other, bool waited)> ordered;
};

std::string operation_name(uint32_t id);  // runtime half: "rmsnorm (operation 12)", for messages

struct GridLaunch {
  Operation operation;
  void* kernel = nullptr;
  Trampoline trampoline = nullptr;
  std::vector<uint8_t> parameters;
  LaunchShape shape;
  size_t shared_limit = 48 << 10;  // static and dynamic shared memory of a block together
};
bool run_grid(const GridLaunch& launch);  // false: a fault was reported. One grid at a time in a process

// A copy or memset touches this range on behalf of the operation: checks state and order, stamps it.
void check_operation(const Operation& operation, void* begin, size_t bytes, bool write);
// After a copy: bytes that nobody wrote are still unwritten where they arrive, so that reading them there is a fault.
void copy_unwritten(void* to, const void* from, size_t bytes);

// ---- faults
bool report(Fault fault, const std::string& text);  // keeps the first; returns false
bool faulted();
Report first_report();
void clear_report();
std::string source_of(const void* caller);    // " at file:line" of a return address
std::string kernel_name(const void* kernel);  // demangled, without its parameters

// A memory fault of host code: `handler` says whether the access may be repeated. Faults of kernels never get there.
void set_host_fault_handler(bool (*handler)(void* address));

// ---- schedules
void set_schedule_seed(uint64_t value);
extern const bool kChecking;  // linked with the check variant of the device half

// ---- tensor maps: how cuTensorMapEncodeTiled fills the 128 bytes that the TMA engine reads
struct TensorMap {
  uint64_t magic;
  uint8_t* base;
  uint32_t rank, element_bytes;
  uint32_t swizzle;     // bytes of the swizzled row: 0, 32, 64 or 128
  uint64_t dims[5];     // innermost first; 1 beyond the rank
  uint64_t strides[5];  // bytes; [0] unused, 0 beyond the rank
  uint16_t box[5];      // elements; 1 beyond the rank
};
static_assert(sizeof(TensorMap) <= 128);
constexpr uint64_t kTensorMapMagic = 0x70616d736e6574ull;
}  // namespace emu
