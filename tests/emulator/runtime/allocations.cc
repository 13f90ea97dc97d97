// Which memory exists: placing it in the arena, freeing it, finding what an address belongs to, and what was leaked.
#include <algorithm>
#include <cstring>
#include <sstream>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
// cudaMalloc aligns to 256 bytes (CUDA C++ Programming Guide, "Size and Alignment Requirement"); pinned memory to
// pages.
constexpr size_t kDeviceAlignment = 512;
constexpr size_t kPinnedAlignment = 4096;
constexpr size_t kRedZone = 4096;  // between two allocations, so that small overruns are seen
constexpr size_t kFreedNotes = 4096;
// Freed addresses are not used again before so much lies behind them, so that late uses are seen. Not more: each call
// opens and closes all pages that were ever touched.
constexpr size_t kQuarantine = size_t{8} << 20;

size_t room_for(size_t bytes, size_t alignment) { return (bytes + kRedZone + alignment - 1) / alignment * alignment; }

std::string bytes_text(size_t bytes) {
  std::ostringstream out;
  out << bytes << " bytes";
  if (bytes >= size_t{1} << 20) out << " (" << double(bytes >> 20) << " MiB)";
  return out.str();
}

std::string site_text(const char* name, void* caller) {
  std::string site = source_of(caller);
  return std::string(name) + (site.empty() ? "" : site);
}

AddressSpace& space_of(int device, MemoryKind kind) {
  Runtime& rt = runtime();
  return kind == MemoryKind::kDevice ? rt.device_addresses[size_t(device)] : rt.pinned_addresses;
}

void note_freed(uint8_t* begin, const Allocation& allocation, const char* name) {
  auto& freed = runtime().freed;
  if (freed.size() >= kFreedNotes) freed.erase(freed.begin());
  freed[begin] = bytes_text(allocation.bytes) + " of " + allocation.api + ", freed by " + name;
}

size_t room_of(const Allocation& allocation) {
  return room_for(allocation.bytes, allocation.kind == MemoryKind::kDevice ? kDeviceAlignment : kPinnedAlignment);
}

// The addresses may be used again, late.
void give_back(uint8_t* begin, const Allocation& allocation) {
  open_memory();
  set_state(begin, allocation.bytes, ByteState::kFree);
  give_back_pages(begin, room_of(allocation));
  AddressSpace& space = space_of(allocation.device, allocation.kind);
  space.holes.push_back({begin, room_of(allocation)});
  space.hole_bytes += room_of(allocation);
}

// Finds addresses for the allocation and lists it; null if there are none left.
uint8_t* make(const Allocation& allocation) {
  open_memory();  // pages never used before are open anyway
  uint8_t* begin = place(space_of(allocation.device, allocation.kind), room_of(allocation));
  if (begin == nullptr) {
    not_emulated(allocation.api,
                 "the emulator has addresses for 16 GiB per device; set_memory_limit() makes it smaller");
    return nullptr;
  }
  runtime().allocations[begin] = allocation;
  mark_unwritten(begin, allocation.bytes);
  return begin;
}

uint8_t* place_at_end(AddressSpace& space, size_t bytes) {
  uint8_t* begin = space.base + space.used;
  space.used += bytes;
  return begin;
}
}  // namespace

uint8_t* place(AddressSpace& space, size_t bytes) {
  const bool room = space.size - space.used >= bytes;
  if (room && space.hole_bytes < kQuarantine) return place_at_end(space, bytes);
  for (auto hole = space.holes.begin(); hole != space.holes.end(); ++hole) {
    if (hole->bytes < bytes) continue;
    uint8_t* begin = hole->begin;
    AddressSpace::Hole rest{begin + bytes, hole->bytes - bytes};
    space.holes.erase(hole);
    if (rest.bytes != 0) space.holes.push_back(rest);
    space.hole_bytes -= bytes;
    runtime().freed.erase(begin);
    return begin;
  }
  return room ? place_at_end(space, bytes) : nullptr;
}

uint8_t* allocate(int device, size_t bytes, MemoryKind kind, const char* name, void* caller) {
  Device& gpu = runtime().devices[size_t(device)];
  const size_t free_bytes = gpu.memory_limit - std::min(gpu.memory_limit, gpu.memory_used);
  if (kind == MemoryKind::kDevice && bytes > free_bytes) {
    refuse(cudaErrorMemoryAllocation, std::string(name) + ": " + bytes_text(bytes) + " asked, " +
                                          bytes_text(free_bytes) + " of " + bytes_text(gpu.memory_limit) +
                                          " free on device " + std::to_string(device));
    return nullptr;
  }
  uint8_t* begin = make({bytes, kind, device, name, caller});
  if (begin == nullptr) return nullptr;
  if (kind == MemoryKind::kDevice) gpu.memory_used += bytes;
  set_state(begin, bytes, ByteState::kLive);
  memset(begin, 0xff, bytes);                                   // NaN in all float formats
  if (kind == MemoryKind::kPinned) mark_written(begin, bytes);  // the host writes it without telling
  return begin;
}

Allocation* find_allocation(const void* address, uint8_t** begin) {
  auto& all = runtime().allocations;
  auto* byte = static_cast<uint8_t*>(const_cast<void*>(address));
  auto next = all.upper_bound(byte);
  if (next == all.begin()) return nullptr;
  auto& [start, allocation] = *std::prev(next);
  if (byte >= start + std::max<size_t>(allocation.bytes, 1)) return nullptr;
  if (begin != nullptr) *begin = start;
  return &allocation;
}

cudaError_t release(void* address, const char* name) {
  auto* begin = static_cast<uint8_t*>(address);
  auto& all = runtime().allocations;
  auto found = all.find(begin);
  if (found == all.end()) {
    return refuse(cudaErrorInvalidValue,
                  std::string(name) + ": not the start of an allocation: " + describe_address(address));
  }
  Allocation gone = found->second;
  all.erase(found);
  note_freed(begin, gone, name);
  if (gone.kind == MemoryKind::kDevice) runtime().devices[size_t(gone.device)].memory_used -= gone.bytes;
  give_back(begin, gone);
  return cudaSuccess;
}

std::string describe_address(const void* address) {
  std::ostringstream out;
  out << address;
  uint8_t* begin = nullptr;
  if (const Allocation* held = find_allocation(address, &begin)) {
    out << ", byte " << static_cast<const uint8_t*>(address) - begin << " of " << bytes_text(held->bytes) << " of "
        << held->api;
    return out.str();
  }
  const auto& freed = runtime().freed;
  auto next = freed.upper_bound(static_cast<uint8_t*>(const_cast<void*>(address)));
  if (next != freed.begin() && in_arena(address)) {
    auto& [start, note] = *std::prev(next);
    out << ", " << static_cast<const uint8_t*>(address) - start << " bytes after the start of " << note;
    return out.str();
  }
  out << (in_arena(address) ? ", outside all allocations" : ", not from the CUDA runtime");
  return out.str();
}

bool is_pageable(const void* address) { return !in_arena(address); }
bool is_host_memory(const void* address) { return device_of(address) < 0; }

void drop_freed_notes() { runtime().freed.clear(); }

void release_all() {
  Runtime& rt = runtime();
  for (auto& [begin, held] : rt.allocations) give_back(begin, held);
  rt.allocations.clear();
  for (Device& device : runtime().devices) device.memory_used = 0;
}

std::vector<std::string> leaks() {
  Runtime& rt = runtime();
  std::unique_lock lock(rt.mutex);
  std::vector<std::string> lines;
  for (auto& [begin, held] : rt.allocations) {
    lines.push_back(bytes_text(held.bytes) + " of " + site_text(held.api, held.made_at) + " never freed");
  }
  auto list = [&](const char* what, const char* maker, const auto& objects) {
    for (auto& [handle, object] : objects) {
      lines.push_back(std::string(what) + " of " + site_text(maker, object->made_at) + " never destroyed");
    }
  };
  list("stream", "cudaStreamCreate", rt.streams);
  list("event", "cudaEventCreate", rt.events);
  list("graph", "cudaStreamEndCapture", rt.graphs);
  list("executable graph", "cudaGraphInstantiate", rt.executables);
  for (auto& capture : rt.captures) {
    lines.push_back("capture " + std::to_string(capture->id) + " never ended");
  }
  return lines;
}
}  // namespace emu
