// Ranks over NCCL as threads of one process, for the tests of this folder. On the emulated GPU every rank has its own
// GPU, and NCCL is a fake; on a real one all ranks share the GPU if NCCL permits (NCCL_MULTI_RANK_GPU_ENABLE=1, 2.30 or
// later).
#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/threads.h"
#include "cuda/libraries/open.h"
#include "cuda/libraries/specs.h"
#include "cuda/make_cuda.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/emulator.h"
#include "emulator/libraries/nccl/fake_nccl.h"
#include "emulator/runtime/control.h"
#endif

namespace athanor::testing {

// Replaces the rendezvous, by which ranks in separate processes learn of failures.
struct Board {
  std::mutex mutex;
  std::string failure;
  void tell(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (failure.empty()) failure = why;
  }
  std::string told() {
    const std::lock_guard lock(mutex);
    return failure;
  }
  NcclOptions options(int rank, std::function<double()> timeout) {
    NcclOptions o;
    o.place = [rank] { return cat("rank ", rank, " (here) at step 3"); };
    o.timeout = std::move(timeout);
    o.fail = [this, rank](const std::string& why) { tell(cat("rank ", rank, " failed: ", why)); };
    o.failure = [this] { return told(); };
    return o;
  }
};

struct Rank {
  CudaBackend cuda;
  std::unique_ptr<Communicator> nccl;

  Tensor upload(const std::vector<std::byte>& bytes, DType dtype) {
    void* memory = cuda.device->allocate(bytes.size(), Mem::device);
    blocks.push_back({memory, bytes.size()});
    cuda.device->copy(memory, bytes.data(), bytes.size(), Stream::compute);
    cuda.device->sync();
    return {memory, dtype, {int64_t(bytes.size() / size_of(dtype))}};
  }
  std::vector<std::byte> read(const Tensor& t) {
    std::vector<std::byte> bytes(t.bytes());
    cuda.device->sync();
    cuda.device->copy(bytes.data(), t.data, t.bytes(), Stream::compute);
    cuda.device->sync();
    return bytes;
  }
  // Called before memory is freed, which on a shared GPU waits for the kernels of all ranks, and those may wait for
  // this rank.
  void quiet(Communicator& hosts, Board& board) {
    if (!board.told().empty()) return;  // some rank has left already
    cuda.device->sync();
    hosts.barrier();
  }
  void free_blocks() {
    for (const auto& [memory, bytes] : blocks) cuda.device->release(memory, bytes, Mem::device);
    blocks.clear();
  }
  std::vector<std::pair<void*, size_t>> blocks;
};

class Nccl : public ::testing::Test {
 protected:
  static constexpr int kMostRanks = 4;
  static constexpr double kAmple = 120;  // timeout in seconds for everything that is expected to succeed

  void SetUp() override { prepare(kMostRanks); }
  // Skips the test if there is no GPU, or NCCL does not allow this many ranks.
  void prepare([[maybe_unused]] int ranks) {
#ifdef ATHANOR_EMULATED_GPU
    (void)emu::take_report();
    emu::simulate(std::vector<emu::GpuModel>(kMostRanks, emu::gpu_h200()));
    emu::seed(++schedule_);
#else
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
    const char* shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    if (count < ranks && (!shared || std::string(shared) != "1"))
      GTEST_SKIP() << count << " GPUs, and NCCL_MULTI_RANK_GPU_ENABLE is not 1";
    try {
      const auto nccl = open_nccl(search_places(library_specs()));
      if (count < ranks && nccl.library.version < Version{2, 30, 0})
        GTEST_SKIP() << "NCCL " << nccl.library.version << " wants a GPU for each rank; 2.30 may share one";
    } catch (const Error& e) {
      GTEST_SKIP() << e.what();
    }
#endif
  }
  void TearDown() override {
#ifdef ATHANOR_EMULATED_GPU
    const emu::Report report = emu::take_report();
    EXPECT_EQ(report.fault, emu::Fault::kNone) << report.text;
    EXPECT_EQ(fake_leaks(), std::vector<std::string>{});
    emu::simulate({emu::gpu_h200()});
#endif
  }

  // Runs `body` on each rank, in a thread with a GPU, an NCCL communicator and a host communicator.
  void run(
      int ranks, const std::function<void(Rank&, Communicator& hosts)>& body,
      const std::function<double()>& timeout = [] { return kAmple; }) {
    board_.failure.clear();
    run_ranks(ranks, [&](std::unique_ptr<Communicator> hosts) {
      int count = 0;
      ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
      Rank rank{make_cuda({.index = hosts->rank() % count}), nullptr, {}};
      std::unique_ptr<Communicator> control = hosts->split(0, hosts->rank());
      if (observe_) control = observe_(std::move(control));
      rank.nccl = make_nccl(*rank.cuda.device, board_.options(hosts->rank(), timeout), std::move(control)).world;
      body(rank, *hosts);
      rank.quiet(*hosts, board_);
      rank.free_blocks();
    });
  }

  Board board_;
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)> observe_;  // wraps NCCL's host side
#ifdef ATHANOR_EMULATED_GPU
  static emu::fakes::FakeNccl& fake() {
    (void)open_nccl({});  // creates the fake
    return emu::fakes::Installed<emu::fakes::FakeNccl>::get();
  }
  static std::vector<std::string> fake_leaks() { return fake().leaks(); }
  static inline uint64_t schedule_ = 0;
#endif
};

}  // namespace athanor::testing
