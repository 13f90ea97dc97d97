// Ranks as threads keep the laws of every transport, and a rank that fails or leaves unblocks the others.
#include "comm/threads.h"

#include <atomic>
#include <limits>
#include <thread>

#include "tests/comm/collective_laws.h"

namespace athanor {
namespace {

using testing::tensor_of;

TEST(Threads, KeepEveryLaw) {
  for (const int ranks : {1, 2, 5}) run_ranks(ranks, [](std::unique_ptr<Communicator> c) { testing::every_law(*c); });
}

TEST(Threads, EveryRankHasItsNumber) {
  std::vector<std::atomic<int>> seen(5);
  run_ranks(5, [&](std::unique_ptr<Communicator> c) {
    EXPECT_EQ(c->size(), 5);
    ++seen[size_t(c->rank())];
  });
  for (const auto& n : seen) EXPECT_EQ(n, 1);
}

// One rank throws; the others, wherever they wait, learn its number and why. The caller gets the first error itself.
TEST(Threads, FailedRankUnblocksAllOthers) {
  using Wait = void (*)(Communicator&);
  const Wait waits[] = {
      [](Communicator& c) { c.barrier(); },
      [](Communicator& c) {
        std::vector<float> x(3);
        c.all_reduce(tensor_of(x), Reduce::sum, Stream::compute);
      },
      [](Communicator& c) {
        std::vector<float> x(3);
        c.recv(tensor_of(x), 1, Stream::compute);
      },
      [](Communicator& c) {
        std::vector<float> x(3);
        c.send(tensor_of(x), 1, Stream::compute);
      },
      [](Communicator& c) { c.split(0, 0); },
  };
  for (const Wait wait : waits) {
    std::atomic<int> told{0};
    try {
      run_ranks(4, [&](std::unique_ptr<Communicator> c) {
        const auto group = c->split(0, 0);
        if (c->rank() == 1) throw Error("the disk is full", Exit::usage);
        try {
          wait(*group);
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), Exit::peer_lost);
          EXPECT_EQ(std::string(e.what()), "rank 1 failed: the disk is full");
          ++told;
          throw;
        }
      });
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_EQ(std::string(e.what()), "the disk is full");
      EXPECT_EQ(e.code(), Exit::usage);
    }
    EXPECT_EQ(told, 3);
  }
}

// A message points into the sender's memory, which is gone once the sender has been stopped.
TEST(Threads, MessageOfAStoppedRankIsNotReceived) {
  std::atomic<bool> left{false};
  EXPECT_THROW(run_ranks(3,
                         [&](std::unique_ptr<Communicator> c) {
                           std::vector<float> x(3);
                           if (c->rank() == 2) throw Error("the disk is full");
                           if (c->rank() == 1) {
                             while (!left) std::this_thread::yield();
                             EXPECT_THROW(c->recv(tensor_of(x), 0, Stream::compute), Error);
                             return;
                           }
                           EXPECT_THROW(c->send(tensor_of(x), 1, Stream::compute), Error);
                           left = true;
                         }),
               Error);
}

TEST(Threads, RankThatEndsEarlyIsReported) {
  try {
    run_ranks(3, [](std::unique_ptr<Communicator> c) {
      if (c->rank() != 2) c->barrier();
    });
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()), "barrier: rank 2 has ended and will never call it");
    EXPECT_EQ(e.code(), Exit::peer_lost);
  }
}

TEST(Threads, MismatchedCallsAreErrors) {
  EXPECT_THROW(run_ranks(2,
                         [](std::unique_ptr<Communicator> c) {
                           std::vector<float> x(c->rank() == 0 ? 3 : 4);
                           c->all_reduce(tensor_of(x), Reduce::sum, Stream::compute);
                         }),
               Error);
  EXPECT_THROW(run_ranks(2,
                         [](std::unique_ptr<Communicator> c) {
                           std::vector<float> x(4), y(2);
                           if (c->rank() == 0)
                             c->all_reduce(tensor_of(x), Reduce::sum, Stream::compute);
                           else
                             c->reduce_scatter(tensor_of(y), tensor_of(x), Reduce::sum, Stream::compute);
                         }),
               Error);
}

TEST(ReduceInOrder, SumsInRankOrderAndRoundsOnce) {
  // (1 + 2^-24) + 2^-24 in f32 loses both; 2^-24 + 2^-24 + 1 keeps them.
  const float one = 1, small = 0x1p-24f;
  float out = 0;
  const void* large_first[] = {&one, &small, &small};
  const void* small_first[] = {&small, &small, &one};
  reduce_in_order(&out, large_first, 1, DType::f32, Reduce::sum);
  EXPECT_EQ(out, 1.0f);
  reduce_in_order(&out, small_first, 1, DType::f32, Reduce::sum);
  EXPECT_EQ(out, 1.0f + 0x1p-23f);
  // 256 + 1 + 1 in bf16 arithmetic stays 256; f32 inside gives 258.
  const bf16 many = from_float<bf16>(256), few = from_float<bf16>(1);
  bf16 sum{};
  const void* halves[] = {&many, &few, &few};
  reduce_in_order(&sum, halves, 1, DType::bf16, Reduce::sum);
  EXPECT_EQ(to_float(sum), 258.0f);
}

TEST(ReduceInOrder, PropagatesNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), one = 1;
  for (const Reduce how : {Reduce::sum, Reduce::avg, Reduce::max}) {
    float out = 0;
    const void* before[] = {&nan, &one};
    reduce_in_order(&out, before, 1, DType::f32, how);
    EXPECT_TRUE(std::isnan(out));
    const void* after[] = {&one, &nan};
    reduce_in_order(&out, after, 1, DType::f32, how);
    EXPECT_TRUE(std::isnan(out));
  }
}

TEST(ReduceInOrder, IntegersHaveNoAverage) {
  const int32_t x = 3;
  int32_t out = 0;
  const void* parts[] = {&x};
  EXPECT_THROW(reduce_in_order(&out, parts, 1, DType::i32, Reduce::avg), Error);
}

}  // namespace
}  // namespace athanor
