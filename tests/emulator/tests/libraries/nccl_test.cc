// The fake NCCL: ranks as threads, every collective against plain sums, and everything that
// a program must survive: mismatches, hangs, network failures, aborts, ranks that never come.
#include "libraries/nccl/fake_nccl.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstring>
#include <functional>
#include <thread>

#include "base/error.h"
#include "cuda/libraries/open.h"
#include "libraries/simple_machine.h"
#include "random_values.h"

namespace emu::fakes {
namespace {

struct Rank {
  int rank = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};

class Nccl : public testing::Test {
 protected:
  static constexpr int kRanks = 3;
  SimpleMachine machine{8};
  FakeNccl fake{machine.machine()};
  athanor::NcclTable nccl = fake.table();

  // Each rank in a thread of its own, on a device of its own, with a communicator and a stream.
  void run(const std::function<void(Rank&)>& body, ncclConfig_t* config = nullptr, int ranks = kRanks) {
    ncclUniqueId id;
    ASSERT_EQ(nccl.ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([&, r] {
        machine.set_device(r);
        Rank rank{.rank = r, .stream = machine.make_stream()};
        const ncclResult_t result = nccl.ncclCommInitRankConfig(&rank.comm, ranks, id, r, config);
        EXPECT_EQ(result, config && config->blocking == 0 ? ncclInProgress : ncclSuccess) << fake.last_refusal();
        body(rank);
        if (rank.comm) {
          EXPECT_EQ(nccl.ncclCommDestroy(rank.comm), ncclSuccess) << fake.last_refusal();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(fake.leaks().empty());
  }
  ncclResult_t async_error(ncclComm_t comm) {
    ncclResult_t error = ncclSuccess;
    EXPECT_EQ(nccl.ncclCommGetAsyncError(comm, &error), ncclSuccess);
    return error;
  }
  void finish(const Rank& rank) { ASSERT_TRUE(machine.synchronize(rank.stream)) << "rank " << rank.rank; }
  void expect_refusal(const std::string& part) {
    EXPECT_NE(fake.last_refusal().find(part), std::string::npos) << fake.last_refusal();
  }
};

// Whole numbers, so that sums are exact in every type: rank r holds (7 r + i) % 5 - 1 at i.
double value(int rank, int64_t i) { return static_cast<double>((7 * rank + i) % 5 - 1); }

Values make(Element type, int64_t count, int rank) {
  Values values(type, count);
  for (int64_t i = 0; i < count; ++i) values.set(i, value(rank, i));
  return values;
}

double sum(int ranks, int64_t i) {
  double total = 0;
  for (int r = 0; r < ranks; ++r) total += value(r, i);
  return total;
}

TEST_F(Nccl, EveryFunctionOfTheTableIsThere) {
  for_each_function(nccl, [](const char* name, auto function) { EXPECT_NE(function, nullptr) << name; });
  int version = 0;
  EXPECT_EQ(nccl.ncclGetVersion(&version), ncclSuccess);
  EXPECT_EQ(version, NCCL_VERSION_CODE);
}

TEST_F(Nccl, AllReduceInEveryTypeAndOperator) {
  run([&](Rank& r) {
    for (int type = ncclInt8; type < ncclNumTypes; ++type) {
      Element element = nccl_element(static_cast<ncclDataType_t>(type));
      bool is_unsigned = element == Element::kU8 || element == Element::kU32 || element == Element::kU64;
      for (ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin}) {
        Values send = make(element, 33, r.rank), recv(element, 33);
        if (is_unsigned)
          for (int64_t i = 0; i < 33; ++i) send.set(i, value(r.rank, i) + 1);
        ASSERT_EQ(
            nccl.ncclAllReduce(send.data(), recv.data(), 33, static_cast<ncclDataType_t>(type), op, r.comm, r.stream),
            ncclSuccess)
            << fake.last_refusal();
        finish(r);
        for (int64_t i = 0; i < 33; ++i) {
          double want = value(0, i) + is_unsigned;
          for (int other = 1; other < kRanks; ++other) {
            double v = value(other, i) + is_unsigned;
            want = op == ncclSum    ? want + v
                   : op == ncclProd ? want * v
                   : op == ncclMax  ? std::max(want, v)
                                    : std::min(want, v);
          }
          ASSERT_EQ(recv[i], want) << element_name(element) << " op " << int(op) << " at " << i;
        }
      }
    }
  });
}

TEST_F(Nccl, SixteenBitSumsAreRoundedAtEveryHop) {
  run([&](Rank& r) {  // 256 + 1 is 256 in bf16; + 1 again stays 256, though the exact sum is 258
    Values x(Element::kBf16, 1);
    x.set(0, r.rank == 0 ? 256 : 1);
    nccl.ncclAllReduce(x.data(), x.data(), 1, ncclBfloat16, ncclSum, r.comm, r.stream);
    finish(r);
    EXPECT_EQ(x[0], 256);
  });
}

TEST_F(Nccl, ReduceScatterAndAllGatherInPlaceAndNot) {
  run([&](Rank& r) {
    Values send = make(Element::kF32, kRanks * 5, r.rank), part(Element::kF32, 5), all(Element::kF32, kRanks * 5);
    nccl.ncclReduceScatter(send.data(), part.data(), 5, ncclFloat32, ncclSum, r.comm, r.stream);
    nccl.ncclAllGather(part.data(), all.data(), 5, ncclFloat32, r.comm, r.stream);
    finish(r);
    for (int64_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], sum(kRanks, i));
    float* mine = static_cast<float*>(send.data()) + r.rank * 5;
    nccl.ncclReduceScatter(send.data(), mine, 5, ncclFloat32, ncclAvg, r.comm, r.stream);
    nccl.ncclAllGather(mine, send.data(), 5, ncclFloat32, r.comm, r.stream);
    finish(r);
    for (int64_t i = 0; i < send.size(); ++i) EXPECT_NEAR(send[i], sum(kRanks, i) / kRanks, 1e-6);
  });
}

TEST_F(Nccl, BroadcastFromOneRank) {
  run([&](Rank& r) {
    Values x = make(Element::kF32, 6, r.rank), y(Element::kF32, 6);
    nccl.ncclBroadcast(r.rank == 1 ? x.data() : nullptr, y.data(), 6, ncclFloat32, 1, r.comm, r.stream);
    finish(r);
    for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(y[i], value(1, i));
  });
}

TEST_F(Nccl, SendAndReceiveInAGroupGoAroundTheRing) {
  run([&](Rank& r) {
    Values x = make(Element::kF32, 4, r.rank), y(Element::kF32, 4);
    int next = (r.rank + 1) % kRanks, before = (r.rank + kRanks - 1) % kRanks;
    EXPECT_EQ(nccl.ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(nccl.ncclSend(x.data(), 4, ncclFloat32, next, r.comm, r.stream), ncclSuccess);
    EXPECT_EQ(nccl.ncclRecv(y.data(), 4, ncclFloat32, before, r.comm, r.stream), ncclSuccess);
    EXPECT_EQ(machine.pending(r.stream), 0u);
    EXPECT_EQ(nccl.ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(machine.pending(r.stream), 1u);  // one operation
    finish(r);
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(y[i], value(before, i));
  });
}

TEST_F(Nccl, SendThenReceiveWithoutAGroupDeadlocks) {
  run(
      [&](Rank& r) {
        Values x = make(Element::kF32, 4, r.rank), y(Element::kF32, 4);
        nccl.ncclSend(x.data(), 4, ncclFloat32, 1 - r.rank, r.comm, r.stream);
        nccl.ncclRecv(y.data(), 4, ncclFloat32, 1 - r.rank, r.comm, r.stream);
        EXPECT_FALSE(machine.synchronize(r.stream, 0.05));
        EXPECT_EQ(nccl.ncclCommAbort(r.comm), ncclSuccess);
        r.comm = nullptr;
        EXPECT_TRUE(machine.synchronize(r.stream));
      },
      nullptr, 2);
}

TEST_F(Nccl, OperationsOfOneRankKeepTheirOrderAcrossStreams) {
  run([&](Rank& r) {
    cudaStream_t other = machine.make_stream();
    Values x = make(Element::kF32, 4, r.rank), y = make(Element::kF32, 4, r.rank);
    nccl.ncclAllReduce(x.data(), x.data(), 4, ncclFloat32, ncclSum, r.comm, r.stream);
    nccl.ncclAllReduce(y.data(), y.data(), 4, ncclFloat32, ncclMax, r.comm, other);
    // The second stream alone cannot go on: its operation was issued later.
    if (r.rank == 0) {
      EXPECT_FALSE(machine.synchronize(other, 0.01));
    }
    finish(r);
    EXPECT_TRUE(machine.synchronize(other));
    EXPECT_EQ(x[0], sum(kRanks, 0));
    EXPECT_EQ(y[2], std::max({value(0, 2), value(1, 2), value(2, 2)}));
  });
}

TEST_F(Nccl, RanksThatDisagreeGetAnErrorNotAHang) {
  std::barrier queued(kRanks);
  run([&](Rank& r) {
    Values x = make(Element::kF32, 8, r.rank);
    size_t count = r.rank == 2 ? 7 : 8;
    nccl.ncclAllReduce(x.data(), x.data(), count, ncclFloat32, ncclSum, r.comm, r.stream);
    queued.arrive_and_wait();  // a rank that is late would already be told of the failure at its call
    EXPECT_FALSE(machine.synchronize(r.stream, 0.2));
    EXPECT_EQ(async_error(r.comm), ncclInvalidUsage);
    expect_refusal("ncclAllReduce of 8 fp32");
    nccl.ncclCommAbort(r.comm);
    r.comm = nullptr;
    EXPECT_TRUE(machine.synchronize(r.stream));
  });
}

TEST_F(Nccl, AHangEndsOnlyByAbortOfEveryRank) {
  fake.hang(1, 2);
  run([&](Rank& r) {
    Values x = make(Element::kF32, 8, r.rank);
    nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream);
    finish(r);
    nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream);
    EXPECT_FALSE(machine.synchronize(r.stream, 0.1));
    EXPECT_EQ(async_error(r.comm), ncclSuccess);  // a hang is not an error: only a watchdog notices
    EXPECT_EQ(nccl.ncclCommAbort(r.comm), ncclSuccess);
    EXPECT_EQ(nccl.ncclCommAbort(r.comm), ncclInvalidArgument);
    r.comm = nullptr;
    EXPECT_TRUE(machine.synchronize(r.stream));
    EXPECT_EQ(x[0], sum(kRanks, 0));  // the first result, untouched
  });
}

TEST_F(Nccl, ANetworkFailureReachesEveryRank) {
  fake.fail_asynchronously(0, 1, ncclSystemError);
  std::barrier queued(kRanks);
  run([&](Rank& r) {
    Values x = make(Element::kF32, 8, r.rank);
    nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream);
    queued.arrive_and_wait();  // a rank that is late would already be told of the failure at its call
    do EXPECT_FALSE(machine.synchronize(r.stream, 0.05));
    while (async_error(r.comm) == ncclSuccess);  // until rank 0 has started
    EXPECT_EQ(async_error(r.comm), r.rank == 0 ? ncclSystemError : ncclRemoteError);
    EXPECT_NE(nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream), ncclSuccess);
    nccl.ncclCommAbort(r.comm);
    r.comm = nullptr;
  });
}

TEST_F(Nccl, NonBlockingCallsMustBePolled) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  std::atomic<int> refused = 0;
  run(
      [&](Rank& r) {
        auto wait = [&] {
          while (async_error(r.comm) == ncclInProgress) std::this_thread::yield();
          ASSERT_EQ(async_error(r.comm), ncclSuccess);
        };
        wait();
        Values x = make(Element::kF32, 8, r.rank);
        EXPECT_EQ(nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream), ncclInProgress);
        if (nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream) == ncclInvalidArgument)
          ++refused;
        wait();
        finish(r);
        EXPECT_EQ(x[0], sum(kRanks, 0));
        EXPECT_EQ(nccl.ncclCommFinalize(r.comm), ncclInProgress);
        wait();
      },
      &config);
  EXPECT_EQ(refused, kRanks);
  expect_refusal("poll ncclCommGetAsyncError");
}

TEST_F(Nccl, FinalizeFlushesAndEndsTheCommunicator) {
  run([&](Rank& r) {
    Values x = make(Element::kF32, 8, r.rank);
    nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream);
    EXPECT_EQ(nccl.ncclCommFinalize(r.comm), ncclSuccess) << fake.last_refusal();
    EXPECT_EQ(x[0], sum(kRanks, 0));
    EXPECT_EQ(nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream), ncclInvalidUsage);
    EXPECT_EQ(nccl.ncclCommFinalize(r.comm), ncclInvalidArgument);
  });
}

TEST_F(Nccl, WrongArguments) {
  run([&](Rank& r) {
    Values x = make(Element::kF32, 30, r.rank);
    float* p = static_cast<float*>(x.data());
    auto reduce = [&](const void* send, void* recv, int type, int op, ncclComm_t comm, cudaStream_t stream) {
      return nccl.ncclAllReduce(send, recv, 8, static_cast<ncclDataType_t>(type), static_cast<ncclRedOp_t>(op), comm,
                                stream);
    };
    EXPECT_EQ(reduce(nullptr, p, ncclFloat32, ncclSum, r.comm, r.stream), ncclInvalidArgument);
    EXPECT_EQ(reduce(p, nullptr, ncclFloat32, ncclSum, r.comm, r.stream), ncclInvalidArgument);
    EXPECT_EQ(reduce(p, p, 12, ncclSum, r.comm, r.stream), ncclInvalidArgument);
    EXPECT_EQ(reduce(p, p, ncclFloat32, 55, r.comm, r.stream), ncclInvalidArgument);
    EXPECT_EQ(reduce(p, p, ncclFloat32, -1, r.comm, r.stream), ncclInvalidArgument);
    EXPECT_EQ(reduce(p, p, ncclFloat32, ncclSum, nullptr, r.stream), ncclInvalidArgument);
    EXPECT_EQ(reduce(p, p + 4, ncclFloat32, ncclSum, r.comm, r.stream), ncclInvalidUsage);
    EXPECT_EQ(nccl.ncclBroadcast(p, p, 8, ncclFloat32, kRanks, r.comm, r.stream), ncclInvalidArgument);
    EXPECT_EQ(nccl.ncclSend(p, 8, ncclFloat32, -1, r.comm, r.stream), ncclInvalidArgument);
    EXPECT_EQ(nccl.ncclReduceScatter(p, p + 1, 8, ncclFloat32, ncclSum, r.comm, r.stream), ncclInvalidUsage);
    machine.set_device(7);
    cudaStream_t foreign = machine.make_stream();
    machine.set_device(r.rank);
    EXPECT_EQ(reduce(p, p, ncclFloat32, ncclSum, r.comm, foreign), ncclUnhandledCudaError);
    EXPECT_EQ(machine.pending(r.stream), 0u);  // nothing of this was queued
  });
  EXPECT_EQ(nccl.ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_EQ(nccl.ncclGetUniqueId(nullptr), ncclInvalidArgument);
}

TEST_F(Nccl, AnErrorInAGroupComesBackAtItsEndAndNothingStarts) {
  run([&](Rank& r) {
    Values x = make(Element::kF32, 8, r.rank);
    nccl.ncclGroupStart();
    EXPECT_EQ(nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream), ncclSuccess);
    EXPECT_EQ(nccl.ncclBroadcast(x.data(), x.data(), 8, ncclFloat32, 99, r.comm, r.stream), ncclInvalidArgument);
    EXPECT_EQ(nccl.ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_EQ(machine.pending(r.stream), 0u);
  });
}

TEST_F(Nccl, Fp8ReductionsNeedHopper) {
  machine.describe_devices({.major = 8, .minor = 0, .multiprocessors = 108});
  run([&](Rank& r) {
    Values x(Element::kE4m3, 8);
    EXPECT_EQ(nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat8e4m3, ncclSum, r.comm, r.stream),
              ncclInvalidArgument);
    EXPECT_EQ(nccl.ncclBroadcast(x.data(), x.data(), 8, ncclFloat8e4m3, 0, r.comm, r.stream), ncclSuccess);
    finish(r);
  });
}

TEST_F(Nccl, TwoRanksOnOneDeviceAreRefusedUnlessAllowed) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  for (bool allowed : {false, true}) {
    fake.allow_ranks_to_share_a_device(allowed);
    ncclUniqueId id;
    nccl.ncclGetUniqueId(&id);
    ncclComm_t comms[2];
    for (int r = 0; r < 2; ++r) EXPECT_EQ(nccl.ncclCommInitRankConfig(&comms[r], 2, id, r, &config), ncclInProgress);
    for (ncclComm_t comm : comms) EXPECT_EQ(async_error(comm), allowed ? ncclSuccess : ncclInvalidUsage);
    if (!allowed) expect_refusal("Duplicate GPU detected");
    for (ncclComm_t comm : comms) nccl.ncclCommAbort(comm);
  }
}

TEST_F(Nccl, ARankThatNeverComesIsNamed) {
  fake.set_wait_limit(0.05);
  ncclUniqueId id;
  nccl.ncclGetUniqueId(&id);
  ncclComm_t comm;
  EXPECT_EQ(nccl.ncclCommInitRankConfig(&comm, 3, id, 1, nullptr), ncclSystemError);
  expect_refusal("these ranks never came: 0 2");
  nccl.ncclCommAbort(comm);
  EXPECT_EQ(nccl.ncclCommInitRankConfig(&comm, 0, id, 0, nullptr), ncclInvalidArgument);
  EXPECT_EQ(nccl.ncclCommInitRankConfig(&comm, 3, id, 3, nullptr), ncclInvalidArgument);
  EXPECT_EQ(nccl.ncclCommInitRankConfig(&comm, 3, id, 1, nullptr), ncclInvalidUsage);  // that one is there
  EXPECT_EQ(nccl.ncclCommInitRankConfig(&comm, 2, id, 0, nullptr), ncclInvalidUsage);  // another number of ranks
  ncclUniqueId unknown{};
  EXPECT_EQ(nccl.ncclCommInitRankConfig(&comm, 1, unknown, 0, nullptr), ncclInvalidArgument);
  ncclConfig_t config{};
  EXPECT_EQ(nccl.ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument);
  expect_refusal("NCCL_CONFIG_INITIALIZER");
}

TEST_F(Nccl, MemoryAndRegistrations) {
  run([&](Rank& r) {
    void *memory = nullptr, *handle = nullptr;
    ASSERT_EQ(nccl.ncclMemAlloc(&memory, 8192), ncclSuccess);
    EXPECT_EQ(nccl.ncclCommRegister(r.comm, memory, 4096, &handle), ncclSuccess);
    float* p = static_cast<float*>(memory);
    EXPECT_EQ(nccl.ncclAllReduce(p, p, 1024, ncclFloat32, ncclSum, r.comm, r.stream), ncclSuccess);
    EXPECT_EQ(nccl.ncclAllReduce(p, p, 1025, ncclFloat32, ncclSum, r.comm, r.stream), ncclInvalidUsage);
    finish(r);
    EXPECT_EQ(nccl.ncclCommDestroy(r.comm), ncclInvalidUsage) << "memory is registered";
    EXPECT_EQ(nccl.ncclCommDeregister(r.comm, handle), ncclSuccess);
    EXPECT_EQ(nccl.ncclMemFree(memory), ncclSuccess);
    EXPECT_EQ(nccl.ncclMemFree(memory), ncclInvalidArgument);
  });
}

TEST_F(Nccl, CallsOutsideOfRegisteredMemoryAreCounted) {
  run([&](Rank& r) {
    Values x = make(Element::kF32, 8, r.rank);
    void* handle = nullptr;
    ASSERT_EQ(nccl.ncclCommRegister(r.comm, x.data(), 32, &handle), ncclSuccess);
    EXPECT_EQ(nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream), ncclSuccess);
    finish(r);
    EXPECT_EQ(nccl.ncclCommDeregister(r.comm, handle), ncclSuccess);
  });
  EXPECT_EQ(fake.calls_outside_registered_memory(), 0);
  run([&](Rank& r) {
    Values x = make(Element::kF32, 8, r.rank);
    EXPECT_EQ(nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream), ncclSuccess);
    finish(r);
  });
  EXPECT_EQ(fake.calls_outside_registered_memory(), 2 * kRanks);  // what is sent, and what is received
}

TEST_F(Nccl, PlannedFailures) {
  machine.fail_next("ncclGetUniqueId", 1, ncclSystemError);
  ncclUniqueId id;
  EXPECT_EQ(nccl.ncclGetUniqueId(&id), ncclSystemError);
  run([&](Rank& r) {
    Values x = make(Element::kF32, 8, r.rank);
    if (r.rank != 0) return;
    machine.fail_next("ncclAllReduce", 1, ncclUnhandledCudaError);
    EXPECT_EQ(nccl.ncclAllReduce(x.data(), x.data(), 8, ncclFloat32, ncclSum, r.comm, r.stream),
              ncclUnhandledCudaError);
  });
}

// Error texts, version and null arguments as the installed library gives them (none of this needs a GPU).
TEST_F(Nccl, AnswersAsTheRealLibraryWhereThatNeedsNoGpu) {
  athanor::NcclTable real;
  try {
    real = athanor::open_nccl(athanor::search_places({})).call;
  } catch (const athanor::Error& error) {
    GTEST_SKIP() << error.what();
  }
  for (int code = 0; code <= ncclNumResults; ++code) {
    EXPECT_STREQ(nccl.ncclGetErrorString(static_cast<ncclResult_t>(code)),
                 real.ncclGetErrorString(static_cast<ncclResult_t>(code)));
  }
  EXPECT_EQ(nccl.ncclGetVersion(nullptr), real.ncclGetVersion(nullptr));
  EXPECT_EQ(nccl.ncclGetUniqueId(nullptr), real.ncclGetUniqueId(nullptr));
  EXPECT_EQ(nccl.ncclCommDestroy(nullptr), real.ncclCommDestroy(nullptr));
  EXPECT_EQ(nccl.ncclCommAbort(nullptr), real.ncclCommAbort(nullptr));
}

}  // namespace
}  // namespace emu::fakes
