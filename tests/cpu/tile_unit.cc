#include "tests/cpu/tile_unit.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>
#endif

#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>

namespace athanor {
const Kernels* kernels_amx_bf16();
}  // namespace athanor

namespace athanor::testing {

#if defined(__x86_64__)
namespace {

std::atomic<int64_t> emulated = 0;

// A thread's tiles, as LDTILECFG configured them.
struct TileUnit {
  uint16_t row_bytes[8];
  uint8_t rows[8];
  alignas(64) char tiles[8][kTileRows][kTileBytes];
};
thread_local TileUnit unit;

[[noreturn]] void stop(const char* what) {
  static_cast<void>(!write(2, what, std::strlen(what)));
  std::abort();
}

int tile_of(int number) {
  if (number > 7 || unit.rows[number] == 0) stop("tile_unit: a tile instruction uses a tile that is not configured\n");
  return number;
}

void load_config(const unsigned char* from) {
  std::memset(&unit, 0, sizeof(unit));
  if (from[0] != 1 || from[1] != 0) stop("tile_unit: LDTILECFG expects palette 1 and start row 0\n");
  for (int t = 0; t < 8; ++t) {
    std::memcpy(&unit.row_bytes[t], from + 16 + 2 * t, 2);
    unit.rows[t] = from[48 + t];
    if (unit.row_bytes[t] > kTileBytes || unit.rows[t] > kTileRows || (unit.rows[t] == 0) != (unit.row_bytes[t] == 0))
      stop("tile_unit: LDTILECFG got a tile of impossible size\n");
  }
}

void multiply_tiles(int c, int a, int b) {
  if (unit.row_bytes[a] / 4 != unit.rows[b] || unit.rows[a] != unit.rows[c] || unit.row_bytes[b] != unit.row_bytes[c])
    stop("tile_unit: TDPBF16PS got tiles whose sizes do not match\n");
  tile_product({.c = reinterpret_cast<float*>(unit.tiles[c]),
                .a = reinterpret_cast<const uint32_t*>(unit.tiles[a]),
                .b = reinterpret_cast<const uint32_t*>(unit.tiles[b]),
                .rows = unit.rows[c],
                .cols = unit.row_bytes[c] / 4,
                .units = unit.row_bytes[a] / 4});
}

// A register's value by its number in instructions.
int64_t register_of(const ucontext_t* context, int number) {
  constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return context->uc_mcontext.gregs[kOrder[number]];
}

// An instruction in the three-byte VEX form: C4, then R X B m, then W v L p, opcode, ModRM, and perhaps SIB and
// displacement. [Intel 64 SDM, vol. 2, sec. 2.1 and 2.3]
struct Decoded {
  int map, prefix, opcode, reg, v, rm;
  bool memory;
  char* address;   // base + displacement, without the index
  int64_t stride;  // index << scale
  int64_t length;
};

int32_t displacement(const unsigned char* at, int bytes) {
  int8_t one = 0;
  int32_t four = 0;
  if (bytes == 1) std::memcpy(&one, at, 1);
  if (bytes == 4) std::memcpy(&four, at, 4);
  return bytes == 1 ? one : four;
}

Decoded decode(const unsigned char* at, const ucontext_t* context) {
  const int high_reg = at[1] & 0x80 ? 0 : 8, high_index = at[1] & 0x40 ? 0 : 8, high_base = at[1] & 0x20 ? 0 : 8;
  const int mode = at[4] >> 6, low = at[4] & 7;
  Decoded d{.map = at[1] & 31,
            .prefix = at[2] & 3,
            .opcode = at[3],
            .reg = (at[4] >> 3 & 7) + high_reg,
            .v = ~(at[2] >> 3) & 15,
            .rm = low + high_base,
            .memory = mode != 3,
            .address = nullptr,
            .stride = 0,
            .length = 5};
  if (!d.memory) return d;
  int64_t base = 0;
  int wide = mode == 1 ? 1 : mode == 2 ? 4 : 0;
  bool relative = false;
  if (low == 4) {  // SIB
    const int sib = at[d.length++], index = (sib >> 3 & 7) + high_index;
    if (index != 4) d.stride = register_of(context, index) << (sib >> 6);
    if ((sib & 7) == 5 && mode == 0)
      wide = 4;
    else
      base = register_of(context, (sib & 7) + high_base);
  } else if (low == 5 && mode == 0) {
    relative = true, wide = 4;
  } else {
    base = register_of(context, d.rm);
  }
  base += displacement(at + d.length, wide);
  d.length += wide;
  if (relative) base += reinterpret_cast<int64_t>(at) + d.length;
  d.address = reinterpret_cast<char*>(base);
  return d;
}

enum Prefix : uint8_t { none, operand_size, rep, repne };

// Carries out one instruction; false if it is none of the tile unit's.
bool run(const Decoded& d) {
  if (d.map != 2) return false;
  if (d.opcode == 0x49 && d.prefix == none && d.memory) {  // LDTILECFG
    load_config(reinterpret_cast<const unsigned char*>(d.address));
  } else if (d.opcode == 0x49 && d.prefix == none) {  // TILERELEASE
    std::memset(&unit, 0, sizeof(unit));
  } else if (d.opcode == 0x49 && d.prefix == repne && !d.memory) {  // TILEZERO
    std::memset(unit.tiles[tile_of(d.reg)], 0, sizeof(unit.tiles[0]));
  } else if (d.opcode == 0x4b && d.prefix == repne && d.memory) {  // TILELOADD
    const int t = tile_of(d.reg);
    std::memset(unit.tiles[t], 0, sizeof(unit.tiles[0]));
    for (int r = 0; r < unit.rows[t]; ++r) std::memcpy(unit.tiles[t][r], d.address + r * d.stride, unit.row_bytes[t]);
  } else if (d.opcode == 0x4b && d.prefix == rep && d.memory) {  // TILESTORED
    const int t = tile_of(d.reg);
    for (int r = 0; r < unit.rows[t]; ++r) std::memcpy(d.address + r * d.stride, unit.tiles[t][r], unit.row_bytes[t]);
  } else if (d.opcode == 0x5c && d.prefix == rep && !d.memory) {  // TDPBF16PS
    multiply_tiles(tile_of(d.reg), tile_of(d.rm), tile_of(d.v));
  } else {
    return false;
  }
  return true;
}

void on_illegal_instruction(int, siginfo_t*, void* data) {
  auto* context = static_cast<ucontext_t*>(data);
  greg_t& next = context->uc_mcontext.gregs[REG_RIP];
  const auto* at = reinterpret_cast<const unsigned char*>(next);
  if (at[0] != 0xc4) stop("tile_unit: an illegal instruction that is none of the tile unit's\n");
  const Decoded d = decode(at, context);
  if (!run(d)) stop("tile_unit: an illegal instruction that is none of the tile unit's\n");
  next += d.length;
  emulated.fetch_add(1, std::memory_order_relaxed);
}

float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

}  // namespace

__attribute__((target("fma"), noinline)) void tile_product(const TileProduct& p) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // no exceptions, round to nearest even, denormals are zeros in operands and results
  for (int m = 0; m < p.rows; ++m) {
    float low[16] = {}, high[16] = {};
    for (int k = 0; k < p.units; ++k) {
      const uint32_t x = p.a[m * 16 + k];
      for (int n = 0; n < p.cols; ++n) {
        const uint32_t y = p.b[k * 16 + n];
        low[n] = __builtin_fmaf(float_of(x << 16), float_of(y << 16), low[n]);
        high[n] = __builtin_fmaf(float_of(x & 0xffff0000), float_of(y & 0xffff0000), high[n]);
      }
    }
    for (int n = 0; n < p.cols; ++n) p.c[m * 16 + n] = p.c[m * 16 + n] + (low[n] + high[n]);
  }
  _mm_setcsr(before);
}

std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> all;
  for (const Isa isa : kIsas)
    if (const Kernels* found = kernels_of(isa)) all.push_back(found);
  if (cpu_has(Isa::amx_bf16) || !cpu_has(Isa::avx512_bf16) || !kernels_amx_bf16()) return all;
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGILL, &action, nullptr) == 0;
  }();
  if (installed) all.push_back(kernels_amx_bf16());
  return all;
}

bool tiles_configured() { return unit.rows[0] > 0; }
int64_t emulated_instructions() { return emulated.load(); }
#else
std::vector<const Kernels*> all_kernels() { return {kernels_of(Isa::baseline)}; }
bool tiles_configured() { return false; }
int64_t emulated_instructions() { return 0; }
#endif

}  // namespace athanor::testing
