// wgmma: GEMMs of a warpgroup (sm_90a), m64 n8..n256 k16 of bf16 or fp16, fp32 accumulators. Not included by
// cuda/ptx/ptx.h, because it is slow to compile.
// Sequence: wgmma_fence(d, a); wgmma<T>(d, a, ...); ... wgmma_commit(); wgmma_wait<GroupsLeft>(d); then read d.
// The fence must name all registers that the wgmmas use, and the wait those of completed wgmmas: the compiler does not
// know how long wgmma uses a register, and may move other accesses across it.
#pragma once
#include "cuda/ptx/ptx.h"
namespace athanor::cuda::ptx {

// Layout of an operand in shared memory. Major: the contiguous index, k or the rows of A (columns of B).
enum class Major { kK = 0, kRows = 1 };
enum class Swizzle : uint64_t { kNone = 0, k128 = 1, k64 = 2, k32 = 3 };

// Distances in bytes. K-major: `stride` is the distance between groups of 8 rows, `leading` the distance between the
// two 16-byte halves of k (used only without a swizzle). Row-major: with a swizzle, `leading` is the
// distance between atoms along the rows and `stride` the distance between groups of 8 k; without one it is the reverse.
struct TileLayout {
  Swizzle swizzle = Swizzle::k128;
  uint32_t stride = 1024, leading = 16;
};
template <class T>
constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;

#if PTX_SM90A
// tile: aligned to 8 rows of the swizzle, as wgmma and TMA require; without a swizzle to 16 bytes.
PTX_FUNCTION uint64_t matrix_descriptor(const void* tile, TileLayout layout = {}) {
#ifndef __CUDACC__
  emu::ptx::check_matrix(tile, static_cast<unsigned>(layout.swizzle), layout.leading, layout.stride);
#endif
  return static_cast<uint64_t>((shared_address(tile) & 0x3ffff) >> 4) |
         static_cast<uint64_t>(layout.leading >> 4) << 16 | static_cast<uint64_t>(layout.stride >> 4) << 32 |
         static_cast<uint64_t>(layout.swizzle) << 62;
}

#ifdef __CUDACC__
// Compiler barrier for a register: accesses to it are not moved across; emits no instruction.
PTX_FUNCTION void pin(float& r) { asm volatile("" : "+f"(r)); }
PTX_FUNCTION void pin(uint32_t& r) { asm volatile("" : "+r"(r)); }
template <class T, int N>
PTX_FUNCTION void pin(T (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) pin(registers[i]);
}
template <class... Registers>
PTX_FUNCTION void wgmma_fence(Registers&... taken) {
  (pin(taken), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
PTX_FUNCTION void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int GroupsLeft, class... Results>
PTX_FUNCTION void wgmma_wait(Results&... results) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GroupsLeft) : "memory");
  (pin(results), ...);
}
// Delays the next wait until `value`, which must not be negative, is computed. ptxas would move the wait above
// independent arithmetic, which then runs after the wgmmas instead of overlapping them. The branch on `value`, never
// taken, ends the basic block. A trap instead of the sleep would make ptxas spill and serialize the wgmmas.
PTX_FUNCTION void wgmma_wait_after(float value) {
  asm volatile("{.reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p nanosleep.u32 0;}" ::"f"(value) : "memory");
}

// clang-format off
// Accumulators are the operands 0 to R-1 of an instruction with n = 2R.
#define WGMMA_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_D_4 WGMMA_D4(0)
#define WGMMA_D_8 WGMMA_D_4, WGMMA_D4(4)
#define WGMMA_D_12 WGMMA_D_8, WGMMA_D4(8)
#define WGMMA_D_16 WGMMA_D_12, WGMMA_D4(12)
#define WGMMA_D_20 WGMMA_D_16, WGMMA_D4(16)
#define WGMMA_D_24 WGMMA_D_20, WGMMA_D4(20)
#define WGMMA_D_28 WGMMA_D_24, WGMMA_D4(24)
#define WGMMA_D_32 WGMMA_D_28, WGMMA_D4(28)
#define WGMMA_D_36 WGMMA_D_32, WGMMA_D4(32)
#define WGMMA_D_40 WGMMA_D_36, WGMMA_D4(36)
#define WGMMA_D_44 WGMMA_D_40, WGMMA_D4(40)
#define WGMMA_D_48 WGMMA_D_44, WGMMA_D4(44)
#define WGMMA_D_52 WGMMA_D_48, WGMMA_D4(48)
#define WGMMA_D_56 WGMMA_D_52, WGMMA_D4(52)
#define WGMMA_D_60 WGMMA_D_56, WGMMA_D4(56)
#define WGMMA_D_64 WGMMA_D_60, WGMMA_D4(60)
#define WGMMA_D_68 WGMMA_D_64, WGMMA_D4(64)
#define WGMMA_D_72 WGMMA_D_68, WGMMA_D4(68)
#define WGMMA_D_76 WGMMA_D_72, WGMMA_D4(72)
#define WGMMA_D_80 WGMMA_D_76, WGMMA_D4(76)
#define WGMMA_D_84 WGMMA_D_80, WGMMA_D4(80)
#define WGMMA_D_88 WGMMA_D_84, WGMMA_D4(84)
#define WGMMA_D_92 WGMMA_D_88, WGMMA_D4(88)
#define WGMMA_D_96 WGMMA_D_92, WGMMA_D4(92)
#define WGMMA_D_100 WGMMA_D_96, WGMMA_D4(96)
#define WGMMA_D_104 WGMMA_D_100, WGMMA_D4(100)
#define WGMMA_D_108 WGMMA_D_104, WGMMA_D4(104)
#define WGMMA_D_112 WGMMA_D_108, WGMMA_D4(108)
#define WGMMA_D_116 WGMMA_D_112, WGMMA_D4(112)
#define WGMMA_D_120 WGMMA_D_116, WGMMA_D4(116)
#define WGMMA_D_124 WGMMA_D_120, WGMMA_D4(120)
#define WGMMA_D_128 WGMMA_D_124, WGMMA_D4(124)
#define WGMMA_NAMES_4 "%0, %1, %2, %3"
#define WGMMA_NAMES_8 WGMMA_NAMES_4 ", %4, %5, %6, %7"
#define WGMMA_NAMES_12 WGMMA_NAMES_8 ", %8, %9, %10, %11"
#define WGMMA_NAMES_16 WGMMA_NAMES_12 ", %12, %13, %14, %15"
#define WGMMA_NAMES_20 WGMMA_NAMES_16 ", %16, %17, %18, %19"
#define WGMMA_NAMES_24 WGMMA_NAMES_20 ", %20, %21, %22, %23"
#define WGMMA_NAMES_28 WGMMA_NAMES_24 ", %24, %25, %26, %27"
#define WGMMA_NAMES_32 WGMMA_NAMES_28 ", %28, %29, %30, %31"
#define WGMMA_NAMES_36 WGMMA_NAMES_32 ", %32, %33, %34, %35"
#define WGMMA_NAMES_40 WGMMA_NAMES_36 ", %36, %37, %38, %39"
#define WGMMA_NAMES_44 WGMMA_NAMES_40 ", %40, %41, %42, %43"
#define WGMMA_NAMES_48 WGMMA_NAMES_44 ", %44, %45, %46, %47"
#define WGMMA_NAMES_52 WGMMA_NAMES_48 ", %48, %49, %50, %51"
#define WGMMA_NAMES_56 WGMMA_NAMES_52 ", %52, %53, %54, %55"
#define WGMMA_NAMES_60 WGMMA_NAMES_56 ", %56, %57, %58, %59"
#define WGMMA_NAMES_64 WGMMA_NAMES_60 ", %60, %61, %62, %63"
#define WGMMA_NAMES_68 WGMMA_NAMES_64 ", %64, %65, %66, %67"
#define WGMMA_NAMES_72 WGMMA_NAMES_68 ", %68, %69, %70, %71"
#define WGMMA_NAMES_76 WGMMA_NAMES_72 ", %72, %73, %74, %75"
#define WGMMA_NAMES_80 WGMMA_NAMES_76 ", %76, %77, %78, %79"
#define WGMMA_NAMES_84 WGMMA_NAMES_80 ", %80, %81, %82, %83"
#define WGMMA_NAMES_88 WGMMA_NAMES_84 ", %84, %85, %86, %87"
#define WGMMA_NAMES_92 WGMMA_NAMES_88 ", %88, %89, %90, %91"
#define WGMMA_NAMES_96 WGMMA_NAMES_92 ", %92, %93, %94, %95"
#define WGMMA_NAMES_100 WGMMA_NAMES_96 ", %96, %97, %98, %99"
#define WGMMA_NAMES_104 WGMMA_NAMES_100 ", %100, %101, %102, %103"
#define WGMMA_NAMES_108 WGMMA_NAMES_104 ", %104, %105, %106, %107"
#define WGMMA_NAMES_112 WGMMA_NAMES_108 ", %108, %109, %110, %111"
#define WGMMA_NAMES_116 WGMMA_NAMES_112 ", %112, %113, %114, %115"
#define WGMMA_NAMES_120 WGMMA_NAMES_116 ", %116, %117, %118, %119"
#define WGMMA_NAMES_124 WGMMA_NAMES_120 ", %120, %121, %122, %123"
#define WGMMA_NAMES_128 WGMMA_NAMES_124 ", %124, %125, %126, %127"

// p0, p1, ...: the names of the operands after the accumulators; transpose flags are at the end.
#define WGMMA_SS(n, r, type, p0, p1, p2, p3, p4)                                                                      \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " p2 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " {" WGMMA_NAMES_##r "}, " p0 ", " p1 ", p, 1, 1, " p3 ", " p4 ";}"                                    \
               : WGMMA_D_##r : "l"(a), "l"(b), "r"(int(accumulate)), "n"(int(AMajor)), "n"(int(BMajor)))
#define WGMMA_RS(n, r, type, p0, p1, p2, p3, p4, p5, p6)                                                              \
  asm volatile("{.reg .pred p; setp.ne.b32 p, " p5 ", 0; wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type \
               " {" WGMMA_NAMES_##r "}, {" p0 ", " p1 ", " p2 ", " p3 "}, " p4 ", p, 1, 1, " p6 ";}"                  \
               : WGMMA_D_##r                                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)), "n"(int(BMajor)))

#define WGMMA_CASE(n, r, p0, p1, p2, p3, p4, p5, p6)                                        \
  if constexpr (R == r) {                                                                   \
    if constexpr (kBf16<T>) WGMMA_SS(n, r, "bf16", p0, p1, p2, p3, p4);                     \
    else WGMMA_SS(n, r, "f16", p0, p1, p2, p3, p4);                                         \
  }
#define WGMMA_CASE_REGISTERS(n, r, p0, p1, p2, p3, p4, p5, p6)                              \
  if constexpr (R == r) {                                                                   \
    if constexpr (kBf16<T>) WGMMA_RS(n, r, "bf16", p0, p1, p2, p3, p4, p5, p6);             \
    else WGMMA_RS(n, r, "f16", p0, p1, p2, p3, p4, p5, p6);                                 \
  }
#define WGMMA_ALL(CASE) \
  CASE(8, 4, "%4", "%5", "%6", "%7", "%8", "%9", "%10") \
  CASE(16, 8, "%8", "%9", "%10", "%11", "%12", "%13", "%14") \
  CASE(24, 12, "%12", "%13", "%14", "%15", "%16", "%17", "%18") \
  CASE(32, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22") \
  CASE(40, 20, "%20", "%21", "%22", "%23", "%24", "%25", "%26") \
  CASE(48, 24, "%24", "%25", "%26", "%27", "%28", "%29", "%30") \
  CASE(56, 28, "%28", "%29", "%30", "%31", "%32", "%33", "%34") \
  CASE(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38") \
  CASE(72, 36, "%36", "%37", "%38", "%39", "%40", "%41", "%42") \
  CASE(80, 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46") \
  CASE(88, 44, "%44", "%45", "%46", "%47", "%48", "%49", "%50") \
  CASE(96, 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54") \
  CASE(104, 52, "%52", "%53", "%54", "%55", "%56", "%57", "%58") \
  CASE(112, 56, "%56", "%57", "%58", "%59", "%60", "%61", "%62") \
  CASE(120, 60, "%60", "%61", "%62", "%63", "%64", "%65", "%66") \
  CASE(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70") \
  CASE(136, 68, "%68", "%69", "%70", "%71", "%72", "%73", "%74") \
  CASE(144, 72, "%72", "%73", "%74", "%75", "%76", "%77", "%78") \
  CASE(152, 76, "%76", "%77", "%78", "%79", "%80", "%81", "%82") \
  CASE(160, 80, "%80", "%81", "%82", "%83", "%84", "%85", "%86") \
  CASE(168, 84, "%84", "%85", "%86", "%87", "%88", "%89", "%90") \
  CASE(176, 88, "%88", "%89", "%90", "%91", "%92", "%93", "%94") \
  CASE(184, 92, "%92", "%93", "%94", "%95", "%96", "%97", "%98") \
  CASE(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102") \
  CASE(200, 100, "%100", "%101", "%102", "%103", "%104", "%105", "%106") \
  CASE(208, 104, "%104", "%105", "%106", "%107", "%108", "%109", "%110") \
  CASE(216, 108, "%108", "%109", "%110", "%111", "%112", "%113", "%114") \
  CASE(224, 112, "%112", "%113", "%114", "%115", "%116", "%117", "%118") \
  CASE(232, 116, "%116", "%117", "%118", "%119", "%120", "%121", "%122") \
  CASE(240, 120, "%120", "%121", "%122", "%123", "%124", "%125", "%126") \
  CASE(248, 124, "%124", "%125", "%126", "%127", "%128", "%129", "%130") \
  CASE(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
// clang-format on

// D [64, 2R] = A B + (accumulate ? D : 0), both operands in shared memory.
template <class T, Major AMajor = Major::kK, Major BMajor = Major::kK, int R>
PTX_FUNCTION void wgmma(float (&d)[R], uint64_t a, uint64_t b, bool accumulate) {
  static_assert(sizeof(T) == 2 && R % 4 == 0 && R <= 128, "wgmma: 16-bit types, n is a multiple of 8 up to 256");
  WGMMA_ALL(WGMMA_CASE)
}
// A in registers, in the layout of mma.sync with 16 rows per warp.
template <class T, Major BMajor = Major::kK, int R>
PTX_FUNCTION void wgmma(float (&d)[R], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  static_assert(sizeof(T) == 2 && R % 4 == 0 && R <= 128, "wgmma: 16-bit types, n is a multiple of 8 up to 256");
  WGMMA_ALL(WGMMA_CASE_REGISTERS)
}

#else  // the emulated GPU
using emu::ptx::wgmma_commit;
template <class... Registers>
void wgmma_fence(Registers&... taken) {
  emu::ptx::wgmma_fence({{&taken, sizeof taken}...});
}
template <int GroupsLeft, class... Results>
void wgmma_wait(Results&... results) {
  emu::ptx::wgmma_wait(GroupsLeft, {{&results, sizeof results}...});
}
inline void wgmma_wait_after(float) {}
template <class Register>
void pin(Register&) {}
template <class T>
constexpr emu::ptx::MmaType kMmaType = kBf16<T> ? emu::ptx::MmaType::kBfloat16 : emu::ptx::MmaType::kFloat16;
template <class T, Major AMajor = Major::kK, Major BMajor = Major::kK, int R>
void wgmma(float (&d)[R], uint64_t a, uint64_t b, bool accumulate) {
  emu::ptx::wgmma(d, {kMmaType<T>, 2 * R, nullptr, a, b, accumulate, AMajor == Major::kRows, BMajor == Major::kRows});
}
template <class T, Major BMajor = Major::kK, int R>
void wgmma(float (&d)[R], const uint32_t (&a)[4], uint64_t b, bool accumulate) {
  emu::ptx::wgmma(d, {kMmaType<T>, 2 * R, a, 0, b, accumulate, false, BMajor == Major::kRows});
}
#endif
#endif
}  // namespace athanor::cuda::ptx
