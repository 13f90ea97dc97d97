// Attackers without the job's secret, on the same machine or network, against ranks that are connecting or connected:
// each test performs one attack. docs/security.md states the guarantees.
#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <optional>

#include "comm/channel.h"
#include "comm/link.h"
#include "comm/tcp.h"
#include "tests/comm/collective_laws.h"
#include "tests/comm/rig.h"

namespace athanor {
namespace {

using namespace testing;

// Work on a thread until the end of the test.
class Attacker {
 public:
  explicit Attacker(std::function<void(const std::atomic<bool>&)> work)
      : thread_([this, work = std::move(work)] { work(stop_); }) {}
  ~Attacker() {
    stop_ = true;
    thread_.join();
  }
  Attacker(const Attacker&) = delete;
  Attacker& operator=(const Attacker&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

bool readable(const Fd& fd, int milliseconds) {
  pollfd p{fd.get(), POLLIN, 0};
  return poll(&p, 1, milliseconds) > 0;
}

Fd dial(int port) {
  std::string why;
  return connect_to({"127.0.0.1", port}, after(1), &why);
}

// Passes on what two connections say until one ends; the bytes that went from `a` to `b`.
size_t relay(const Fd& a, const Fd& b, const std::atomic<bool>& stop) {
  size_t passed = 0;
  char buffer[4096];
  while (!stop) {
    pollfd fds[] = {{a.get(), POLLIN, 0}, {b.get(), POLLIN, 0}};
    poll(fds, 2, 20);
    for (const bool forth : {true, false}) {
      const ssize_t n = recv((forth ? a : b).get(), buffer, sizeof buffer, 0);
      if (n == 0) return passed;
      if (n < 0) continue;
      if (forth) passed += size_t(n);
      send_all(forth ? b : a, buffer, size_t(n), after(1));
    }
  }
  return passed;
}

// Rank 0 finds its port in use and takes the next one; the process on that port is a man in the middle and may modify
// what it forwards.
TEST(Attack, ManInTheMiddleLearnsNothing) {
  const auto port = listen_on("127.0.0.1", 0);
  const Setting s{.ranks = 2, .port = port_of(*port)};
  std::atomic<size_t> connections{0}, most{0};
  std::vector<std::string> errors;
  for (int turn = 0; turn < 3 && connections == 0; ++turn) {  // once the attacker was late: rank 1 had moved on
    const Attacker attacker([&](const std::atomic<bool>& stop) {
      while (!stop) {
        if (!readable(*port, 20)) continue;
        const Fd guest = accept_from(*port);
        Fd listener;
        for (int k = 0; !listener && !stop; ++k) listener = dial(s.port + 1 + k % 7);  // rank 0 may not be there yet
        if (!listener) continue;
        ++connections;
        most = std::max(most.load(), relay(guest, listener, stop));
      }
    });
    errors = run(s, [](Rendezvous& r) {
      const auto c = make_tcp(r, "");
      std::vector<float> x(1000, 1);
      c->all_reduce(tensor_of(x), Reduce::sum, Stream::compute);
      EXPECT_EQ(x[999], 2);
    });
  }
  expect_none(errors);
  EXPECT_GT(connections, 0u);
  EXPECT_LE(most, 200u) << "an answer to the greeting, and nothing after it";
}

// Both ends of a connection and the attacker between them, who has what was sent and decides what arrives.
struct Line {
  Line() {
    int near[2], far[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, near), 0);
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, far), 0);
    from = Fd(near[0]), tapped = Fd(near[1]), injected = Fd(far[0]), to = Fd(far[1]);
  }
  std::string tap() const {
    std::string bytes(1 << 16, '\0');
    const ssize_t n = recv(tapped.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(n > 0 ? size_t(n) : 0);
    return bytes;
  }
  void inject(const std::string& bytes) const { send_all(injected, bytes.data(), bytes.size(), after(1)); }
  Fd from, tapped, injected, to;
  Digest key = sha256("a key");
};

std::string flipped(std::string bytes, size_t at) {
  bytes[at] = char(uint8_t(bytes[at]) ^ 1u);
  return bytes;
}

// The payloads that the receiver accepts if the attacker replaces the sent frames by attack(frames), or "refused".
std::string arriving(const std::function<std::string(const std::vector<std::string>&)>& attack) {
  Line line;
  Channel sender(std::move(line.from), {.out = Seal(line.key), .in = {}});
  Channel receiver(std::move(line.to), {.out = {}, .in = Seal(line.key)});
  std::vector<std::string> frames;
  for (const char* text : {"one", "two", "three"}) {
    sender.write({'e', text});
    sender.advance();
    frames.push_back(line.tap());
  }
  line.inject(attack(frames));
  receiver.advance();
  std::string payloads;
  try {
    while (const auto frame = receiver.take()) payloads += frame->payload + ";";
  } catch (const Error&) {
    payloads += "refused";
  }
  return payloads;
}

TEST(Attack, ModifiedReplayedDroppedOrReorderedFramesAreRefused) {
  using Frames = std::vector<std::string>;
  EXPECT_EQ(arriving([](const Frames& f) { return f[0] + f[1] + f[2]; }), "one;two;three;");
  EXPECT_EQ(arriving([](const Frames& f) { return f[0] + f[0]; }), "one;refused");
  EXPECT_EQ(arriving([](const Frames& f) { return f[0] + f[2]; }), "one;refused");
  EXPECT_EQ(arriving([](const Frames& f) { return f[1] + f[0]; }), "refused");
  EXPECT_EQ(arriving([](const Frames&) { return std::string("\xff\xff\xff\xff"); }), "refused");
  for (size_t at = 4; at < 4 + 1 + 3 + sizeof(Tag); ++at)  // kind, payload and tag
    EXPECT_EQ(arriving([&](const Frames& f) { return flipped(f[0], at); }), "refused") << at;
}

TEST(Attack, ModifiedOrReplayedTensorsAreRefused) {
  const size_t bytes = 100, all = sizeof(Header) + bytes + sizeof(Tag);
  const auto arrive = [&](const std::function<std::string(const std::string&)>& attack, int transfers) {
    Line line;
    const auto sender = make_tcp_link(std::move(line.from), {.out = Seal(line.key), .in = {}});
    const auto receiver = make_tcp_link(std::move(line.to), {.out = {}, .in = Seal(line.key)});
    std::vector<std::byte> source(bytes, std::byte{7}), target(bytes);
    const Header header{.group = 1, .call = 2, .bytes = bytes, .op = 0, .dtype = 0};
    Transfer sent{.peer = 1, .data = source.data(), .header = header};
    while (!sent.ended) EXPECT_EQ(sender->push(sent), Link::Outcome::moved);
    line.inject(attack(line.tap()));
    try {
      for (int k = 0; k < transfers; ++k) {
        Transfer t{.peer = 0, .data = target.data(), .header = header};
        while (!t.ended && receiver->pull(t, 1) == Link::Outcome::moved) {
        }
        EXPECT_TRUE(t.ended);
      }
    } catch (const Error&) {
      return false;
    }
    return target == source;
  };
  EXPECT_TRUE(arrive([](const std::string& sent) { return sent; }, 1));
  EXPECT_FALSE(arrive([](const std::string& sent) { return sent + sent; }, 2)) << "repeated";
  for (size_t at = 0; at < all; ++at)
    EXPECT_FALSE(arrive([&](const std::string& sent) { return flipped(sent, at); }, 1)) << at;
}

// Rank 0 is alone during the attack; then rank 1 connects, and both can communicate.
void expect_a_job_after(const std::function<void(const Setting&)>& attack) {
  const Setting s{.ranks = 2};
  std::vector<std::string> errors(2);
  const auto rank = [&](int r) {
    try {
      Rendezvous rendezvous(options(s, r));
      make_tcp(rendezvous, "")->barrier();
      EXPECT_FALSE(dial(s.port)) << "once all are there the door is closed";
    } catch (const Error& e) {
      errors[size_t(r)] = e.what();
    }
  };
  std::thread first([&] { rank(0); });
  attack(s);
  rank(1);
  first.join();
  expect_none(errors);
}

size_t resident_bytes() {
  size_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * size_t(sysconf(_SC_PAGESIZE));
}

Fd dial_patiently(int port) {
  Fd fd;
  for (const Deadline end = after(kAmple); !fd && Clock::now() < end;) fd = dial(port);
  return fd;
}

TEST(Attack, EndlessInputIsNotBuffered) {
  expect_a_job_after([](const Setting& s) {
    const size_t before = resident_bytes(), most = size_t{256} << 20;
    const std::string junk(1 << 20, 'x');
    for (int k = 0; k < 2; ++k) {
      const Fd fd = dial_patiently(s.port);
      size_t sent = 0;
      while (sent < most && send_all(fd, junk.data(), junk.size(), after(2))) sent += junk.size();
      EXPECT_LT(sent, size_t{64} << 20) << "what the buffers of the connection hold";
    }
    EXPECT_LT(resident_bytes(), before + (size_t{64} << 20));
  });
}

size_t open_descriptors() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

TEST(Attack, SilentConnectionsUseFewDescriptorsAndDelayNobody) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  rlimit more = limit;
  more.rlim_cur = std::min<rlim_t>(4096, limit.rlim_max);
  if (limit.rlim_cur < more.rlim_cur) setrlimit(RLIMIT_NOFILE, &more);
  std::vector<Fd> silent;
  expect_a_job_after([&](const Setting& s) {
    silent.push_back(dial_patiently(s.port));
    const size_t before = open_descriptors();
    for (int k = 1; k < 1024; ++k) silent.push_back(dial_patiently(s.port));
    EXPECT_LE(open_descriptors(), before + 1023 + 64 + 8) << "and a few that come and go";
  });
  silent.clear();
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Keeps a connection open without a descriptor of this process: it is in flight in a socket message to the reader of
// the other end.
void put_aside(const Fd& holder, const Fd& connection) {
  char nothing = 0;
  iovec bytes{&nothing, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof(int));
  const int fd = connection.get();
  std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  EXPECT_EQ(sendmsg(holder.get(), &message, 0), 1);
}

TEST(Attack, ReservesDescriptorsForFiles) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit few{.rlim_cur = 256, .rlim_max = limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &few);
  const auto open_files = [](size_t count) {
    std::vector<Fd> files;
    for (size_t k = 0; k < count; ++k) EXPECT_TRUE(files.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC))) << k;
    return files;
  };
  Line aside;
  {
    const std::vector<Fd> used = open_files(150);
    expect_a_job_after([&](const Setting& s) {
      for (int k = 0; k < 60; ++k) put_aside(aside.from, dial_patiently(s.port));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      open_files(50);
    });
  }
  setrlimit(RLIMIT_NOFILE, &limit);
}

TEST(Attack, SilentPeerAfterTheGreetingDelaysARankForSecondsOnly) {
  const auto port = listen_on("127.0.0.1", 0);
  const Attacker attacker([&](const std::atomic<bool>& stop) {
    std::vector<Fd> held;
    while (!stop) {
      if (!readable(*port, 20)) continue;
      held.push_back(accept_from(*port));
      const std::string hello = "athanor2" + random_bytes(32);
      send_all(held.back(), hello.data(), hello.size(), after(1));
    }
  });
  patiently({4, 40}, [&](double limit) {  // a quarter of the limit is spent waiting for the stranger
    return all_well(
        run({.ranks = 2, .port = port_of(*port), .timeout = limit}, [](Rendezvous& r) { r.barrier("here"); }));
  });
}

// The server answers every message without proving that it knows the secret.
TEST(Attack, ServerWithoutTheSecretIsRejected) {
  const auto port = listen_on("127.0.0.1", 0);
  std::thread server([&] {
    ASSERT_TRUE(readable(*port, -1));
    const Fd fd = accept_from(*port);
    const std::string hello = "athanor2" + random_bytes(32), verdict = "w" + random_bytes(32);
    send_all(fd, hello.data(), hello.size(), after(kAmple));
    std::string answer(32 + 24 + 64 + 32, '\0');
    recv_all(fd, answer.data(), answer.size(), after(kAmple));
    send_all(fd, verdict.data(), verdict.size(), after(kAmple));
  });
  const Entrance e =
      enter({"127.0.0.1", port_of(*port)}, "a secret of the test", {Purpose::rendezvous, 1, 2}, after(kAmple));
  EXPECT_FALSE(e.fd);
  EXPECT_EQ(e.why, "it does not know the secret of the job");
  server.join();
}

// Before rank 0 has made the secret anybody could know that there is none.
TEST(Attack, RanksDoNotConnectBeforeTheSecretExists) {
  const auto port = listen_on("127.0.0.1", 0);
  RendezvousOptions o = options({.ranks = 2, .port = port_of(*port), .timeout = 0.2}, 1);
  o.key = [] { return JobKey{}; };
  try {
    const Rendezvous r(o);
    ADD_FAILURE() << "nobody was there";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("has not written the secret"), std::string::npos) << e.what();
  }
  EXPECT_FALSE(readable(*port, 0));
}

// On one machine the private file says where rank 0 listens.
TEST(Attack, RanksDoNotConnectToAStrangerOnTheFirstPort) {
  const auto port = listen_on("127.0.0.1", 0);
  const Setting s{.ranks = 2, .port = port_of(*port)};
  std::atomic<int> real{0};
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      RendezvousOptions o = options(s, r);
      o.listening = [&](int p) { real = p; };
      o.key = [&] { return JobKey{r == 0 || real != 0 ? s.secret : "", real}; };
      Rendezvous rendezvous(o);
      rendezvous.barrier("here");
    });
  for (auto& t : ranks) t.join();
  EXPECT_NE(real, s.port);
  EXPECT_FALSE(readable(*port, 0));
}

TEST(Attack, IgnoresListenerOnIpv6Loopback) {
  const Setting s{.ranks = 2, .host = "localhost"};
  std::optional<Fd> stranger;
  try {
    stranger = listen_on("::1", s.port);
  } catch (const Error&) {
    GTEST_SKIP() << "no IPv6 here";
  }
  ASSERT_TRUE(stranger);
  expect_none(run(s, [](Rendezvous& r) { make_tcp(r, "")->barrier(); }));
  EXPECT_FALSE(readable(*stranger, 0));
}

// A slow listener must not admit a peer that has given up: that peer connects again.
TEST(Doorkeeper, DisconnectedPeerIsNotAdmitted) {
  Doorkeeper door(*listen_on("127.0.0.1", 0), "a secret of the test", Purpose::data);
  const auto turn = [&] {
    std::vector<pollfd> fds;
    door.add_to(fds);
    poll(fds.data(), nfds_t(fds.size()), 100);
    return door.admit();
  };
  std::thread guest([&] {
    EXPECT_FALSE(enter({"127.0.0.1", door.port()}, "a secret of the test", {Purpose::data, 1, 2}, after(0.2)).fd);
  });
  EXPECT_TRUE(turn().empty());  // it is greeted
  guest.join();
  for (int k = 0; k < 5; ++k) EXPECT_TRUE(turn().empty());
}

// A rank that was stopped while connecting and then continues assumes that its last message admits it.
TEST(Doorkeeper, AuthenticatedPeerMayConfirmLate) {
  const std::string secret = "a secret of the test";
  Doorkeeper door(*listen_on("127.0.0.1", 0), secret, Purpose::data, 0.02);
  const auto turn = [&] {
    std::vector<pollfd> fds;
    door.add_to(fds);
    poll(fds.data(), nfds_t(fds.size()), 100);
    return door.admit().size();
  };
  const Fd silent = dial(door.port()), guest = dial(door.port());
  EXPECT_EQ(turn(), 0u);  // both are greeted
  std::string hello(40, '\0'), answer(32, 'n'), verdict(33, '\0');
  ASSERT_TRUE(recv_all(guest, hello.data(), hello.size(), after(kAmple)));
  for (const uint64_t field : {uint64_t(Purpose::data), uint64_t{1}, uint64_t{2}}) put_u64(answer, field);
  answer += remote_endpoint(guest);
  answer.resize(32 + 24 + 64);
  const auto proof = [&](std::string_view who) { return derive(secret, who, hello.substr(8) + answer); };
  const std::string message = cat(answer, as_text(proof("guest"))), last(as_text(proof("guest stays")));
  ASSERT_TRUE(send_all(guest, message.data(), message.size(), after(kAmple)));
  EXPECT_EQ(turn(), 0u);
  ASSERT_TRUE(recv_all(guest, verdict.data(), verdict.size(), after(kAmple)));
  EXPECT_EQ(verdict[0], 'w');
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(turn(), 0u);
  EXPECT_TRUE(recv_all(silent, hello.data(), hello.size(), after(kAmple)));
  EXPECT_FALSE(recv_all(silent, hello.data(), 1, after(kAmple))) << "who says nothing is sent away";
  ASSERT_TRUE(send_all(guest, last.data(), last.size(), after(kAmple)));
  EXPECT_EQ(turn(), 1u);
}

TEST(Rendezvous, DifferentSecretsAreReportedOnBothSides) {
  patiently({0.5, 5, 50}, [](double limit) {
    const Setting s{.ranks = 2, .timeout = limit};
    std::vector<std::string> errors(2);
    std::vector<std::thread> ranks;
    for (int r = 0; r < 2; ++r)
      ranks.emplace_back([&, r] {
        RendezvousOptions o = options(s, r);
        if (r == 1) o.key = [] { return JobKey{"another secret of 29 letters.", 0}; };
        try {
          const Rendezvous rendezvous(o);
        } catch (const Error& e) {
          errors[size_t(r)] = e.what();
        }
      });
    for (auto& t : ranks) t.join();
    return all_say(errors, "had another secret", 1) && all_say(errors, "the secrets of the job differ", 0);
  });
}

TEST(Rendezvous, WorksOnEveryLoopbackAddress) {
  for (const char* host : {"127.0.0.1", "localhost", "127.0.0.2", "::1", "0:0:0:0:0:0:0:1"}) {
    try {
      (void)listen_on(listening_address(host), 0);
    } catch (const Error&) {
      continue;  // a machine without IPv6
    }
    expect_none(run({.ranks = 2, .host = host}, [](Rendezvous& r) { make_tcp(r, "")->barrier(); }));
  }
}

TEST(Rendezvous, RankZeroUsesItsInheritedListener) {
  auto port = listen_on("127.0.0.1", 0);
  const Setting s{.ranks = 2, .port = port_of(*port)};
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r)
    ranks.emplace_back([&, r] {
      RendezvousOptions o = options(s, r);
      if (r == 0) o.ranks.listener = port->release();
      Rendezvous rendezvous(o);
      rendezvous.barrier("here");
    });
  for (auto& t : ranks) t.join();
  EXPECT_THROW(inherited_listener(0, s.port), Error);
}

}  // namespace
}  // namespace athanor
