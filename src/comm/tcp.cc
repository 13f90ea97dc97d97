#include "comm/tcp.h"

#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>

#include "base/crypto.h"
#include "base/thread.h"
#include "comm/link.h"
#include "comm/shared_link.h"

namespace athanor {
namespace {

// Published as the address of rank 0 when rank 0 listens on all its addresses.
constexpr std::string_view kWhereYouMetMe = "*";
constexpr double kSecondsToDial = 60;  // limit to reach a rank whose process lives: a thread of it always answers
constexpr int kPauseMs = 20;
constexpr double kSecondsInMemory = 50e-6;  // duration of polling shared memory before the rank sleeps

// Admits the ranks that dial this one, on a thread, so that they need not wait until this rank needs them.
class Entry {
 public:
  using Guest = SharedEntry::Guest;
  // Admits ranks over TCP, and those of this machine through `shared`, until all ranks above this one are in.
  Entry(Fd listener, SharedEntry shared, const std::string& secret, const RankInfo& me);
  ~Entry();
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  int arrived_fd() const { return arrived_.get(); }  // readable when there are guests
  std::vector<Guest> guests();

 private:
  void serve(int rank, int world);
  Doorkeeper door_;
  SharedEntry shared_;
  Fd arrived_, stop_;
  std::mutex mutex_;
  std::vector<Guest> guests_;
  std::thread thread_;
};

Entry::Entry(Fd listener, SharedEntry shared, const std::string& secret, const RankInfo& me)
    : door_(std::move(listener), secret, Purpose::data),
      shared_(std::move(shared)),
      arrived_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(arrived_ && stop_, "eventfd");
  shared_.open(secret, me.rank, me.world);
  if (me.rank + 1 < me.world)
    thread_ = start_thread("the ranks that dial this one", [this, me] { serve(me.rank, me.world); });
  else
    door_.close();
}

Entry::~Entry() {
  eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void Entry::serve(int rank, int world) {
  std::vector<bool> came(static_cast<size_t>(world));
  for (int missing = world - 1 - rank; missing > 0;) {
    std::vector<pollfd> fds = {{stop_.get(), POLLIN, 0}};
    door_.add_to(fds);
    shared_.add_to(fds);
    poll(fds.data(), nfds_t(fds.size()), door_.is_idle() ? -1 : 100);
    if (fds[0].revents != 0) return;
    std::vector<Guest> in = shared_.admit();
    for (auto& guest : door_.admit())
      in.push_back({guest.rank, make_tcp_link(std::move(guest.fd), std::move(guest.session))});
    for (Guest& guest : in) {
      if (guest.rank <= rank || guest.rank >= world || came[size_t(guest.rank)]) continue;
      came[size_t(guest.rank)] = true;
      --missing;
      const std::lock_guard lock(mutex_);
      guests_.push_back(std::move(guest));
      eventfd_write(arrived_.get(), 1);
    }
  }
  door_.close();
  shared_.close();
}

std::vector<Entry::Guest> Entry::guests() {
  eventfd_t value = 0;
  const std::lock_guard lock(mutex_);
  eventfd_read(arrived_.get(), &value);
  return std::exchange(guests_, {});
}

// The connections of one rank to others. Each is made when it is first needed, by the rank with the higher number.
class Connections final : public Wire {
 public:
  Connections(Rendezvous& rendezvous, const std::string& interfaces, bool share_memory, const std::string& name);
  void run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) override;
  void start(Transfer send) override;
  void finish(int peer, int64_t under_way) override;

 private:
  template <class Done>
  void move_until(std::vector<Transfer>& sends, std::vector<Transfer>& receives, Done done);
  bool move_started();
  bool move_all(std::vector<Transfer>& sends, std::vector<Transfer>& receives);
  Link* link_to(const Transfer& t) const { return peers_[size_t(t.peer)].get(); }
  int64_t under_way(int peer) const { return std::ranges::count(started_, peer, &Transfer::peer); }
  void connect(const std::vector<Transfer>& some, const std::vector<Transfer>& others);
  void dial(int peer);
  void add_guests();
  bool moved(const Transfer&, Link::Outcome);  // throws if the peer is gone
  Rendezvous& rendezvous_;
  std::vector<std::string> endpoints_, shared_;  // addresses by rank: over TCP, and for ranks on its machine
  std::string secret_;
  std::vector<std::unique_ptr<Link>> peers_;  // indexed by world rank
  std::vector<Transfer> started_;             // asynchronous sends, in their order
  Calls calls_;
  std::optional<Entry> entry_;
};

Connections::Connections(Rendezvous& rendezvous, const std::string& interfaces, bool share_memory,
                         const std::string& name)
    : rendezvous_(rendezvous), peers_(size_t(rendezvous.size())) {
  const RankInfo& me = rendezvous.options().ranks;
  const int first = std::min(me.world, rendezvous.tree().fan_out + 2);
  require_file_descriptors(first, cat("tcp: connections of rank ", me.rank, " to ", first - 1, " other ranks"));
  const std::string address = interfaces.empty() ? rendezvous.address() : interface_address(interfaces);
  auto listener = listen_on(address, 0);
  if (!listener) throw Error("tcp: this machine has no free port");
  const std::string endpoint = cat('[', address.empty() ? kWhereYouMetMe : address, "]:", port_of(*listener));
  // Every rank publishes its listening address and a random number; together they are the secret of these connections.
  std::string mine;
  put_text(mine, endpoint);
  put_text(mine, to_hex(random_bytes(32)));
  SharedEntry shared = share_memory ? SharedEntry::listening() : SharedEntry();
  put_text(mine, shared.address());
  std::string numbers;
  for (const std::string& text : rendezvous.exchange(cat(name, " endpoint"), mine)) {
    FieldReader fields(text);
    endpoints_.push_back(fields.text());
    numbers += fields.text();
    shared_.push_back(fields.text());
  }
  secret_ = as_text(derive(rendezvous.secret(), "tensors", numbers));
  entry_.emplace(std::move(*listener), std::move(shared), secret_, me);
}

void Connections::dial(int peer) {
  const RankInfo& me = rendezvous_.options().ranks;
  Endpoint to = parse_endpoint(endpoints_[size_t(peer)]);
  if (to.host == kWhereYouMetMe) to.host = rendezvous_.server_address();
  const double patience = std::min(kSecondsToDial, rendezvous_.options().timeout);
  const Deadline deadline = after(patience);
  if (on_one_machine(shared_[size_t(me.rank)], shared_[size_t(peer)]))
    peers_[size_t(peer)] = dial_shared(shared_[size_t(peer)], secret_, me.rank, peer, of_attempt(deadline, patience));
  while (!peers_[size_t(peer)]) {
    Entrance e = enter(to, secret_, {Purpose::data, me.rank, me.world}, of_attempt(deadline, patience));
    if (e.fd) {
      peers_[size_t(peer)] = make_tcp_link(std::move(e.fd), std::move(e.session));
      return;
    }
    rendezvous_.throw_if_failed();
    require_file_descriptors(1, cat("tcp: the connection of rank ", me.rank, " to rank ", peer));
    if (Clock::now() > deadline)
      throw Error(cat("rank ", me.rank, " cannot reach rank ", peer, " at ", to.host, " port ", to.port, ": ", e.why,
                      "; a firewall may close its ports, or ATHANOR_SOCKET_IFNAME should name another interface"),
                  Exit::peer_lost);
    pollfd failed{rendezvous_.failure_fd(), POLLIN, 0};
    poll(&failed, 1, kPauseMs);
  }
}

// Dials the missing ranks below this one; those above dial this one.
void Connections::connect(const std::vector<Transfer>& some, const std::vector<Transfer>& others) {
  std::vector<int> missing;
  for (const auto* list : {&some, &others})
    for (const Transfer& t : *list)
      if (!peers_[size_t(t.peer)]) missing.push_back(t.peer);
  if (missing.empty()) return;
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  if (int(missing.size()) > rendezvous_.tree().fan_out + 1)
    require_file_descriptors(int64_t(missing.size()), cat("tcp: connections of rank ", rendezvous_.rank(), " to ",
                                                          missing.size(), " more ranks"));
  for (const int peer : missing)
    if (peer < rendezvous_.rank()) dial(peer);
}

void Connections::add_guests() {
  for (Entry::Guest& guest : entry_->guests()) peers_[size_t(guest.rank)] = std::move(guest.link);
}

bool Connections::moved(const Transfer& t, Link::Outcome outcome) {
  if (outcome == Link::Outcome::closed)
    rendezvous_.throw_lost(cat("rank ", t.peer, " is gone: it closed the connection to rank ", rendezvous_.rank()));
  return outcome == Link::Outcome::moved;
}

void Connections::run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) {
  const Transfer* first = !sends.empty() ? &sends[0] : !receives.empty() ? &receives[0] : nullptr;
  if (!first) return;
  const Rendezvous::Waiting waiting(rendezvous_, name_of(Collective(first->header.op)), calls_.begins(first->header));
  connect(sends, receives);
  move_until(sends, receives, [&] {
    return std::ranges::all_of(sends, &Transfer::ended) && std::ranges::all_of(receives, &Transfer::ended);
  });
}

void Connections::start(Transfer send) {
  std::vector<Transfer> none;
  connect({send}, none);
  send.started = true;
  started_.push_back(send);
  add_guests();
  move_started();
}

void Connections::finish(int peer, int64_t most) {
  if (under_way(peer) <= most) return;
  const Rendezvous::Waiting waiting(rendezvous_, name_of(Collective::message), true);
  std::vector<Transfer> sends, receives;
  move_until(sends, receives, [&] { return under_way(peer) <= most; });
}

// Advances the started sends, which come before other sends to the same peer. Returns whether anything moved, like
// move_all().
bool Connections::move_started() {
  bool any = false;
  std::vector<int> waiting;  // peers whose connection takes no more data now
  for (Transfer& t : started_) {
    if (std::ranges::find(waiting, t.peer) != waiting.end()) continue;
    while (!t.ended && link_to(t) && moved(t, link_to(t)->push(t))) any = true;
    if (!t.ended) waiting.push_back(t.peer);
  }
  std::erase_if(started_, [](const Transfer& t) { return t.ended; });
  return any;
}

bool Connections::move_all(std::vector<Transfer>& sends, std::vector<Transfer>& receives) {
  add_guests();
  bool any = move_started();
  for (Transfer& t : sends)
    while (!t.ended && under_way(t.peer) == 0 && link_to(t) && moved(t, link_to(t)->push(t))) any = true;
  for (Transfer& t : receives)
    while (!t.ended && link_to(t) && moved(t, link_to(t)->pull(t, rendezvous_.rank()))) any = true;
  return any;
}

// Polls shared memory for kSecondsInMemory, then sleeps in poll().
template <class Done>
void Connections::move_until(std::vector<Transfer>& sends, std::vector<Transfer>& receives, Done done) {
  std::vector<pollfd> fds;
  const auto each_waiting = [&](auto&& apply) {
    for (const auto* list : {&started_, &sends, &receives})
      for (const Transfer& t : *list)
        if (!t.ended) apply(link_to(t), list != &receives);
  };
  const auto all_in_memory = [&] {
    bool all = true;
    each_waiting([&](const Link* link, bool) { all = all && link && link->in_memory(); });
    return all;
  };
  for (bool failed = false;;) {
    move_all(sends, receives);
    for (const Deadline end = after(kSecondsInMemory); !done() && all_in_memory() && Clock::now() < end;) {
      sched_yield();  // the peer may need this core
      move_all(sends, receives);
    }
    if (done()) return;
    if (failed) rendezvous_.throw_if_failed();  // after a last move_all(): a call that all ranks made may be complete
    fds.assign({{rendezvous_.failure_fd(), POLLIN, 0}, {entry_->arrived_fd(), POLLIN, 0}});
    bool in_memory = false;
    each_waiting([&](Link* link, bool is_send) {
      if (link) link->begin_wait(fds, is_send, !is_send);
      in_memory = in_memory || (link && link->in_memory());
    });
    const bool moved = in_memory && move_all(sends, receives);
    poll(fds.data(), nfds_t(fds.size()), moved ? 0 : -1);
    each_waiting([](Link* link, bool) {
      if (link) link->end_wait();
    });
    failed = fds[0].revents != 0;
  }
}

}  // namespace

std::unique_ptr<Communicator> make_tcp(Rendezvous& rendezvous, const std::string& interfaces, bool share_memory,
                                       const std::string& name) {
  auto world = make_direct(std::make_shared<Connections>(rendezvous, interfaces, share_memory, name), rendezvous.rank(),
                           rendezvous.tree());
  // Fails now if a rank cannot be reached: connects to every rank, or to the neighbours in the tree.
  world->barrier();
  return world;
}

}  // namespace athanor
