// Emulated PTX instructions, one function each; cuda/ptx/ptx.h spells the same functions as inline PTX for a GPU.
// Shared-memory operands are plain pointers. Instructions that are not declared here are not emulated.
#pragma once
#include <array>
#include <initializer_list>
#include <type_traits>

#include "cuda/host/language.h"
namespace emu::ptx {

// ---- addresses and clusters
uint32_t shared_address(const void* pointer);                  // offset in the block's own shared memory
uint32_t cluster_address(const void* pointer, uint32_t rank);  // the same object's address in another block (mapa)
void cluster_arrive();                                         // barrier.cluster.arrive.release
void cluster_wait();                                           // barrier.cluster.wait.acquire

void store_for_host(uint64_t* to, uint64_t value);  // 64 bits to pinned memory, at system scope

// ---- matrices from shared memory: 8x8 of 16-bit elements, rows of 16 bytes
void load_matrices(uint32_t* registers, int count, bool transpose, const void* row);

// ---- mma.sync: D (fp32) += A B, row by column
enum class MmaType { kBfloat16, kFloat16 };
void mma(float* d, const uint32_t* a, std::array<uint32_t, 2> b, MmaType type);

// ---- ex2.approx.ftz: computed exactly here, but flushed to zero
inline float exp2_approx(float x) {
  const float y = exp2f(x);
  return y < 0x1p-126f ? 0.f : y;
}

// ---- cp.async
void copy_async(void* to, const void* from, unsigned bytes, unsigned valid_bytes);
void copy_async_commit();
void copy_async_wait(unsigned groups_left);

// ---- named barriers, warps, launches
void bar_sync(int id, int threads);
void setmaxnreg(int count);
void griddep_wait();
void griddep_launch();

// ---- mbarrier
void mbar_init(uint64_t* barrier, uint32_t arrivals);
void mbar_arrive(uint64_t* barrier);
void mbar_arrive_remote(uint32_t cluster_address);
void mbar_expect_bytes(uint64_t* barrier, uint32_t bytes);  // arrive.expect_tx
void mbar_wait(uint64_t* barrier, uint32_t parity, bool cluster_scope);
void fence_mbar_init();
void fence_proxy_async();  // shared memory

// ---- TMA: tiles of tensors; coordinates innermost first
struct Coordinates {
  int at[5];
  uint32_t rank;
};
void tma_load(void* to, const CUtensorMap* map, uint64_t* barrier, const Coordinates& tile);
void tma_load_multicast(void* to, const CUtensorMap* map, uint64_t* barrier, uint16_t blocks, const Coordinates& tile);
void tma_store(const CUtensorMap* map, const void* from, const Coordinates& tile);
void bulk_commit();
void bulk_wait_read(unsigned groups_left);

// ---- wgmma: D (64 x n, fp32) = A B + (accumulate ? D : 0)
struct Wgmma {
  MmaType type;
  int n;
  const uint32_t* a_registers;  // null: A comes from shared memory
  uint64_t a, b;                // matrix descriptors
  bool accumulate, a_transposed, b_transposed;
};
struct Registers {  // registers of the running thread
  const void* begin;
  size_t bytes;
};
void wgmma_fence(std::initializer_list<Registers> taken);  // registers that the following wgmmas use
void wgmma(float* d, const Wgmma& operation);
void wgmma_commit();
void wgmma_wait(unsigned groups_left, std::initializer_list<Registers> results);  // results may be read afterwards
// Checks the fields of a matrix descriptor: swizzle as in its upper bits, offsets in bytes.
void check_matrix(const void* tile, unsigned swizzle, uint32_t leading, uint32_t stride);
}  // namespace emu::ptx
