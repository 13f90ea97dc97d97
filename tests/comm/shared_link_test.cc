// Ranks of one machine that exchange tensors through shared memory; each is a thread of this process with its own
// rendezvous. The laws of every transport hold, processes without the job's secret are rejected, and a rank that ends
// is named.
#include "comm/shared_link.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/tcp.h"
#include "tests/comm/collective_laws.h"
#include "tests/comm/rig.h"

namespace athanor {
namespace {

using namespace testing;

const std::string kSecret(32, 's');

struct Pair {
  std::unique_ptr<Link> low, high;  // ends of the rank that listens and of the one that dials
};

// Rank 0 of 2 listens; a peer connects that claims to be rank `from` and to know `secret`.
Pair meet(const std::string& secret = kSecret, int from = 1) {
  SharedEntry entry = SharedEntry::listening();
  EXPECT_NE(entry.address(), "");
  entry.open(kSecret, 0, 2);
  Pair pair;
  std::thread dialling([&] { pair.high = dial_shared(entry.address(), secret, from, 0, after(kAmple)); });
  std::vector<pollfd> fds;
  entry.add_to(fds);
  poll(fds.data(), nfds_t(fds.size()), int(kAmple) * 1000);
  for (SharedEntry::Guest& guest : entry.admit()) pair.low = std::move(guest.link);
  dialling.join();
  return pair;
}

Transfer transfer(std::vector<std::byte>& data) {
  return {.peer = 0, .data = data.data(), .header = {.group = 1, .call = 2, .bytes = data.size()}};
}

TEST(SharedMemory, CollectivesKeepEveryLaw) {
  for (const int ranks : {2, 5})
    expect_none(run({.ranks = ranks}, [](Rendezvous& r) { every_law(*make_tcp(r, "", true)); }));
}

// Blocks are larger than a ring, and the last one is uneven.
TEST(SharedMemory, LargeReductionsMatchTcpBitExactly) {
  expect_none(run({.ranks = 3}, [](Rendezvous& r) {
    const auto c = make_tcp(r, "", true);
    const int64_t n = 200003;
    auto x = contribution(c->rank(), n, DType::f32);
    c->all_reduce({x.data(), DType::f32, {n}}, Reduce::sum, Stream::compute);
    EXPECT_EQ(x, expected_reduction(3, n, DType::f32, Reduce::sum));
  }));
}

// A rank that cannot share memory, for example of another user or network namespace, is reached over TCP.
TEST(SharedMemory, RanksThatCannotShareMemoryUseTcp) {
  expect_none(run({.ranks = 3}, [](Rendezvous& r) { every_law(*make_tcp(r, "", r.rank() != 1)); }));
}

TEST(SharedMemory, SenderFillsTheRingAndContinuesAsItIsRead) {
  Pair pair = meet();
  ASSERT_TRUE(pair.low && pair.high);
  std::vector<std::byte> sent(1000003), got(sent.size());
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = std::byte(i * 7);
  Transfer out = transfer(sent), in = transfer(got);
  while (pair.high->push(out) == Link::Outcome::moved) {
  }
  EXPECT_GT(out.done, 0u);
  EXPECT_FALSE(out.ended) << "the ring has no end";
  while (!in.ended) {
    while (pair.low->pull(in, 0) == Link::Outcome::moved && !in.ended) {
    }
    while (!out.ended && pair.high->push(out) == Link::Outcome::moved) {
    }
  }
  EXPECT_EQ(got, sent);
}

// Asynchronous sends end while the receiver computes. A later synchronous send arrives after them, in order of the
// calls.
TEST(SharedMemory, AsynchronousSendsEndBeforeTheyAreReceived) {
  Pair pair = meet();
  ASSERT_TRUE(pair.low && pair.high);
  std::vector<std::byte> first(5000003), second(5000003), third(100), got(first.size());
  for (size_t i = 0; i < first.size(); ++i) first[i] = std::byte(i * 7), second[i] = std::byte(i * 5);
  for (std::vector<std::byte>* data : {&first, &second}) {
    Transfer out = transfer(*data);
    out.started = true;
    while (!out.ended) ASSERT_EQ(pair.high->push(out), Link::Outcome::moved);
  }
  Transfer last = transfer(third);
  while (!last.ended) ASSERT_EQ(pair.high->push(last), Link::Outcome::moved);
  for (const std::vector<std::byte>* data : {&first, &second, &third}) {
    got.assign(data->size(), std::byte{});
    Transfer in = transfer(got);
    while (!in.ended) ASSERT_EQ(pair.low->pull(in, 0), Link::Outcome::moved);
    EXPECT_EQ(got, *data);
  }
}

// A rank that waits is woken by bytes, by space, and by the end of the peer, whose last bytes it still reads.
TEST(SharedMemory, WaitingRankIsWoken) {
  Pair pair = meet();
  ASSERT_TRUE(pair.low && pair.high);
  std::vector<std::byte> sent(100), got(100);
  Transfer out = transfer(sent), in = transfer(got);
  EXPECT_EQ(pair.low->pull(in, 0), Link::Outcome::waiting);
  std::vector<pollfd> fds;
  pair.low->begin_wait(fds, false, true);
  EXPECT_EQ(poll(fds.data(), nfds_t(fds.size()), 0), 0);
  while (!out.ended) ASSERT_EQ(pair.high->push(out), Link::Outcome::moved);
  pair.high = nullptr;
  EXPECT_GT(poll(fds.data(), nfds_t(fds.size()), int(kAmple) * 1000), 0);
  pair.low->end_wait();
  while (!in.ended) ASSERT_EQ(pair.low->pull(in, 0), Link::Outcome::moved);
  Transfer more = transfer(got);
  EXPECT_EQ(pair.low->pull(more, 0), Link::Outcome::closed);
  EXPECT_EQ(pair.low->push(more), Link::Outcome::closed);
}

TEST(SharedMemory, RefusesProcessesOfOtherJobs) {
  EXPECT_FALSE(meet(std::string(32, 'x')).high) << "another secret";
  EXPECT_FALSE(meet(kSecret, 2).high) << "a rank that does not exist";
  EXPECT_FALSE(meet(kSecret, 0).high) << "the rank that listens";
}

TEST(SharedMemory, ConnectsOnlyWithinOneMachineNamespaceAndUser) {
  const std::string here = "boot/net:[1]/user 5 athanor-1";
  EXPECT_TRUE(on_one_machine(here, "boot/net:[1]/user 5 athanor-2"));
  for (const char* other : {"", "reboot/net:[1]/user 5 a", "boot/net:[2]/user 5 a", "boot/net:[1]/user 6 a"}) {
    EXPECT_FALSE(on_one_machine(here, other)) << other;
    EXPECT_FALSE(on_one_machine(other, here)) << other;
  }
  EXPECT_FALSE(on_one_machine("", ""));
}

TEST(SharedMemory, KilledRankIsReportedToAllOthers) {
  const auto errors = run({.ranks = 3}, [](Rendezvous& r) {
    const auto c = make_tcp(r, "", true);
    std::vector<float> x(100000);
    for (int round = 0; round < 100; ++round) {
      if (r.rank() == 1 && round == 3) throw Error("rank 1 has a bad day");
      c->all_reduce({x.data(), DType::f32, {int64_t(x.size())}}, Reduce::sum, Stream::compute);
    }
  });
  expect_all(errors, "rank 1", 1);
}

TEST(SharedMemory, DisagreeingRanksStop) {
  const auto errors = run({.ranks = 2}, [](Rendezvous& r) {
    const auto c = make_tcp(r, "", true);
    std::vector<float> x(200000);
    reporting_errors(r, [&] {
      c->all_reduce({x.data(), DType::f32, {r.rank() == 0 ? 100000 : 200000}}, Reduce::sum, Stream::compute);
    });
  });
  expect_all(errors, "different configurations");
}

}  // namespace
}  // namespace athanor
