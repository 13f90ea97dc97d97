// Stream-ordered allocation: memory becomes usable and unusable at its turn in the stream, and is counted by pools that
// keep what they once reserved until a synchronisation finds it above their release threshold.
#include <algorithm>

#include "emulator/runtime/api.h"

namespace emu {
namespace {
CUmemPoolHandle_st* find_pool(cudaMemPool_t handle, const char* name) {
  Runtime& rt = runtime();
  for (Device& device : rt.devices) {
    if (device.default_pool.get() == handle) return handle;
  }
  auto found = rt.pools.find(handle);
  if (found != rt.pools.end() && !found->second->destroyed) return handle;
  refuse(cudaErrorInvalidValue, std::string(name) + ": not a memory pool, or one that was destroyed");
  return nullptr;
}

void set_reserved(CUmemPoolHandle_st& pool, uint64_t bytes) {
  Device& device = runtime().devices[size_t(pool.device)];
  device.memory_used = device.memory_used - pool.reserved + bytes;
  pool.reserved = bytes;
  pool.reserved_high = std::max(pool.reserved_high, bytes);
}

void drop_if_finished(CUmemPoolHandle_st& pool) {
  if (!pool.destroyed || pool.used != 0) return;
  set_reserved(pool, 0);
  runtime().pools.erase(&pool);
}

cudaError_t charge(CUmemPoolHandle_st& pool, size_t bytes) {
  const Device& device = runtime().devices[size_t(pool.device)];
  const uint64_t needed = pool.used + bytes;
  const uint64_t grown = std::max(needed, pool.reserved) - pool.reserved;
  if (pool.maximum_bytes != 0 && needed > pool.maximum_bytes) {
    return refuse(cudaErrorMemoryAllocation, "cudaMallocAsync: the pool may hold " +
                                                 std::to_string(pool.maximum_bytes) + " bytes, asked for " +
                                                 std::to_string(needed));
  }
  if (grown > device.memory_limit - std::min(device.memory_limit, device.memory_used)) {
    return refuse(cudaErrorMemoryAllocation,
                  "cudaMallocAsync: the pool must grow by " + std::to_string(grown) +
                      " bytes, free: " + std::to_string(device.memory_limit - device.memory_used));
  }
  pool.used = needed;
  pool.used_high = std::max(pool.used_high, pool.used);
  set_reserved(pool, pool.reserved + grown);
  return cudaSuccess;
}

cudaError_t allocate_async(void** out, size_t bytes, CUmemPoolHandle_st& pool, CUstream_st& stream, void* caller) {
  *out = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (cudaError_t error = charge(pool, bytes); error != cudaSuccess) return error;
  uint8_t* begin = allocate_pooled(pool, bytes, caller);
  if (begin == nullptr) return cudaErrorMemoryAllocation;
  if (stream.capture != nullptr) runtime().allocations[begin].graph = stream.capture->graph.get();
  *out = begin;
  return enqueue(stream, AllocateAction{begin, bytes});
}

cudaError_t allocate_on(void** out, size_t bytes, cudaMemPool_t handle, cudaStream_t stream_handle, void* caller) {
  CUstream_st* stream = find_stream(stream_handle, "cudaMallocAsync");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (out == nullptr) return refuse(cudaErrorInvalidValue, "cudaMallocAsync: no place for the pointer");
  if (handle == nullptr) handle = runtime().devices[size_t(stream->device)].current_pool;
  CUmemPoolHandle_st* pool = find_pool(handle, "cudaMallocFromPoolAsync");
  return pool == nullptr ? cudaErrorInvalidValue : allocate_async(out, bytes, *pool, *stream, caller);
}

cudaError_t free_on(void* address, cudaStream_t stream_handle) {
  Runtime& rt = runtime();
  CUstream_st* stream = find_stream(stream_handle, "cudaFreeAsync");
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (address == nullptr) return cudaSuccess;
  auto* begin = static_cast<uint8_t*>(address);
  auto found = rt.allocations.find(begin);
  if (found == rt.allocations.end() || found->second.kind != MemoryKind::kDevice) {
    return refuse(cudaErrorInvalidValue,
                  "cudaFreeAsync: not the start of device memory (freed twice?): " + describe_address(address));
  }
  const size_t bytes = found->second.bytes;
  if (stream->capture != nullptr) return enqueue(*stream, FreeAction{begin, bytes});
  found->second.live_in_graph = false;
  if (found->second.graph == nullptr) retire(begin, "cudaFreeAsync");
  return enqueue(*stream, FreeAction{begin, bytes});
}

// Attributes are 64-bit numbers, except the three reuse policies, which are ints.
cudaError_t access_attribute(CUmemPoolHandle_st& pool, cudaMemPoolAttr attribute, void* value, bool set) {
  if (value == nullptr) return cudaErrorInvalidValue;
  auto policy = [&](int& field) {
    set ? field = *static_cast<int*>(value) : *static_cast<int*>(value) = field;
    return cudaSuccess;
  };
  auto bytes = [&](uint64_t& field, bool settable) {
    auto& number = *static_cast<uint64_t*>(value);
    if (!set) {
      number = field;
      return cudaSuccess;
    }
    if (!settable) return refuse(cudaErrorInvalidValue, "cudaMemPoolSetAttribute: the attribute can only be read");
    field = number;
    return cudaSuccess;
  };
  auto high_mark = [&](uint64_t& field, uint64_t current) {
    if (!set) return bytes(field, true);
    if (*static_cast<uint64_t*>(value) != 0) {
      return refuse(cudaErrorInvalidValue, "cudaMemPoolSetAttribute: a high mark can only be set to 0");
    }
    field = current;
    return cudaSuccess;
  };
  switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
      return policy(pool.reuse_event_dependencies);
    case cudaMemPoolReuseAllowOpportunistic:
      return policy(pool.reuse_opportunistic);
    case cudaMemPoolReuseAllowInternalDependencies:
      return policy(pool.reuse_internal_dependencies);
    case cudaMemPoolAttrReleaseThreshold:
      return bytes(pool.release_threshold, true);
    case cudaMemPoolAttrReservedMemCurrent:
      return bytes(pool.reserved, false);
    case cudaMemPoolAttrReservedMemHigh:
      return high_mark(pool.reserved_high, pool.reserved);
    case cudaMemPoolAttrUsedMemCurrent:
      return bytes(pool.used, false);
    case cudaMemPoolAttrUsedMemHigh:
      return high_mark(pool.used_high, pool.used);
    default:
      return not_emulated("this memory pool attribute", "the eight of CUDA 12 are");
  }
}

cudaError_t create(cudaMemPool_t* out, const cudaMemPoolProps* props, void* caller) {
  if (out == nullptr || props == nullptr) return refuse(cudaErrorInvalidValue, "cudaMemPoolCreate: missing arguments");
  if (props->allocType != cudaMemAllocationTypePinned || props->location.type != cudaMemLocationTypeDevice) {
    return not_emulated("cudaMemPoolCreate outside device memory", "use cudaMemLocationTypeDevice and pinned type");
  }
  if (props->handleTypes != cudaMemHandleTypeNone) {
    return not_emulated("cudaMemPoolCreate with shareable handles", "ranks are threads of one process here");
  }
  if (cudaError_t error = check_device(props->location.id); error != cudaSuccess) return error;
  auto pool = std::make_unique<CUmemPoolHandle_st>();
  pool->device = props->location.id;
  pool->maximum_bytes = props->maxSize;
  pool->made_at = caller;
  *out = pool.get();
  runtime().pools[*out] = std::move(pool);
  return cudaSuccess;
}

template <class Body>
cudaError_t with_pool(const char* name, cudaMemPool_t handle, Body&& body) {
  return api(name, kOrdinary, [&](Runtime& rt) {
    CUmemPoolHandle_st* pool = find_pool(handle, name);
    return pool == nullptr ? cudaErrorInvalidValue : body(rt, *pool);
  });
}

cudaError_t get_pool(const char* name, cudaMemPool_t* out, int device, bool current) {
  return api(name, kOrdinary, [&](Runtime& rt) {
    if (out == nullptr) return cudaErrorInvalidValue;
    if (cudaError_t error = check_device(device); error != cudaSuccess) return error;
    const Device& gpu = rt.devices[size_t(device)];
    *out = current ? gpu.current_pool : gpu.default_pool.get();
    return cudaSuccess;
  });
}
}  // namespace

void uncharge(CUmemPoolHandle_st& pool, size_t bytes) {
  pool.used -= bytes;
  drop_if_finished(pool);
}

void trim_pools(int device) {
  Runtime& rt = runtime();
  auto trim = [](CUmemPoolHandle_st& pool) {
    set_reserved(pool, std::max(pool.used, std::min(pool.reserved, pool.release_threshold)));
  };
  trim(*rt.devices[size_t(device)].default_pool);
  for (auto& [handle, pool] : rt.pools) {
    if (pool->device == device) trim(*pool);
  }
}
}  // namespace emu

using emu::api;
using emu::refuse;
using emu::Runtime;
using emu::with_pool;

extern "C" {
cudaError_t cudaMallocAsync(void** out, size_t bytes, cudaStream_t stream) {
  void* caller = EMU_CALLER;
  return api("cudaMallocAsync", emu::kOrdinary,
             [&](Runtime&) { return emu::allocate_on(out, bytes, nullptr, stream, caller); });
}
cudaError_t cudaMallocFromPoolAsync(void** out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  void* caller = EMU_CALLER;
  return api("cudaMallocFromPoolAsync", emu::kOrdinary, [&](Runtime&) {
    if (pool == nullptr) return refuse(cudaErrorInvalidValue, "cudaMallocFromPoolAsync: no pool given");
    return emu::allocate_on(out, bytes, pool, stream, caller);
  });
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t stream) {
  return api("cudaFreeAsync", emu::kOrdinary, [&](Runtime&) { return emu::free_on(address, stream); });
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* props) {
  void* caller = EMU_CALLER;
  return api("cudaMemPoolCreate", emu::kOrdinary, [&](Runtime&) { return emu::create(pool, props, caller); });
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  return with_pool("cudaMemPoolDestroy", handle, [&](Runtime& rt, CUmemPoolHandle_st& pool) {
    if (pool.is_default) return refuse(cudaErrorInvalidValue, "cudaMemPoolDestroy: the default pool stays");
    emu::Device& device = rt.devices[size_t(pool.device)];
    if (device.current_pool == &pool) device.current_pool = device.default_pool.get();
    pool.destroyed = true;
    emu::drop_if_finished(pool);
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, size_t keep) {
  return with_pool("cudaMemPoolTrimTo", handle, [&](Runtime&, CUmemPoolHandle_st& pool) {
    emu::set_reserved(pool, std::max<uint64_t>(pool.used, std::min<uint64_t>(pool.reserved, keep)));
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return with_pool("cudaMemPoolSetAttribute", handle, [&](Runtime&, CUmemPoolHandle_st& pool) {
    return emu::access_attribute(pool, attribute, value, true);
  });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return with_pool("cudaMemPoolGetAttribute", handle, [&](Runtime&, CUmemPoolHandle_st& pool) {
    return emu::access_attribute(pool, attribute, value, false);
  });
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* list, size_t count) {
  return with_pool("cudaMemPoolSetAccess", handle, [&](Runtime& rt, CUmemPoolHandle_st& pool) {
    for (size_t i = 0; i < count; ++i) {
      const cudaMemAccessDesc& item = list[i];
      if (item.location.type != cudaMemLocationTypeDevice) return cudaErrorInvalidValue;
      if (cudaError_t error = emu::check_device(item.location.id); error != cudaSuccess) return error;
      pool.access[item.location.id] = item.flags;
      // All memory of a device is one range here, so access to one pool is access to the device.
      if (item.flags == cudaMemAccessFlagsProtReadWrite) {
        rt.devices[size_t(item.location.id)].peers |= 1u << pool.device;
      }
    }
    return cudaSuccess;
  });
}
cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t handle, cudaMemLocation* location) {
  return with_pool("cudaMemPoolGetAccess", handle, [&](Runtime&, CUmemPoolHandle_st& pool) {
    if (flags == nullptr || location == nullptr) return cudaErrorInvalidValue;
    auto found = pool.access.find(location->id);
    const bool own = location->id == pool.device;
    *flags = own                          ? cudaMemAccessFlagsProtReadWrite
             : found != pool.access.end() ? found->second
                                          : cudaMemAccessFlagsProtNone;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return emu::get_pool("cudaDeviceGetDefaultMemPool", pool, device, false);
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return emu::get_pool("cudaDeviceGetMemPool", pool, device, true);
}
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t handle) {
  return with_pool("cudaDeviceSetMemPool", handle, [&](Runtime& rt, CUmemPoolHandle_st& pool) {
    if (cudaError_t error = emu::check_device(device); error != cudaSuccess) return error;
    if (pool.device != device) return refuse(cudaErrorInvalidValue, "cudaDeviceSetMemPool: a pool of another device");
    rt.devices[size_t(device)].current_pool = &pool;
    return cudaSuccess;
  });
}
}
