// CUDA features that kernels must not use: each is a compile error that names the alternative.
#pragma once
namespace emu {
template <class...>
constexpr bool kNever = false;
}

#define EMU_REFUSE(name, remedy)                                                            \
  template <class... Arguments>                                                             \
  inline unsigned name(Arguments...) {                                                      \
    static_assert(emu::kNever<Arguments...>, #name " is refused by the emulator: " remedy); \
    return 0;                                                                               \
  }
EMU_REFUSE(__shfl, "use __shfl_sync with the exact mask")
EMU_REFUSE(__any, "use __any_sync with the exact mask")
EMU_REFUSE(__all, "use __all_sync with the exact mask")
EMU_REFUSE(__ballot, "use __ballot_sync with the exact mask")
EMU_REFUSE(clock64, "time does not exist here; measure on a GPU")
EMU_REFUSE(__nanosleep, "blocks do not wait for each other; within one use barriers or mbarriers")
EMU_REFUSE(tex1Dfetch, "textures are not emulated; use plain loads")
EMU_REFUSE(tex2D, "textures are not emulated; use plain loads")
EMU_REFUSE(surf2Dwrite, "surfaces are not emulated; use plain stores")
EMU_REFUSE(atomicAdd_block, "scoped atomics are not emulated; use atomicAdd")
EMU_REFUSE(atomicAdd_system, "scoped atomics are not emulated; use atomicAdd")
EMU_REFUSE(__pipeline_memcpy_async, "use cp_async16 of cuda/ptx/ptx.h")
EMU_REFUSE(__nv_isGlobal, "address space queries are not emulated")
#undef EMU_REFUSE
inline unsigned __activemask_is_refused_use_the_exact_mask() = delete;
#define __activemask() __activemask_is_refused_use_the_exact_mask()  // no arguments, so it cannot be a template
