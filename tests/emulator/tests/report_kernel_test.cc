// What the emulated GPU says beyond right and wrong: cost of accesses, bits that depend on the schedule, refusals by
// name, and faults that name kernel, block, thread and line. Not for a real GPU.
#ifndef __CUDACC__
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cuda/ptx/ptx.h"
#include "cuda/ptx/ptx_wgmma.h"
#include "emulator/budget.h"
#include "emulator/runtime/control.h"
#include "emulator/tests/support.h"

namespace athanor::cuda::testing {
namespace {

using emu::Fault;

// out = transposed x, both 32 x 32; through a tile with rows of `Pitch` floats.
template <int Pitch>
__global__ void transpose(const float* x, float* out) {
  SHARED(float, tile, [32 * Pitch]);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (unsigned r = warp; r < 32; r += 4) st4(&tile[r * Pitch + lane], ld4(&x[r * 32 + lane]));
  __syncthreads();
  for (unsigned r = warp; r < 32; r += 4) st4(&out[r * 32 + lane], ld4(&tile[lane * Pitch + r]));
}
__global__ void strided(const float* x, float* out) {  // one sector per lane
  st4(&out[threadIdx.x], ld4(&x[threadIdx.x * 8]));
}

emu::KernelCounters counted(const std::function<void()>& run) {
  emu::reset_kernel_counters();
  emu::count_accesses(true);
  run();
  ok(cudaDeviceSynchronize());
  emu::count_accesses(false);
  const auto all = emu::kernel_counters();
  EXPECT_EQ(all.size(), 1u);
  return all.empty() ? emu::KernelCounters{} : all.begin()->second;
}

template <class Kernel>
emu::KernelCounters count_kernel(Kernel kernel, unsigned threads) {
  Values values;
  DeviceBuffer<float> x(values.vector<float>(1024)), out(1024);
  return counted([&] { ok(launch(kernel, {dim3(1), dim3(threads)}, x.get(), out.get())); });
}

TEST(AccessCounters, BankConflicts) {
  const auto conflicts = count_kernel(transpose<32>, 128), padded = count_kernel(transpose<33>, 128);
  EXPECT_EQ(conflicts.shared_passes_min, 64u);
  EXPECT_EQ(conflicts.shared_passes, 32u + 32 * 32);
  EXPECT_EQ(padded.shared_passes, padded.shared_passes_min);
  EXPECT_EQ(padded.global_sectors, padded.global_sectors_min);
}

TEST(AccessCounters, SectorsOfScatteredReads) {
  const auto c = count_kernel(strided, 32);
  EXPECT_EQ(c.global_requests, 2u);
  EXPECT_EQ(c.global_sectors_min, 4u + 4);
  EXPECT_EQ(c.global_sectors, 32u + 4);
}

TEST(AccessCounters, AreComparedWithABudget) {
  const auto path = std::filesystem::temp_directory_path() / ("budget-" + std::to_string(getpid()));
  emu::KernelCounters c;
  c.global_sectors = 300;
  c.global_sectors_min = c.shared_passes = c.shared_passes_min = 100;
  const auto verdict = [&](const char* line) {
    std::ofstream(path) << "# comment\n" << line << "\n";
    return emu::compare_with_budget(path.string(), {{"some kernel<int, 3>", c}});
  };
  EXPECT_EQ(verdict("3.00 1.00 some kernel<int, 3>"), "");
  EXPECT_NE(verdict("1.00 1.00 some kernel<int, 3>").find("counted  3.00 1.00"), std::string::npos);
  EXPECT_NE(verdict("3.00 2.00 some kernel<int, 3>").find("expected 3.00 2.00"), std::string::npos);
  EXPECT_NE(verdict("3.00 1.00 another").find("does not list"), std::string::npos);
  std::filesystem::remove(path);
}

// ---- bits
template <bool Atomic>
__global__ void sum_all(const float* x, float* out) {
  SHARED(float, parts, [64]);
  const float v = x[threadIdx.x];
  if constexpr (Atomic) {
    atomicAdd(out, v);
  } else {
    parts[threadIdx.x] = v;
    __syncthreads();
    if (threadIdx.x != 0) return;
    float sum = 0;
    for (unsigned i = 0; i < blockDim.x; ++i) sum += parts[i];
    *out += sum;
  }
}
template <bool Atomic>
std::vector<float> run_sum() {
  Values values;
  DeviceBuffer<float> x(values.vector<float>(64)), out(1);
  out.fill(0);
  ok(launch(sum_all<Atomic>, {dim3(1), dim3(64)}, x.get(), out.get()));
  return out.read();
}

TEST(Schedules, KeepTheBitsOfOrderedSums) { EXPECT_TRUE(same_bits_over_schedules<float>(run_sum<false>)); }
TEST(Schedules, ChangeTheBitsOfFloatAtomics) { EXPECT_FALSE(same_bits_over_schedules<float>(run_sum<true>)); }

// ---- refusals and reports
enum Instruction { kTma, kWgmma, kRegisters, kBarrierZero, kOddBarrier };
template <int I>
__global__ void one_instruction(float* out) {
  SHARED(uint64_t, bar, [1]);
  float d[4] = {};
  if constexpr (I == kTma) ptx::tma_load(bar, reinterpret_cast<const CUtensorMap*>(out), bar, 0, 0);
  if constexpr (I == kWgmma) {
    ptx::wgmma_fence();
    ptx::wgmma<bf16>(d, uint64_t{0}, uint64_t{0}, false);
  }
  if constexpr (I == kRegisters) ptx::registers_increase<50>();
  if constexpr (I == kBarrierZero) ptx::bar_sync(0, 32);
  if constexpr (I == kOddBarrier) ptx::bar_sync(1, 33);
  if (threadIdx.x == 0) out[0] = d[0];
}
template <int I>
std::string refusal(const emu::GpuModel& gpu) {
  emu::simulate({gpu});
  DeviceBuffer<float> out(4);
  (void)launch(one_instruction<I>, {dim3(1), dim3(128)}, out.get());
  (void)cudaDeviceSynchronize();
  const std::string text = emu::take_report().text;
  emu::simulate({emu::gpu_h200()});
  return text;
}
void expect_text(const std::string& text, const char* part) {
  EXPECT_NE(text.find(part), std::string::npos) << "in: " << text;
}

TEST(Refusals, NameWhatAGpuDoesNotHave) {
  expect_text(refusal<kTma>(emu::gpu_a100()), "cp.async.bulk.tensor needs compute capability 9.0, this GPU has 8.0");
  expect_text(refusal<kWgmma>(emu::gpu_b200()), "wgmma exists on compute capability 9.0 only, this GPU has 10.0");
}
TEST(Refusals, NameImpossibleArguments) {
  expect_text(refusal<kRegisters>(emu::gpu_h200()), "setmaxnreg 50: a multiple of 8");
  expect_text(refusal<kBarrierZero>(emu::gpu_h200()), "named barrier 0: 1 to 15 exist");
  expect_text(refusal<kOddBarrier>(emu::gpu_h200()), "33 threads; a multiple of 32");
}
TEST(Refusals, LaunchesBeyondTheStamps) {
  if (!emu::kChecking) GTEST_SKIP() << "fast builds keep no stamps";
  DeviceBuffer<float> out(4);
  (void)launch(one_instruction<-1>, {dim3(65537), dim3(1)}, out.get());
  (void)cudaDeviceSynchronize();
  expect_text(emu::take_report().text, "65537 blocks; a checked launch has at most 65536");
}

__global__ void writes_past_the_end(float* out) { st4(&out[blockIdx.x * 32 + threadIdx.x], 1); }

TEST(Reports, NameKernelBlockThreadAndLine) {
  DeviceBuffer<float> out(40);
  (void)launch(writes_past_the_end, {dim3(2), dim3(32)}, out.get());
  EXPECT_NE(cudaDeviceSynchronize(), cudaSuccess);
  const std::string text = emu::take_report().text;
  expect_text(text, "out of bounds: athanor::cuda::testing::(anonymous namespace)::writes_past_the_end block (1,0,0)");
  expect_text(text, "4-byte write");
  if (emu::kChecking) expect_text(text, "report_kernel_test.cc:");  // fast builds may make the store a tail call
}

TEST(Reports, TellWhoWaitsForWhom) {
  DeviceBuffer<uint32_t> flag(1);
  flag.fill(0);
  const auto kernel = +[](uint32_t*) {
    SHARED(uint64_t, bar, [1]);
    if (threadIdx.x == 0) ptx::mbar_init(bar, 2);
    __syncthreads();
    if (threadIdx.x == 1) ptx::mbar_arrive(bar);
    ptx::mbar_wait(bar, 0);
  };
  (void)launch(kernel, {dim3(1), dim3(32)}, flag.get());
  (void)cudaDeviceSynchronize();
  const std::string text = emu::take_report().text;
  expect_text(text, "deadlock");
  expect_text(text, "an mbarrier wait at shared");
  expect_text(text, "32 threads stuck");
}
}  // namespace
}  // namespace athanor::cuda::testing
#endif
