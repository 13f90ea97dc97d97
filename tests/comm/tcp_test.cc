// Ranks over TCP: threads of this process with a rendezvous each. They keep the laws of every transport; strangers stay
// outside; ranks that are missing, die, hang or disagree are named to all others.
#include "comm/tcp.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <thread>

#include "base/sha256.h"
#include "comm/secret.h"
#include "comm/threads.h"
#include "tests/comm/collective_laws.h"

namespace athanor {
namespace {

using testing::tensor_of;

// A port that was free a moment ago.
int free_port() { return port_of(*listen_on(true, 0)); }

struct Setting {
  int ranks = 3, port = free_port();
  double timeout = 20;
  Timeouts timeouts = {.startup = timeout};
  std::string secret = "a secret of the test";
  int absent = -1;  // a rank that never comes
};

RendezvousOptions options(const Setting& s, int rank) {
  return {.ranks = {.rank = rank, .world = s.ranks, .launcher = "test", .host = "127.0.0.1", .port = s.port},
          .secret = [secret = s.secret] { return secret; },
          .timeout = s.timeout,
          .timeouts = s.timeouts,
          .last_resort = {}};
}

// Runs body on a thread per rank; the errors of all, "" where there was none.
std::vector<std::string> run(const Setting& s, const std::function<void(Rendezvous&)>& body) {
  std::vector<std::string> errors(static_cast<size_t>(s.ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < s.ranks; ++r)
    if (r != s.absent)
      threads.emplace_back([&, r] {
        try {
          Rendezvous rendezvous(options(s, r));
          body(rendezvous);
        } catch (const Error& e) {
          errors[size_t(r)] = cat(int(e.code()), " ", e.what());
        }
      });
  for (std::thread& t : threads) t.join();
  return errors;
}

void expect_all(const std::vector<std::string>& errors, const std::string& part, int except = -1) {
  for (int r = 0; r < int(errors.size()); ++r)
    if (r != except) {
      EXPECT_NE(errors[size_t(r)].find(part), std::string::npos) << r << ": " << errors[size_t(r)];
    }
}

void expect_none(const std::vector<std::string>& errors) { EXPECT_EQ(errors, std::vector<std::string>(errors.size())); }

TEST(Tcp, KeepsEveryLaw) {
  for (const int ranks : {1, 2, 5})
    expect_none(run({.ranks = ranks}, [](Rendezvous& r) { testing::every_law(*make_tcp(r, "")); }));
}

TEST(Tcp, TakesTheInterfaceItIsTold) {
  expect_none(run({.ranks = 2}, [](Rendezvous& r) { make_tcp(r, "lo")->barrier(); }));
}

TEST(Tcp, ReductionsInBlocksAreTheSame) {
  const auto errors = run({.ranks = 3}, [](Rendezvous& r) {
    const auto c = make_tcp(r, "");
    const int64_t n = 600001;  // several blocks, the last one uneven
    auto x = testing::contribution(c->rank(), n, DType::f32);
    c->all_reduce({x.data(), DType::f32, {n}}, Reduce::sum, Lane::compute);
    EXPECT_EQ(x, testing::expected_reduction(3, n, DType::f32, Reduce::sum));
  });
  expect_none(errors);
}

TEST(Rendezvous, ExchangesByNameInRankOrder) {
  const auto errors = run({.ranks = 4}, [](Rendezvous& r) {
    for (int round = 0; round < 20; ++round) {
      const auto all =
          r.exchange(cat("round ", round), cat("value ", r.rank(), std::string(size_t(round) * 5000, 'x')));
      ASSERT_EQ(all.size(), 4u);
      for (int k = 0; k < 4; ++k) EXPECT_EQ(all[size_t(k)], cat("value ", k, std::string(size_t(round) * 5000, 'x')));
    }
  });
  expect_none(errors);
}

TEST(Rendezvous, NamesTheRanksThatDoNotCome) {
  expect_all(run({.ranks = 3, .timeout = 0.5, .absent = 1}, [](Rendezvous&) {}),
             "4 rank 1 of 3 did not come to the rendezvous within 0.5 s", 1);
  const auto alone = run({.ranks = 2, .timeout = 0.3, .absent = 0}, [](Rendezvous&) {});
  EXPECT_NE(alone[1].find("rank 1 of 2 could not join rank 0 at 127.0.0.1"), std::string::npos) << alone[1];
}

TEST(Rendezvous, APortThatIsTakenIsPassedOver) {
  const int port = free_port();
  const auto stranger = listen_on(true, port);  // never answers
  ASSERT_TRUE(stranger);
  Setting s{.ranks = 2, .timeout = 8};
  s.port = port;
  expect_none(run(s, [](Rendezvous& r) { r.barrier("here"); }));
}

TEST(Rendezvous, StrangersAreNotLetInAndHoldUpNobody) {
  const Setting s{.ranks = 2};
  std::atomic<bool> stop{false};
  std::thread strangers([&] {
    std::vector<Fd> silent;
    std::string why;
    while (!stop) {
      if (Fd fd = connect_to({"127.0.0.1", s.port}, after(1), &why)) {  // says nothing, or garbage
        const std::string garbage = random_bytes(200);
        if (silent.size() % 2) send_all(fd, garbage.data(), garbage.size(), after(1));
        silent.push_back(std::move(fd));
      }
      EXPECT_FALSE(enter({"127.0.0.1", s.port}, "another secret!!", Purpose::rendezvous, 1, 2, after(1), &why));
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  const auto errors = run(s, [&](Rendezvous& r) {
    for (int k = 0; k < 10; ++k) r.barrier(cat("barrier ", k));
  });
  stop = true;
  strangers.join();
  expect_none(errors);
}

// A server that does not know the secret is not believed.
TEST(Rendezvous, AWrongServerIsNoticed) {
  const auto listener = listen_on(true, 0);
  std::thread server([&] {
    for (;;) {
      Fd fd = accept_from(*listener);
      if (!fd) continue;
      const std::string hello = "athanor1" + random_bytes(32);
      send_all(fd, hello.data(), hello.size(), after(1));
      std::string answer(32 + 24 + 32, '\0');
      recv_all(fd, answer.data(), answer.size(), after(1));
      const std::string proof = random_bytes(32);
      send_all(fd, proof.data(), proof.size(), after(1));
      return;
    }
  });
  std::string why;
  EXPECT_FALSE(
      enter({"127.0.0.1", port_of(*listener)}, "a secret of the test", Purpose::rendezvous, 1, 2, after(2), &why));
  EXPECT_EQ(why, "it does not know the secret of the job");
  server.join();
}

TEST(Rendezvous, TwoJobsAtOneAddressAreNoticed) {
  const Setting s{.ranks = 2, .timeout = 5};
  std::atomic<int> errors{0};
  std::vector<std::thread> threads;
  for (const auto& [rank, world] : {std::pair{0, 2}, {1, 3}})
    threads.emplace_back([&, rank = rank, world = world] {
      try {
        RendezvousOptions o = options(s, rank);
        o.ranks.world = world;
        Rendezvous r(o);
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("rank 1 of 3 came to a job of 2 ranks"), std::string::npos) << e.what();
        ++errors;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(errors, 2);
}

TEST(Failure, ARankThatDiesIsNamedToAllOthers) {
  for (const int victim : {0, 2}) {
    const auto errors = run({.ranks = 3}, [&](Rendezvous& r) {
      const auto c = make_tcp(r, "");
      c->barrier();
      if (r.rank() == victim) throw Error("killed", Exit::error);  // leaves without goodbye
      for (;;) c->barrier();
    });
    expect_all(errors, cat("4 rank ", victim, " (", host_name(), ") is gone"), victim);
  }
}

TEST(Failure, ARankThatFailsTellsWhy) {
  const auto errors = run({.ranks = 3}, [&](Rendezvous& r) {
    const auto c = make_tcp(r, "");
    if (r.rank() == 1) {
      r.fail("the disk is full");
      throw Error("the disk is full");
    }
    for (;;) c->barrier();
  });
  expect_all(errors, cat("4 rank 1 (", host_name(), ") failed: the disk is full"), 1);
}

TEST(Failure, ARankThatHangsIsNamedWithinTheTimeout) {
  const auto start = Clock::now();
  const auto errors = run({.ranks = 3, .timeout = 0.6}, [&](Rendezvous& r) {
    const auto c = make_tcp(r, "");
    c->barrier();
    if (r.rank() == 2) {  // busy elsewhere, until the others have given up
      pollfd p{r.failure_fd(), POLLIN, 0};
      poll(&p, 1, 20000);
      r.throw_if_failed();
    }
    std::vector<float> x(10);
    const CollectiveSubject subject("layers.3");
    for (;;) c->all_reduce(tensor_of(x), Reduce::sum, Lane::compute);
  });
  expect_all(errors, ": all_reduce for layers.3", 2);
  expect_all(errors, " hangs: no progress while others waited for 0.6 s");
  expect_all(errors, "4 rank 2 (");
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - start).count(), 15);
}

// Rank 1 is at an activity for 1.5 s while rank 0 waits for it.
std::vector<std::string> busy_for_a_while(Activity activity, const Timeouts& timeouts) {
  return run({.ranks = 2, .timeout = 20, .timeouts = timeouts}, [&](Rendezvous& r) {
    const auto c = make_tcp(r, "");
    r.doing(activity, 7);
    c->barrier();
    if (r.rank() == 1)
      for (int k = 0; k < 75; ++k) r.throw_if_failed(), std::this_thread::sleep_for(std::chrono::milliseconds(20));
    c->barrier();
  });
}

TEST(Failure, EachActivityHasItsOwnLimit) {
  const Timeouts timeouts{.startup = 20, .step = 0.4, .evaluation = 20, .saving = 0.4, .silence = 4};
  expect_none(busy_for_a_while(Activity::startup, timeouts));
  expect_none(busy_for_a_while(Activity::evaluation, timeouts));
  const auto step = busy_for_a_while(Activity::step, timeouts), saving = busy_for_a_while(Activity::saving, timeouts);
  expect_all(step, "4 rank 1 (");
  expect_all(step, "hangs: no progress while others waited for 0.4 s, since step 7");
  expect_all(saving, "since saving step 7");
  EXPECT_NE(step[0].find("was at step 7, collective 2 of it: barrier"), std::string::npos) << step[0];
}

TEST(Failure, ALongestStepOfTheUsualPaceIsNoHang) {
  const auto errors =
      run({.ranks = 2, .timeout = 20, .timeouts = {.startup = 0.2, .step = 0, .silence = 4}}, [&](Rendezvous& r) {
        for (int step = 1; step < 20; ++step) r.doing(Activity::step, step);
        r.barrier("steps are known");
        if (r.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(800));  // kLeastStepLimit holds
        r.barrier("end");
      });
  expect_none(errors);
}

TEST(Rendezvous, WaitingCostsNothing) {
  const std::clock_t begin = std::clock();
  expect_none(run({.ranks = 4}, [](Rendezvous& r) {
    r.barrier("begin");
    std::this_thread::sleep_for(std::chrono::seconds(1));
    r.barrier("end");
  }));
  EXPECT_LT(double(std::clock() - begin) / CLOCKS_PER_SEC, 0.5) << "seconds of the processor in a second of waiting";
}

TEST(Failure, SlowIsNotHanging) {
  const auto errors = run({.ranks = 2, .timeout = 4}, [&](Rendezvous& r) {
    const auto c = make_tcp(r, "");
    for (int k = 0; k < 4; ++k) {
      if (r.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
      c->barrier();
    }
  });
  expect_none(errors);
}

TEST(Failure, RanksThatDisagreeStop) {
  const auto errors = run({.ranks = 2}, [&](Rendezvous& r) {
    const auto c = make_tcp(r, "");
    std::vector<float> x(r.rank() == 0 ? 10 : 12);
    c->all_gather({x.data(), DType::f32, {int64_t(x.size())}}, {x.data(), DType::f32, {int64_t(x.size()) / 2}},
                  Lane::compute);
  });
  EXPECT_NE((errors[0] + errors[1]).find("the ranks have different configurations or data"), std::string::npos)
      << errors[0] << errors[1];
}

// A rank that waits where nothing can wake it: the last resort ends the process.
TEST(Failure, TheLastResortComesAfterTheGrace) {
  std::atomic<int> called{0};
  const Setting s{.ranks = 2};
  std::thread other([&] {
    try {
      Rendezvous r(options(s, 1));
      throw Error("dies");
    } catch (const Error&) {
    }
  });
  {
    RendezvousOptions o = options(s, 0);
    o.grace_seconds = 0.2;
    o.last_resort = [&](const std::string& why) {
      EXPECT_TRUE(why.starts_with("rank 1") && why.find(" is gone: ") != std::string::npos) << why;
      ++called;
    };
    Rendezvous r(o);
    for (int k = 0; k < 500 && called == 0; ++k) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  other.join();
  EXPECT_GT(called, 0);
}

TEST(Interfaces, AreFoundByTheRulesOfNccl) {
  EXPECT_TRUE(is_loopback(interface_address("lo")));
  EXPECT_TRUE(is_loopback(interface_address("=lo")));
  EXPECT_THROW(interface_address("=l"), Error);
  EXPECT_THROW(interface_address("nosuchinterface"), Error);
}

}  // namespace
}  // namespace athanor
