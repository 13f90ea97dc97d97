// The tree of ranks: what goes through it is what direct exchange gives, a rank speaks with few others, and who dies or
// stops anywhere in it is named to all.
#include "comm/tree.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <set>

#include "base/process_mark.h"
#include "comm/tcp.h"
#include "comm/texts.h"
#include "comm/wire.h"
#include "tests/comm/collective_laws.h"
#include "tests/comm/rig.h"
#include "tests/sanitized.h"

namespace athanor {
namespace {

using namespace testing;

TEST(Tree, HasEveryRankOnceAndMinimalDepth) {
  for (const auto& [ranks, fan_out, depth] :
       {std::tuple{1, 16, 0}, {17, 16, 1}, {18, 16, 2}, {1024, 16, 3}, {9, 2, 3}}) {
    const RankTree tree{.ranks = ranks, .fan_out = fan_out};
    std::vector<int> all = tree.subtree(0), expected(static_cast<size_t>(ranks));
    std::iota(expected.begin(), expected.end(), 0);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(all, expected);
    int deepest = 0;
    for (int r = 1; r < ranks; ++r) {
      int levels = 0;
      for (int above = r; above > 0; above = tree.parent(above)) ++levels;
      deepest = std::max(deepest, levels);
      const int above = tree.parent(r);
      EXPECT_TRUE(tree.first_child(above) <= r && r < tree.end_child(above)) << r;
      EXPECT_TRUE(tree.is_below(r, above) && !tree.is_below(above, r));
    }
    EXPECT_EQ(deepest, depth) << ranks;
    EXPECT_EQ(tree.is_flat(), depth < 2);
  }
}

TEST(Tree, CollectivesKeepEveryLaw) {
  expect_none(run({.ranks = kSanitized ? 4 : 7, .fan_out = 2}, [](Rendezvous& r) {
    const auto hosts = make_tcp(r, "");
    testing::every_law(*hosts);
    testing::every_law(*hosts->split(0, r.rank()));
  }));
}

// Ranks are threads, except one that is a process and can be killed or stopped.
struct Victim {
  int rank = 0, signal = SIGKILL;
};

struct Seen {
  double seconds_to_start = 0, seconds_of_step = 0;
  double seconds_to_name = 0;  // from the signal until the last rank knows
  std::vector<std::string> errors;
};

// Runs all-reduces until a rank is lost.
void work_until_failure(Rendezvous& r, const std::function<void(int step)>& after_step) {
  const auto world = make_tcp(r, "");
  std::vector<int32_t> requests(5);
  for (int step = 0;; ++step) {
    world->all_reduce(tensor_of(requests), Reduce::max, Stream::compute);
    after_step(step);
  }
}

Seen hit(const Setting& s, const Victim& victim, int steps) {
  const pid_t process = fork();
  CHECK(process >= 0, "fork");  // kill(-1) would signal every process
  if (process == 0) {
    try {
      Rendezvous r(options(s, victim.rank));
      work_until_failure(r, [](int) {});
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the others tell
    }
    _exit(0);
  }
  Seen seen;
  Setting others = s;
  others.absent = victim.rank;
  const Deadline begin = Clock::now();
  Deadline started, struck;
  const auto since = [](Deadline then) { return std::chrono::duration<double>(Clock::now() - then).count(); };
  std::vector<double> named(static_cast<size_t>(s.ranks));
  seen.errors = run(others, [&](Rendezvous& r) {
    try {
      work_until_failure(r, [&](int step) {
        if (r.rank() != 0 || step > steps) return;
        if (step == 0) started = Clock::now(), seen.seconds_to_start = since(begin);
        if (step < steps) return;
        seen.seconds_of_step = since(started) / steps;
        struck = Clock::now();
        kill(process, victim.signal);
      });
    } catch (const Error&) {
      named[size_t(r.rank())] = since(struck);
      throw;
    }
  });
  seen.seconds_to_name = *std::max_element(named.begin(), named.end());
  kill(process, SIGKILL);
  waitpid(process, nullptr, 0);
  return seen;
}

// A leaf, one in the middle with ranks below it that lose their way to rank 0, and a neighbour of rank 0.
TEST(Tree, KilledOrStoppedRankIsReportedToAll) {
  for (const int rank : {1, 4, 11})
    for (const int signal : {SIGKILL, SIGSTOP})
      patiently({1, 10, 60}, [&, rank = rank](double limit) {
        Setting s{.ranks = 12, .fan_out = 2};
        s.timeouts.silence = limit;
        const Seen seen = hit(s, {.rank = rank, .signal = signal}, 3);
        const std::string words = cat("4 rank ", rank, " (", host_name(), ") ",
                                      signal == SIGKILL ? "is gone: " : "gave no sign of life for ");
        return all_say(seen.errors, words, rank);
      });
}

TEST(Tree, FailedOrMissingInnerRankIsNamed) {
  const auto failed = run({.ranks = 12, .fan_out = 2}, [](Rendezvous& r) {
    const auto c = make_tcp(r, "");
    if (r.rank() == 4) throw r.first_error(Error("the disk is full"));
    for (;;) c->barrier();
  });
  expect_all(failed, cat("4 rank 4 (", host_name(), ") failed: the disk is full"), 4);
  patiently({1, 10, 60}, [](double limit) {
    const auto missing = run({.ranks = 12, .timeout = limit, .absent = 4, .fan_out = 2}, [](Rendezvous&) {});
    return all_say(missing, cat("4 rank 4 of 12 did not join the rendezvous within ", limit, " s"), 4);
  });
}

// Rank 0 stops after it has admitted a rank whose parent is another one, and before it says where that one is. The rank
// has reached rank 0, so it logs no notice that it has not.
TEST(Tree, SilentRankZeroIsNamedByARankWithoutParent) {
  patiently({0.5, 5, 50}, [](double limit) {
    Setting s{.ranks = 4, .timeout = 16 * limit, .fan_out = 2};
    s.timeouts.silence = limit;
    Doorkeeper rank_zero(std::move(*listen_on("127.0.0.1", s.port)), s.secret, Purpose::rendezvous);
    std::atomic<bool> over{false};
    std::thread admits([&] {
      for (std::vector<Guest> guests; !over; std::this_thread::sleep_for(std::chrono::milliseconds(1)))
        for (Guest& guest : rank_zero.admit()) guests.push_back(std::move(guest));
    });
    std::string error;
    RendezvousOptions three = options(s, 3);
    three.notice_seconds = 0.8 * limit;
    ::testing::internal::CaptureStderr();
    try {
      Rendezvous rendezvous(three);
    } catch (const Error& e) {
      error = e.what();
    }
    const std::string notices = ::testing::internal::GetCapturedStderr();
    over = true;
    admits.join();
    std::printf("%s%s\n", notices.c_str(), error.c_str());
    return error.starts_with(cat("rank 0 (127.0.0.1) gave no sign of life for ", limit, " s")) &&
           notices.find("has not reached rank 0") == std::string::npos;
  });
}

// The other ranks of the tree are notified of a hang through rank 0.
TEST(Tree, HangingRankIsNamed) {
  Setting s{.ranks = 12, .hasty = 11, .of_hasty = {.startup = 1, .silence = kAmple}, .fan_out = 2};
  std::atomic<int> arrived{0};
  const auto errors = run(s, [&](Rendezvous& r) {
    const auto c = make_tcp(r, "");
    for (++arrived; arrived < s.ranks; std::this_thread::sleep_for(std::chrono::milliseconds(1))) r.throw_if_failed();
    while (r.rank() == 11) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      r.throw_if_failed();
    }
    for (;;) c->barrier();
  });
  expect_all(errors, cat("4 rank 11 (", host_name(), ") hangs: no progress while others waited for 1 s"));
}

TEST(Tree, InnerRanksListenOnTheConfiguredInterface) {
  const auto with = [](const std::string& interfaces, double timeout) {
    const Setting s{.ranks = 7, .timeout = timeout, .fan_out = 2};
    std::vector<std::string> errors(7);
    std::vector<std::thread> threads;
    for (int r = 0; r < s.ranks; ++r)
      threads.emplace_back([&, r] {
        try {
          RendezvousOptions o = options(s, r);
          o.interfaces = interfaces;
          Rendezvous rendezvous(o);
        } catch (const Error& e) {
          errors[size_t(r)] = e.what();
        }
      });
    for (std::thread& t : threads) t.join();
    return errors;
  };
  expect_none(with("lo", kAmple));
  // The first of them to connect ends the job; later ones find no rank 0.
  patiently({1, 10, 60}, [&](double limit) {
    const std::string said = with("nosuchinterface", limit)[0];
    return (said.starts_with("rank 1 failed: ") || said.starts_with("rank 2 failed: ")) &&
           said.find("nosuchinterface") != std::string::npos;
  });
}

TEST(Tree, ExchangesMessagesInRankOrder) {
  expect_none(run({.ranks = 40, .fan_out = 3}, [](Rendezvous& r) {
    for (int round = 0; round < 3; ++round) {
      const auto all = r.exchange(cat("round ", round), cat(r.rank(), std::string(size_t(round) * 3000, 'x')));
      ASSERT_EQ(all.size(), 40u);
      for (int k = 0; k < 40; ++k) EXPECT_EQ(all[size_t(k)], cat(k, std::string(size_t(round) * 3000, 'x')));
    }
  }));
}

// Runs ATHANOR_RANKS ranks if that is set: scripts/bench/ranks/control.py sets it, and reads what is printed.
TEST(Tree, ManyRanksConnectAgreeAndDetectALostRank) {
  const char* asked = std::getenv("ATHANOR_RANKS");
  Setting s{.ranks = asked ? std::atoi(asked) : kSanitized ? 20 : 64};
  const int victim = std::min(21, s.ranks - 1);
  for (const int signal : {SIGKILL, SIGSTOP}) {
    if (signal == SIGSTOP && !asked) continue;  // it takes the 8 s heartbeat timeout
    if (asked) s.timeouts.silence = Timeouts{}.silence;
    const Seen seen = hit(s, {.rank = victim, .signal = signal}, asked ? 20 : 3);
    s.port = free_port();
    expect_all(seen.errors, cat("4 rank ", victim, " ("), victim);
    std::printf("{\"ranks\": %d, \"signal\": \"%s\", \"start_s\": %.3f, \"step_ms\": %.3f, \"named_s\": %.3f}\n",
                s.ranks, signal == SIGKILL ? "KILL" : "STOP", seen.seconds_to_start, seen.seconds_of_step * 1e3,
                seen.seconds_to_name);
  }
}

// A wire that has no peers: it counts what would be sent, and to whom.
class Counting final : public Wire {
 public:
  void run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) override {
    for (const auto* list : {&sends, &receives})
      for (const Transfer& t : *list) peers.push_back(t.peer);
    messages += int(sends.size());
  }
  void start(Transfer send) override { peers.push_back(send.peer), ++messages; }
  void finish(int, int64_t) override {}
  std::vector<int> peers;
  int messages = 0;
};

// The decisions of a step are a sum of a few bytes of all ranks: with tensors' direct exchange 2 (ranks - 1) messages
// of each.
TEST(Tree, DecisionTakesOneMessageUpAndOneDownPerRank) {
  const int ranks = 1024;
  int messages = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto wire = std::make_shared<Counting>();
    const auto world = make_direct(wire, rank, {.ranks = ranks});
    std::vector<int32_t> requests(5);
    world->all_reduce(tensor_of(requests), Reduce::max, Stream::compute);
    messages += wire->messages;
    std::sort(wire->peers.begin(), wire->peers.end());
    wire->peers.erase(std::unique(wire->peers.begin(), wire->peers.end()), wire->peers.end());
    EXPECT_LE(wire->peers.size(), size_t(kFanOut + 1)) << "of rank " << rank;
  }
  EXPECT_EQ(messages, 2 * (ranks - 1));
}

// The sums of an evaluation of 10,240 windows, and long texts; groups for tensors exchange as much directly.
TEST(Tree, HostMessagesAlwaysUseTheTree) {
  const int ranks = 200;
  for (const int rank : {0, 1, 20, 199}) {
    const auto wire = std::make_shared<Counting>();
    const auto hosts = make_direct(wire, rank, {.ranks = ranks});
    const auto peers = [&](const std::function<void()>& act) {
      wire->peers.clear();
      act();
      return std::set<int>(wire->peers.begin(), wire->peers.end()).size();
    };
    std::vector<double> sums(size_t(3 * 10241));
    std::vector<char> text(100001), texts(text.size() * size_t(ranks));
    const Tensor one{text.data(), DType::u8, {int64_t(text.size())}};
    const Tensor all{texts.data(), DType::u8, {int64_t(texts.size())}};
    EXPECT_LE(peers([&] { hosts->all_reduce(tensor_of(sums), Reduce::sum, Stream::compute); }), size_t(kFanOut + 1));
    EXPECT_LE(peers([&] { hosts->all_gather(all, one, Stream::compute); }), size_t(kFanOut + 1));
    const auto group = make_direct(wire, rank, {.ranks = ranks})->split(0, rank);
    EXPECT_EQ(group->size(), ranks);
    EXPECT_EQ(peers([&] { group->all_reduce(tensor_of(sums), Reduce::sum, Stream::compute); }), size_t(ranks - 1));
  }
}

TEST(Tree, SlicedHostMessagesArriveUnchanged) {
  expect_none(run({.ranks = 5, .fan_out = 2}, [](Rendezvous& r) {
    const auto hosts = make_tcp(r, "");
    const int64_t n = 40001;
    auto x = testing::contribution(r.rank(), n, DType::f64);
    hosts->all_reduce({x.data(), DType::f64, {n}}, Reduce::sum, Stream::compute);
    EXPECT_EQ(x, testing::expected_reduction(5, n, DType::f64, Reduce::sum));
    const auto texts = gather_texts(*hosts, std::string(size_t(100001 + r.rank()), char('a' + r.rank())));
    for (int k = 0; k < 5; ++k) EXPECT_EQ(texts[size_t(k)], std::string(size_t(100001 + k), char('a' + k))) << k;
  }));
}

}  // namespace
}  // namespace athanor
