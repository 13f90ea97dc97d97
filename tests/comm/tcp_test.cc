// Ranks over TCP: threads of this process with a rendezvous each. They keep the laws of every transport; strangers stay
// outside; ranks that are missing, die, hang or disagree are named to all others.
#include "comm/tcp.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <thread>

#include "base/crypto.h"
#include "base/process_mark.h"
#include "comm/rendezvous_server.h"
#include "comm/secret.h"
#include "comm/threads.h"
#include "tests/comm/collective_laws.h"
#include "tests/comm/rig.h"

namespace athanor {
namespace {

using namespace testing;

TEST(Tcp, CollectivesKeepEveryLaw) {
  for (const int ranks : {1, 2, 5})
    expect_none(run({.ranks = ranks}, [](Rendezvous& r) { testing::every_law(*make_tcp(r, "")); }));
}

TEST(Tcp, UsesTheConfiguredInterface) {
  expect_none(run({.ranks = 2}, [](Rendezvous& r) { make_tcp(r, "lo")->barrier(); }));
  const auto errors = run({.ranks = 2}, [](Rendezvous& r) { make_tcp(r, "=missing0")->barrier(); });
  EXPECT_NE(errors[0].find("missing0"), std::string::npos) << errors[0];
}

TEST(Tcp, ReductionsOfSeveralBlocksAreCorrect) {
  const auto errors = run({.ranks = 3}, [](Rendezvous& r) {
    const auto c = make_tcp(r, "");
    const int64_t n = 200003;  // two blocks, the last one uneven
    auto x = testing::contribution(c->rank(), n, DType::f32);
    c->all_reduce({x.data(), DType::f32, {n}}, Reduce::sum, Stream::compute);
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

TEST(Rendezvous, NamesMissingRanks) {
  patiently({0.5, 5, 50}, [](double limit) {
    const auto errors = run({.ranks = 3, .timeout = limit, .absent = 1}, [](Rendezvous&) {});
    return all_say(errors, cat("4 rank 1 of 3 did not join the rendezvous within ", limit, " s"), 1);
  });
  const auto alone = run({.ranks = 2, .timeout = 0.3, .absent = 0}, [](Rendezvous&) {});
  EXPECT_NE(alone[1].find("rank 1 of 2 could not join rank 0 at 127.0.0.1"), std::string::npos) << alone[1];
}

TEST(Rendezvous, LateRankZeroIsReportedEarlyWithTheReason) {
  const auto said = [](std::string host, std::string awaited_file) {
    RendezvousOptions late = options({.ranks = 2, .timeout = 0.6, .host = std::move(host)}, 1);
    late.notice_seconds = 0.1;
    late.awaited_file = std::move(awaited_file);
    if (!late.awaited_file.empty()) late.key = [] { return JobKey{}; };
    ::testing::internal::CaptureStderr();
    EXPECT_THROW(Rendezvous{late}, Error);
    return ::testing::internal::GetCapturedStderr();
  };
  for (const auto& [text, parts] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {said("not..a.name", ""), {"rank 1 of 2", "not..a.name", "cannot be resolved", "MASTER_ADDR"}},
           {said("127.0.0.1", "runs/one/.job"), {"runs/one/.job", "ATHANOR_SECRET_FILE"}},
           {said("127.0.0.1", ""), {"127.0.0.1", "Connection refused"}}})
    for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text << "lacks " << part;
}

TEST(Rendezvous, PortInUseIsSkipped) {
  const auto stranger = listen_on("127.0.0.1", 0);  // never answers
  patiently({4, 40}, [&](double limit) {            // a quarter of which is spent on the stranger
    return all_well(
        run({.ranks = 2, .port = port_of(*stranger), .timeout = limit}, [](Rendezvous& r) { r.barrier("here"); }));
  });
}

TEST(Rendezvous, StrangersAreRejectedAndDelayNobody) {
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
      EXPECT_FALSE(enter({"127.0.0.1", s.port}, "another secret!!", {Purpose::rendezvous, 1, 2}, after(1)).fd);
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

TEST(Deadline, LongTimesDoNotOverflow) {
  EXPECT_GT(after(1e300), after(1e8));
  EXPECT_GT(after(1e300) + duration_of(1e300), after(1e300));
}

// A peer that closes with unread data breaks the connection: nothing can be sent any more, but the messages that it
// sent before are still read.
TEST(Pipe, ReadsBufferedBytesAfterTheConnectionBreaks) {
  const auto listener = listen_on("127.0.0.1", 0);
  std::string why;
  Fd one = connect_to({"127.0.0.1", port_of(*listener)}, after(kAmple), &why);
  ASSERT_TRUE(one) << why;
  pollfd p{listener->get(), POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, -1), 1);
  Pipe other(accept_from(*listener));
  other.write("never read");
  EXPECT_TRUE(other.advance());
  p = {one.get(), POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, -1), 1);
  const std::string last = "the disk is full";
  ASSERT_TRUE(send_all(one, last.data(), last.size(), after(kAmple)));
  one = {};
  do p = {other.fd().get(), POLLIN, 0}, poll(&p, 1, -1);
  while (!(p.revents & (POLLHUP | POLLERR)));
  other.write("a sign of life");
  EXPECT_FALSE(other.advance());
  EXPECT_EQ(other.received(), last);
}

TEST(Rendezvous, TwoJobsAtOneAddressAreDetected) {
  const Setting s{.ranks = 2};
  std::atomic<int> errors{0};
  std::vector<std::thread> threads;
  for (const auto& [rank, world] : {std::pair{0, 2}, {1, 3}})
    threads.emplace_back([&, rank = rank, world = world] {
      try {
        RendezvousOptions o = options(s, rank);
        o.ranks.world = world;
        Rendezvous r(o);
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("rank 1 of 3 joined a job of 2 ranks"), std::string::npos) << e.what();
        ++errors;
      }
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(errors, 2);
}

TEST(Failure, KilledRankIsReportedToAllOthers) {
  for (const int victim : {0, 2}) {
    const auto errors = run({.ranks = 3}, [&](Rendezvous& r) {
      const auto c = make_tcp(r, "");
      c->barrier();
      if (r.rank() == victim) throw Error("killed", Exit::error);  // leaves without a report
      for (;;) c->barrier();
    });
    expect_all(errors, cat("4 rank ", victim, " (", host_name(), ") is gone"), victim);
  }
}

TEST(Failure, FailedRankReportsItsError) {
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

// A barrier of ranks that are threads, without messages, so that the rendezvous does not notice the wait.
struct Arrivals {
  const int ranks;
  std::atomic<int> arrived{0};
  void wait(Rendezvous& r) {
    for (++arrived; arrived < ranks; std::this_thread::sleep_for(std::chrono::milliseconds(1))) r.throw_if_failed();
  }
};

double& limit_of(Timeouts& t, Activity activity) {
  return activity == Activity::startup      ? t.startup
         : activity == Activity::step       ? t.step
         : activity == Activity::evaluation ? t.evaluation
                                            : t.saving;
}

// Waits until the others have timed out.
void hang(Rendezvous& r) {
  pollfd p{r.failure_fd(), POLLIN, 0};
  poll(&p, 1, int(kAmple * 1000));
  r.throw_if_failed();
}

// The others must have reached their collective within the timeout: their last message may still say that they wait.
TEST(Failure, HangingRankIsReportedWithinItsTimeout) {
  patiently({0.6, 6, 30}, [](double limit) {
    Arrivals connected{3};
    const Setting s{.ranks = 3, .hasty = 2, .of_hasty = {.startup = kAmple, .step = limit, .silence = kAmple}};
    const auto errors = run(s, [&](Rendezvous& r) {
      const auto c = make_tcp(r, "");
      connected.wait(r);
      if (r.rank() == 2) {  // busy elsewhere
        r.doing(Activity::step, 1);
        hang(r);
      }
      std::vector<float> x(10);
      const CollectiveSubject subject("layers.3");
      for (;;) c->all_reduce(tensor_of(x), Reduce::sum, Stream::compute);
    });
    return all_say(errors, ": all_reduce for layers.3", 2) && all_say(errors, "4 rank 2 (") &&
           all_say(errors, cat(" hangs: no progress while others waited for ", limit, " s, since step 1"));
  });
}

TEST(Failure, EachActivityHasItsOwnTimeout) {
  for (const auto& [activity, words] : {std::pair{Activity::step, "since step 7"},
                                        {Activity::evaluation, "since evaluation after step 7"},
                                        {Activity::saving, "since saving step 7"}})
    patiently({0.4, 4, 40}, [&, activity = activity, words = words](double limit) {
      Setting s{.ranks = 2, .hasty = 1, .of_hasty = {kAmple, kAmple, kAmple, kAmple, kAmple}};
      limit_of(s.of_hasty, activity) = limit;
      Arrivals waiting{2};
      const auto errors = run(s, [&](Rendezvous& r) {
        const auto c = make_tcp(r, "");
        if (r.rank() == 0) r.doing(Activity::step, 7);
        c->barrier();
        waiting.wait(r);  // rank 0 has nothing but its second barrier before it
        if (r.rank() == 1) {
          r.doing(activity, 7);
          hang(r);
        }
        c->barrier();
      });
      expect_all(errors, "4 rank 1 (");
      expect_all(errors, cat("hangs: no progress while others waited for ", limit, " s, ", words));
      return all_say(errors, "was at step 7, collective 2 of it: barrier", 1);  // rank 0 reached it in time
    });
}

// Rank 1 lets rank 0 wait for longer than the limits of all other activities.
TEST(Failure, TimeoutsOfOtherActivitiesDoNotApply) {
  for (const Activity activity : {Activity::startup, Activity::step, Activity::evaluation, Activity::saving})
    patiently({0.2, 2, 20}, [&](double limit) {
      Setting s{.ranks = 2, .hasty = 1, .of_hasty = {limit, limit, limit, limit, kAmple}};
      limit_of(s.of_hasty, activity) = kAmple;
      return all_well(run(s, [&](Rendezvous& r) {
        r.doing(activity, 7);
        r.barrier("at it");
        if (r.rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(3 * limit));
        r.barrier("end");
      }));
    });
}

TEST(Failure, StepBelowTheMinimumTimeoutIsNotAHang) {
  patiently({0.2, 0.5, 1, 1.5, 1.5, 1.5}, [](double startup) {
    const Setting s{.ranks = 2, .hasty = 1, .of_hasty = {.startup = startup, .step = 0, .silence = kAmple}};
    return all_well(run(s, [&](Rendezvous& r) {
      for (int step = 1; step < 20; ++step) r.doing(Activity::step, step);
      r.barrier("steps are known");
      if (r.rank() == 1)
        std::this_thread::sleep_for(std::chrono::duration<double>(4 * startup));  // kLeastStepLimit holds
      r.barrier("end");
    }));
  });
}

// A rank that checks its peers late does not count its own delay as theirs.
TEST(Rendezvous, AccountsForTimeItsThreadWasStalled) {
  const Deadline begin = Clock::now();
  Deadline looked = begin - std::chrono::seconds(10);
  EXPECT_GE(held_up(&looked), std::chrono::seconds(8));
  EXPECT_GE(looked, begin) << "it has looked now";
  looked = Clock::now() + std::chrono::hours(1);
  EXPECT_EQ(held_up(&looked), Clock::duration::zero());
}

TEST(Rendezvous, WaitingUsesNoCpuTime) {
  std::clock_t cost = 0;
  Arrivals waiting{4};
  expect_none(run({.ranks = 4}, [&](Rendezvous& r) {
    waiting.wait(r);
    const std::clock_t begin = std::clock();
    if (r.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(1));
    r.barrier("end");
    if (r.rank() == 0) cost = std::clock() - begin;
  }));
  EXPECT_LT(double(cost) / CLOCKS_PER_SEC, 0.5) << "seconds of the processor in a second of waiting";
}

// All waits together are longer than the limit of one.
TEST(Failure, SlowRankIsNotAHang) {
  patiently({0.6, 6, 30}, [](double limit) {
    const Setting s{.ranks = 2, .hasty = 1, .of_hasty = {.startup = limit, .silence = kAmple}};
    return all_well(run(s, [&](Rendezvous& r) {
      const auto c = make_tcp(r, "");
      for (int k = 0; k < 4; ++k) {
        if (r.rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(limit / 3));
        c->barrier();
      }
    }));
  });
}

// The last heartbeat of a rank that leaves may say that it waits.
TEST(Failure, RankThatHasLeftWaitsForNobody) {
  patiently({0.6, 6, 30}, [](double limit) {
    const Setting s{.ranks = 2, .timeouts = {.startup = limit, .silence = kAmple}};
    return all_well(run(s, [&](Rendezvous& r) {
      const auto rest = [&](double share) {
        if (r.rank() == 0) std::this_thread::sleep_for(std::chrono::duration<double>(share * limit));
      };
      rest(0.5);
      r.barrier("end");
      rest(2);  // rank 1 leaves
      r.throw_if_failed();
    }));
  });
}

// An error that says that another rank is lost may be this rank's own observation, of which nobody else knows.
TEST(Failure, RankThatCannotReachAnotherReportsIt) {
  const std::string said = "rank 1 cannot reach rank 2";
  const auto errors = run({.ranks = 3}, [&](Rendezvous& r) {
    if (r.rank() == 1) throw r.first_error(Error(said, Exit::peer_lost));
    r.barrier("never");
  });
  expect_all(errors, cat("4 rank 1 (", host_name(), ") failed: ", said), 1);
  EXPECT_EQ(errors[1], cat("4 ", said));
}

TEST(Failure, DisagreeingRanksStop) {
  const auto errors = run({.ranks = 2}, [&](Rendezvous& r) {
    const auto c = make_tcp(r, "");
    std::vector<float> x(r.rank() == 0 ? 10 : 12);
    reporting_errors(r, [&] {
      c->all_gather({x.data(), DType::f32, {int64_t(x.size())}}, {x.data(), DType::f32, {int64_t(x.size()) / 2}},
                    Stream::compute);
    });
  });
  expect_all(errors, "the ranks have different configurations or data");
}

// A rank that waits where nothing can wake it: the last resort ends the process.
TEST(Failure, ProcessIsKilledAfterTheGracePeriod) {
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
    for (const Deadline end = after(kAmple); called == 0 && Clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  other.join();
  EXPECT_GT(called, 0);
}

TEST(Interfaces, AreSelectedLikeNccl) {
  EXPECT_TRUE(is_loopback(interface_address("lo")));
  EXPECT_TRUE(is_loopback(interface_address("=lo")));
  EXPECT_THROW(interface_address("=l"), Error);
  EXPECT_THROW(interface_address("nosuchinterface"), Error);
}

}  // namespace
}  // namespace athanor
