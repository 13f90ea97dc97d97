// Collectives over NCCL match those of the threads transport, keep their order in streams and graphs, and any failure
// ends all ranks with one message.
#include <atomic>
#include <chrono>
#include <thread>

#include "cuda/device/cuda_device.h"
#include "cuda/nccl/guard.h"
#include "tests/comm/collective_laws.h"
#include "tests/cuda/train/nccl_rig.h"

namespace athanor {
namespace {

using testing::contribution;
using testing::Nccl;
using testing::Rank;

std::vector<double> numbers(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<double> out;
  for (size_t at = 0; at < bytes.size(); at += size_of(dtype)) {
    const auto load = [&]<class T>(T x) {
      std::memcpy(&x, bytes.data() + at, sizeof x);
      if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
        out.push_back(double(to_float(x)));
      else
        out.push_back(double(x));
    };
    switch (dtype) {
      case DType::f32:
        load(float{});
        break;
      case DType::bf16:
        load(bf16{});
        break;
      case DType::f16:
        load(f16{});
        break;
      case DType::i32:
        load(int32_t{});
        break;
      case DType::u8:
      case DType::f8_e4m3:
      case DType::f8_e5m2:
      case DType::f8_e8m0:
      case DType::f4_e2m1:
        load(uint8_t{});
        break;
      case DType::i64:
        load(int64_t{});
        break;
      case DType::i16:
        load(int16_t{});
        break;
      case DType::f64:
        load(double{});
        break;
    }
  }
  return out;
}

// Tolerance for sums of a few normally distributed values of size 8, in another order.
double tolerance(DType dtype) {
  return dtype == DType::bf16 ? 0.5 : dtype == DType::f16 ? 0.06 : dtype == DType::f32 ? 1e-5 : 0;
}

void expect_same(const std::vector<std::byte>& got, const std::vector<std::byte>& want, DType dtype,
                 const std::string& what) {
  const auto g = numbers(got, dtype), w = numbers(want, dtype);
  ASSERT_EQ(g.size(), w.size()) << what;
  const double most = dtype == DType::f64 ? 1e-12 : tolerance(dtype);
  for (size_t i = 0; i < g.size(); ++i) ASSERT_NEAR(g[i], w[i], most) << what << " at " << i;
}

TEST_F(Nccl, AllReduceMatchesThreads) {
  for (const int ranks : {2, 4})
    run(ranks, [&](Rank& rank, Communicator& hosts) {
      for (const DType dtype : testing::kAllTypes)
        for (const Reduce how : {Reduce::sum, Reduce::avg, Reduce::max})
          for (const int64_t n : {1, 7, 300}) {
            if (how == Reduce::avg && testing::is_integer(dtype)) continue;
            auto want = contribution(hosts.rank(), n, dtype);
            const Tensor x = rank.upload(want, dtype);
            hosts.all_reduce({want.data(), dtype, {n}}, how, Stream::compute);
            rank.nccl->all_reduce(x, how, n == 7 ? Stream::comm : Stream::compute);
            expect_same(rank.read(x), want, dtype, cat("all_reduce ", int(how), " of ", n, " ", dtype));
          }
      int32_t one = 1;
      EXPECT_THROW(rank.nccl->all_reduce({&one, DType::i32, {1}}, Reduce::avg, Stream::compute), Error);
    });
}

TEST_F(Nccl, AllGatherAndReduceScatterMatchThreads) {
  run(4, [&](Rank& rank, Communicator& hosts) {
    for (const DType dtype : testing::kAllTypes)
      for (const bool in_place : {false, true}) {
        const int64_t n = 65, all = n * hosts.size();
        const size_t part = size_t(n) * size_of(dtype);
        auto host_full = contribution(hosts.rank(), all, dtype);
        std::vector<std::byte> host_shard(part), host_gathered(part * size_t(hosts.size()));
        const Tensor full = rank.upload(host_full, dtype);
        const Tensor shard =
            in_place ? full.slice(hosts.rank() * n, (hosts.rank() + 1) * n) : rank.upload(host_shard, dtype);
        const auto before = host_full;
        hosts.reduce_scatter({host_shard.data(), dtype, {n}}, {host_full.data(), dtype, {all}}, Reduce::sum,
                             Stream::compute);
        rank.nccl->reduce_scatter(shard, full, Reduce::sum, Stream::compute);
        expect_same(rank.read(shard), host_shard, dtype, cat("reduce_scatter of ", dtype));
        if (!in_place) {
          EXPECT_EQ(rank.read(full), before) << "the contribution stays as it was";
        }
        hosts.all_gather({host_gathered.data(), dtype, {all}}, {host_shard.data(), dtype, {n}}, Stream::compute);
        rank.nccl->all_gather(full, shard, Stream::compute);
        expect_same(rank.read(full), host_gathered, dtype, cat("all_gather of ", dtype));
      }
    EXPECT_THROW(rank.nccl->all_gather({nullptr, DType::f32, {7}}, {nullptr, DType::f32, {2}}, Stream::compute), Error);
  });
}

// NCCL's own bf16 sums are rounded at every hop; these sum the values of all ranks in rank order and round once.
TEST_F(Nccl, Bf16SumsMatchThreadsBitExactly) {
  for (const int ranks : {2, 3, 4})
    run(ranks, [&](Rank& rank, Communicator& hosts) {
      for (const int64_t n : {1, 7, 65, 5000})
        for (const Stream stream : {Stream::compute, Stream::comm}) {
          const int64_t all = n * ranks;
          const auto want = testing::expected_reduction(ranks, all, DType::bf16, Reduce::sum);
          const auto mine = contribution(hosts.rank(), all, DType::bf16);
          const size_t part = size_t(n) * sizeof(bf16);
          const auto own = want.begin() + std::ptrdiff_t(part) * hosts.rank();
          const std::vector<std::byte> nothing(size_t(rank.nccl->sum_workspace(DType::bf16, all)) * sizeof(bf16));
          const Tensor workspace = rank.upload(nothing, DType::bf16), x = rank.upload(mine, DType::bf16);
          rank.nccl->sum(x, workspace, stream);
          EXPECT_EQ(rank.read(x), want) << n << " on each of " << ranks << " ranks";
          for (const bool in_place : {false, true}) {
            const Tensor full = rank.upload(mine, DType::bf16);
            const Tensor shard = in_place ? full.slice(hosts.rank() * n, (hosts.rank() + 1) * n)
                                          : rank.upload(std::vector<std::byte>(part), DType::bf16);
            rank.nccl->sum_scatter(shard, full, workspace, stream);
            EXPECT_EQ(rank.read(shard), std::vector(own, own + std::ptrdiff_t(part))) << n << " of " << ranks;
          }
        }
      const Tensor few = rank.upload(contribution(hosts.rank(), 3, DType::bf16), DType::bf16);  // some get no part
      const Tensor workspace = rank.upload(std::vector<std::byte>(size_t(64 * ranks)), DType::bf16);
      rank.nccl->sum(few, workspace, Stream::compute);
      EXPECT_EQ(rank.read(few), testing::expected_reduction(ranks, 3, DType::bf16, Reduce::sum));
    });
}

#ifdef ATHANOR_EMULATED_GPU
// Communicators that existed before the memory and those that are created later have it registered.
TEST_F(Nccl, MemoryIsRegisteredWithEveryCommunicator) {
  const int64_t before = fake().calls_outside_registered_memory();
  run(4, [&](Rank& rank, Communicator& hosts) {
    const auto bytes = contribution(hosts.rank(), 64, DType::f32);
    const Tensor early = rank.upload(bytes, DType::f32);
    const auto pair = rank.nccl->split(hosts.rank() / 2, hosts.rank());
    const Tensor late = rank.upload(bytes, DType::f32);
    for (Communicator* group : {rank.nccl.get(), pair.get()})
      for (const Tensor& x : {early, late}) group->all_reduce(x, Reduce::sum, Stream::compute);
    rank.cuda.device->sync();
  });
  EXPECT_EQ(fake().calls_outside_registered_memory(), before);
}
#endif

TEST_F(Nccl, BroadcastSendAndReceiveDeliver) {
  run(3, [&](Rank& rank, Communicator& hosts) {
    const int me = hosts.rank(), next = (me + 1) % 3, before = (me + 2) % 3;
    for (int root = 0; root < 3; ++root) {
      const Tensor x = rank.upload(contribution(me, 50, DType::bf16), DType::bf16);
      rank.nccl->broadcast(x, root, Stream::comm);
      EXPECT_EQ(rank.read(x), contribution(root, 50, DType::bf16));
    }
    const Tensor out = rank.upload(contribution(me, 90, DType::f32), DType::f32);
    const Tensor in = rank.upload(std::vector<std::byte>(360), DType::f32);
    for (int turn = 0; turn < 2; ++turn) {
      if (me % 2 == 0) rank.nccl->send(out, next, Stream::compute);
      rank.nccl->recv(in, before, Stream::compute);
      if (me % 2 == 1) rank.nccl->send(out, next, Stream::compute);
      EXPECT_EQ(rank.read(in), contribution(before, 90, DType::f32));
    }
    if (me < 2) {
      rank.nccl->exchange(out, in, 1 - me, Stream::compute);
      EXPECT_EQ(rank.read(in), contribution(1 - me, 90, DType::f32));
    }
    EXPECT_THROW(rank.nccl->exchange(out, in, 3, Stream::compute), Error);
    EXPECT_THROW(rank.nccl->send(out, me, Stream::compute), Error);
    EXPECT_THROW(rank.nccl->broadcast(out, 3, Stream::compute), Error);
    rank.nccl->barrier();
  });
}

// Parts of all sizes, including empty ones; one tensor is sent to several ranks.
TEST_F(Nccl, AllToAllDeliversEachRankItsPart) {
  run(4, [&](Rank& rank, Communicator& hosts) {
    const int me = hosts.rank();
    const auto size_of_part = [](int from, int to) { return int64_t{50} * ((from * 3 + to) % 4); };
    const Tensor sent = rank.upload(contribution(me, 150, DType::bf16), DType::bf16);
    std::vector<Tensor> out, in;
    for (int r = 0; r < 4; ++r) {
      const int64_t to = size_of_part(me, r), from = size_of_part(r, me);
      out.push_back(to > 0 ? sent.slice(0, to) : Tensor{});
      in.push_back(from > 0 ? rank.upload(std::vector<std::byte>(size_t(from) * 2), DType::bf16) : Tensor{});
    }
    rank.nccl->all_to_all(out, in, Stream::comm);
    rank.nccl->barrier();
    for (int r = 0; r < 4; ++r) {
      if (!in[size_t(r)]) continue;
      auto want = contribution(r, 150, DType::bf16);
      want.resize(in[size_t(r)].bytes());
      EXPECT_EQ(rank.read(in[size_t(r)]), want) << me << " from " << r;
    }
    EXPECT_THROW(rank.nccl->all_to_all(std::span(out).first(3), in, Stream::comm), Error);
  });
}

TEST_F(Nccl, SplitOrdersRanksByKey) {
  run(4, [&](Rank& rank, Communicator& hosts) {
    const int me = hosts.rank();
    const auto pair = rank.nccl->split(me % 2, -me);  // odd and even ranks, in reversed order
    ASSERT_EQ(pair->size(), 2);
    EXPECT_EQ(pair->rank(), me < 2 ? 1 : 0);
    const Tensor x = rank.upload(contribution(me, 9, DType::i32), DType::i32);
    const Tensor both = rank.upload(std::vector<std::byte>(72), DType::i32);
    pair->all_gather(both, x, Stream::compute);
    auto want = contribution(me % 2 + 2, 9, DType::i32);
    const auto second = contribution(me % 2, 9, DType::i32);
    want.insert(want.end(), second.begin(), second.end());
    EXPECT_EQ(rank.read(both), want);
    const auto alone = pair->split(me, 0), again = rank.nccl->split(0, me);
    EXPECT_EQ(alone->size(), 1);
    alone->all_reduce(x, Reduce::sum, Stream::compute);
    for (int turn = 0; turn < 3; ++turn) {  // alternates between several groups
      pair->broadcast(x, 0, Stream::compute);
      again->broadcast(x, 1, Stream::compute);
    }
    EXPECT_EQ(rank.read(x), contribution(3, 9, DType::i32));
  });
}

// Only events order the streams, the host never waits, and a graph repeats everything.
TEST_F(Nccl, StreamsAndGraphsKeepTheOrder) {
  run(2, [&](Rank& rank, Communicator& hosts) {
    Device& device = *rank.cuda.device;
    const std::vector<std::byte> mine = contribution(hosts.rank(), 40, DType::f32);
    const Tensor x = rank.upload(mine, DType::f32), y = rank.upload(mine, DType::f32);
    const Tensor start = rank.upload(mine, DType::f32);
    const auto work = [&] {
      device.copy(x.data, start.data, x.bytes(), Stream::compute);
      device.wait(Stream::comm, *device.record(Stream::compute));
      rank.nccl->all_reduce(x, Reduce::sum, Stream::comm);
      device.wait(Stream::compute, *device.record(Stream::comm));
      device.copy(y.data, x.data, x.bytes(), Stream::compute);
      rank.nccl->all_reduce(y, Reduce::max, Stream::compute);
    };
    const int64_t waits = device.host_waits();
    work();
    device.begin_capture();
    work();
    const auto graph = device.end_capture();
    for (int turn = 0; turn < 3; ++turn) device.launch(*graph);
    EXPECT_EQ(device.host_waits(), waits);
    auto want = mine;
    hosts.all_reduce({want.data(), DType::f32, {40}}, Reduce::sum, Stream::compute);
    expect_same(rank.read(y), want, DType::f32, "replayed");
  });
}

// What can be tested with the library on any machine with a GPU: start, registered memory, eager and captured calls,
// and the destruction of a communicator that a graph still refers to.
class NcclAlone : public Nccl {
 protected:
  void SetUp() override { prepare(1); }
};

TEST_F(NcclAlone, OneRankInitializesReducesAndAborts) {
  board_.failure.clear();
  run_ranks(1, [&](std::unique_ptr<Communicator> hosts) {
    Rank rank{make_cuda({.index = 0}), nullptr, {}};
    Device& device = *rank.cuda.device;
    const NcclTable nccl = open_nccl(search_places(library_specs())).call;
    cuda::NcclGuard guard(nccl, dynamic_cast<cuda::CudaDevice&>(device), board_.options(0, [] { return kAmple; }));
    ncclComm_t comm = guard.open(*hosts);
    constexpr size_t kCount = 64;
    const auto bytes = contribution(0, kCount, DType::f32), zeros = std::vector<std::byte>(bytes.size());
    const Tensor x = rank.upload(bytes, DType::f32), y = rank.upload(zeros, DType::f32);
    const Tensor z = rank.upload(zeros, DType::f32);
    const auto call = [&](const char* what, auto launch) { guard.run(comm, Stream::compute, what, launch); };
    const auto work = [&] {
      call("all_reduce",
           [&](cudaStream_t s) { return nccl.ncclAllReduce(x.data, x.data, kCount, ncclFloat32, ncclSum, comm, s); });
      call("all_gather",
           [&](cudaStream_t s) { return nccl.ncclAllGather(x.data, y.data, kCount, ncclFloat32, comm, s); });
      call("send to itself", [&](cudaStream_t s) {
        (void)nccl.ncclGroupStart();
        (void)nccl.ncclSend(y.data, kCount, ncclFloat32, 0, comm, s);
        (void)nccl.ncclRecv(z.data, kCount, ncclFloat32, 0, comm, s);
        return nccl.ncclGroupEnd();
      });
    };
    work();
    EXPECT_EQ(rank.read(z), bytes) << "eager";
    device.begin_capture();
    work();
    auto graph = device.end_capture();
    device.copy(z.data, zeros.data(), zeros.size(), Stream::compute);
    for (int turn = 0; turn < 3; ++turn) device.launch(*graph);
    EXPECT_EQ(rank.read(z), bytes) << "captured";
    board_.tell("rank 7 is gone");
    const auto begin = std::chrono::steady_clock::now();
    try {
      while (std::chrono::steady_clock::now() - begin < std::chrono::seconds(30)) work();
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::peer_lost) << e.what();
    }
    graph.reset();
    rank.free_blocks();
  });
}

// Failures.

// How a rank ended.
struct End {
  std::string what;
  Exit code = Exit::done;
  double seconds = 0;
};

class NcclFailure : public Nccl {
 protected:
  using BeforeEach = std::function<void(int rank, int turn)>;
  // Three ranks all-reduce as long as that succeeds, either eagerly or in a replayed graph. Once all ranks have reached
  // turn `hasty`, and so finished earlier ones, a collective has a timeout of one second.
  std::vector<End> ends(const BeforeEach& before_each, bool captured, int hasty = 6) {
    std::vector<End> all(3);
    ended_ = came_ = 0;
    run(
        3,
        [&](Rank& rank, Communicator& hosts) {
          Device& device = *rank.cuda.device;
          const Tensor x = rank.upload(contribution(hosts.rank(), 64, DType::f32), DType::f32);
          const auto begin = std::chrono::steady_clock::now();
          std::unique_ptr<Graph> graph;
          End& end = all[size_t(hosts.rank())];
          try {
            for (int turn = 0; turn < 6; ++turn) {
              if (turn == hasty) ++came_;
              before_each(hosts.rank(), turn);
              if (captured && turn == 1) device.begin_capture();
              if (!captured || turn < 2) rank.nccl->all_reduce(x, Reduce::max, Stream::compute);
              if (captured && turn == 1) graph = device.end_capture();
              if (graph) device.launch(*graph);
              device.sync();
            }
          } catch (const Error& e) {
            end.what = e.what(), end.code = e.code();
          }
          end.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
          ++ended_;
          rank.free_blocks();
        },
        [this] { return came_ == 3 ? 1 : kAmple; });
    return all;
  }
  void stay_away() const {
    while (ended_ < 2) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  static void expect_lost(const End& end, std::initializer_list<std::string> parts) {
    EXPECT_EQ(end.code, Exit::peer_lost) << end.what;
    for (const std::string& part : parts)
      EXPECT_NE(end.what.find(part), std::string::npos) << part << " in " << end.what;
    EXPECT_LT(end.seconds, kAmple) << end.what;
  }
  std::atomic<int> ended_{0}, came_{0};
};

TEST_F(NcclFailure, RankThatSkipsACollectiveEndsTheOthersInTime) {
  for (const bool captured : {false, true}) {
    const auto all =
        ends([&](int rank, int turn) { return rank == 2 && turn == 3 ? stay_away() : void(); }, captured, 3);
    for (int r : {0, 1})
      expect_lost(all[size_t(r)],
                  {"all_reduce of [64] f32 over 3 ranks, collective 4", cat("rank ", r, " (here) at step 3")});
    EXPECT_NE((all[0].what + all[1].what).find("has not ended for 1 s"), std::string::npos) << all[0].what;
    expect_lost(all[2], {"has not ended for 1 s", "; rank 2 (here) at step 3, was in "});
  }
}

// As when the rendezvous reports a killed process.
TEST_F(NcclFailure, LostPeerEndsTheOthersAtOnce) {
  const auto all = ends(
      [&](int rank, int turn) {
        if (rank != 2 || turn != 3) return;
        board_.tell("rank 2 is gone: its process ended");
        stay_away();
      },
      false);
  for (int r : {0, 1})
    expect_lost(all[size_t(r)], {"rank 2 is gone: its process ended; rank ", " (here) at step 3, was in "});
}

TEST_F(NcclFailure, InitializationTimesOutOnAMissingRank) {
  try {
    board_.failure.clear();
    run_ranks(3, [&](std::unique_ptr<Communicator> hosts) {
      int count = 0;
      ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
      const CudaBackend cuda = make_cuda({.index = hosts->rank() % count});
      auto control = hosts->split(0, hosts->rank());
      if (hosts->rank() == 2) {
        std::vector<std::byte> id(128);  // sizeof(ncclUniqueId); this rank then hangs
        control->broadcast({id.data(), DType::u8, {128}}, 0, Stream::compute);
        hosts->barrier();
      }
      make_nccl(*cuda.device, board_.options(hosts->rank(), [] { return 1.0; }), std::move(control));
    });
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::peer_lost);
    EXPECT_NE(std::string(e.what()).find("making a communicator of 3 ranks has not ended for 1 s"), std::string::npos)
        << e.what();
  }
}

#ifdef ATHANOR_EMULATED_GPU
TEST_F(NcclFailure, HangingCollectiveIsNamed) {
  for (const bool captured : {false, true}) {
    fake().hang(1, 5);
    for (const End& end : ends([](int, int) {}, captured, 4))
      expect_lost(end, {"all_reduce of [64] f32 over 3 ranks, collective 5", "has not ended for 1 s"});
  }
}

// NCCL frees a communicator when no graph refers to it any more, and not before the device has finished the others.
TEST_F(NcclFailure, GraphsOfSeveralCommunicatorsDoNotBlockShutdown) {
  fake().hang(1, 6);  // in the second replay
  std::atomic<int> came{0};
  run(
      2,
      [&](Rank& rank, Communicator& hosts) {
        Device& device = *rank.cuda.device;
        const auto reversed = rank.nccl->split(0, -hosts.rank());
        const Tensor x = rank.upload(contribution(hosts.rank(), 64, DType::f32), DType::f32);
        const auto work = [&] {
          reversed->all_reduce(x, Reduce::max, Stream::compute);
          rank.nccl->all_reduce(x, Reduce::max, Stream::compute);
        };
        const auto begin = std::chrono::steady_clock::now();
        try {
          work();
          device.begin_capture();
          work();
          const auto graph = device.end_capture();
          for (int turn = 0; turn < 3; ++turn) {
            came += turn == 1;
            device.launch(*graph);
            device.sync();
          }
          ADD_FAILURE() << "no error";
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), Exit::peer_lost) << e.what();
          EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
        }
        rank.free_blocks();
      },
      [&came] { return came == 2 ? 1 : kAmple; });
}

TEST_F(NcclFailure, AsynchronousErrorEndsAllRanks) {
  for (const bool captured : {false, true}) {
    fake().fail_asynchronously(1, 4, ncclSystemError);
    const auto all = ends([](int, int) {}, captured);
    for (const End& end : all) expect_lost(end, {" (here) at step 3", "NCCL: "});
    expect_lost(all[1],
                {"all_reduce of [64] f32 over 3 ranks"});  // others may detect it before their collective begins
  }
}

TEST_F(NcclFailure, FailedInitializationIsNamed) {
  for (const char* function : {"ncclGetUniqueId", "ncclCommInitRank"}) {
    emu::fail_next(function, 1, ncclSystemError);
    try {
      run(3, [](Rank&, Communicator&) {});
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::peer_lost);
      EXPECT_NE(std::string(e.what()).find("NCCL: unhandled system error"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("(here) at step 3: "), std::string::npos) << e.what();
    }
  }
}

TEST_F(NcclFailure, TwoRanksOnOneGpuAreRefusedByNccl) {
  emu::simulate({emu::gpu_h200()});
  try {
    run(2, [](Rank&, Communicator&) {});
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("making a communicator of 2 ranks: NCCL: "), std::string::npos) << e.what();
  }
}
#endif

}  // namespace
}  // namespace athanor
