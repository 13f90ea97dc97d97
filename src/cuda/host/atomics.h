// Atomic operations. All are relaxed: a release needs __threadfence() before it, an acquire one after it.
#pragma once
#include <type_traits>

#include "cuda/host/access.h"
namespace emu {

// For the race checker. atomic_publishes(): a release fence before the atomic publishes earlier accesses by it.
// atomic_collects(): an acquire fence after the atomic may take what was published. They are called in this order
// around the atomic, so that any value that can be read has been published.
void atomic_publishes(const void* address);
void atomic_collects(const void* address);

template <class T>
constexpr bool kAtomicType =
    std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long> ||
    std::is_same_v<T, unsigned long> || std::is_same_v<T, long long> || std::is_same_v<T, float> ||
    std::is_same_v<T, double> || std::is_same_v<T, __half> || std::is_same_v<T, __half2> ||
    std::is_same_v<T, __nv_bfloat16> || std::is_same_v<T, __nv_bfloat162> || std::is_same_v<T, unsigned short>;
template <class T>
constexpr bool kAtomicInteger = kAtomicType<T>&& std::is_integral_v<T>;

template <class T, class F>
EMU_UNINSTRUMENTED T read_modify_write(T* address, F change) {
  static_assert(kAtomicType<T>, "no GPU has this atomic: it is refused");
  const void* caller = __builtin_return_address(0);
  check_aligned(address, sizeof(T), "atomic", caller);
  note(address, sizeof(T), kWrite | kAtomic, caller);
  atomic_publishes(address);
  T old, desired;
  __atomic_load(address, &old, __ATOMIC_ACQUIRE);
  do {
    desired = change(old);
  } while (!__atomic_compare_exchange(address, &old, &desired, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
  atomic_collects(address);
  return old;
}
}  // namespace emu

template <class T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
  return emu::read_modify_write(p, [=](T old) { return T(old + v); });
}
// Vectors are atomic element by element, as on sm_90.
inline float2 atomicAdd(float2* p, float2 v) { return {atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y)}; }
inline float4 atomicAdd(float4* p, float4 v) {
  return {atomicAdd(&p->x, v.x), atomicAdd(&p->y, v.y), atomicAdd(&p->z, v.z), atomicAdd(&p->w, v.w)};
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> v) {
  static_assert(emu::kAtomicInteger<T>, "atomicMax: integers only");
  return emu::read_modify_write(p, [=](T old) { return old > v ? old : v; });
}
template <class T>
T atomicMin(T* p, std::type_identity_t<T> v) {
  static_assert(emu::kAtomicInteger<T>, "atomicMin: integers only");
  return emu::read_modify_write(p, [=](T old) { return old < v ? old : v; });
}
inline unsigned atomicInc(unsigned* p, unsigned limit) {
  return emu::read_modify_write(p, [=](unsigned old) { return old >= limit ? 0u : old + 1; });
}
