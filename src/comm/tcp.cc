#include "comm/tcp.h"

#include <algorithm>
#include <optional>

#include "base/sha256.h"
#include "comm/link.h"
#include "comm/seal.h"

namespace athanor {
namespace {

// The connections of one rank to all others.
class Connections final : public Wire {
 public:
  Connections(Rendezvous& rendezvous, const std::string& interfaces);
  void run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) override;

 private:
  void connect(const std::vector<std::string>& endpoints, const std::string& secret);
  bool moved(const Transfer&, Link::Outcome);  // throws if the peer is gone
  Rendezvous& rendezvous_;
  std::vector<std::optional<Link>> peers_;  // by rank
};

constexpr std::string_view kWhereYouMetMe = "*";  // as rank 0's address, which listens on all of its own

Connections::Connections(Rendezvous& rendezvous, const std::string& interfaces)
    : rendezvous_(rendezvous), peers_(size_t(rendezvous.size())) {
  const RankInfo& me = rendezvous.options().ranks;
  require_file_descriptors(me.world,
                           cat("tcp: connections of rank ", me.rank, " to the other ", me.world - 1, " ranks"));
  const std::string address = interfaces.empty() ? rendezvous.address() : interface_address(interfaces);
  auto listener = listen_on(address, 0);
  if (!listener) throw Error("tcp: this machine has no free port");
  const std::string endpoint = cat('[', address.empty() ? kWhereYouMetMe : address, "]:", port_of(*listener));
  // Every rank publishes its listening address and a random number; together they are the secret of these connections.
  std::string mine;
  put_text(mine, endpoint);
  put_text(mine, to_hex(random_bytes(32)));
  std::vector<std::string> endpoints;
  std::string numbers;
  for (const std::string& text : rendezvous.exchange("tcp endpoint", mine)) {
    FieldReader fields(text);
    endpoints.push_back(fields.text());
    numbers += fields.text();
  }
  const std::string secret(as_text(derive(rendezvous.secret(), "tensors", numbers)));
  connect({endpoints.begin(), endpoints.begin() + me.rank}, secret);
  Doorkeeper door(std::move(*listener), secret, Purpose::data);
  const Deadline deadline = after(rendezvous.options().timeout);
  for (int missing = me.world - 1 - me.rank; missing > 0;) {
    std::vector<pollfd> fds = {{rendezvous.failure_fd(), POLLIN, 0}};
    door.add_to(fds);
    poll(fds.data(), nfds_t(fds.size()), std::min(100, milliseconds_left(deadline)));
    rendezvous.throw_if_failed();
    for (Guest& guest : door.admit()) {
      if (guest.rank <= me.rank || guest.rank >= me.world || peers_[size_t(guest.rank)]) continue;
      peers_[size_t(guest.rank)].emplace(std::move(guest.fd), guest.session);
      --missing;
    }
    if (Clock::now() > deadline) throw Error("tcp: some ranks did not connect in time", Exit::peer_lost);
  }
  rendezvous.barrier("tcp connected");
}

void Connections::connect(const std::vector<std::string>& endpoints, const std::string& secret) {
  const RankInfo& me = rendezvous_.options().ranks;
  const double timeout = rendezvous_.options().timeout;
  const Deadline deadline = after(timeout);
  for (size_t peer = 0; peer < endpoints.size(); ++peer) {
    Endpoint to = parse_endpoint(endpoints[peer]);
    if (to.host == kWhereYouMetMe) to.host = rendezvous_.server_address();
    while (!peers_[peer]) {
      Entrance e = enter(to, secret, {Purpose::data, me.rank, me.world}, of_attempt(deadline, timeout));
      rendezvous_.throw_if_failed();
      if (!e.fd && Clock::now() > deadline)
        throw Error(cat("rank ", me.rank, " cannot reach rank ", peer, " at ", to.host, " port ", to.port, ": ", e.why,
                        "; a firewall may close its ports, or ATHANOR_SOCKET_IFNAME should name another interface"),
                    Exit::peer_lost);
      if (e.fd) peers_[peer].emplace(std::move(e.fd), e.session);
    }
  }
}

bool Connections::moved(const Transfer& t, Link::Outcome outcome) {
  if (outcome == Link::Outcome::closed)
    rendezvous_.throw_lost(cat("rank ", t.peer, " is gone: it closed the connection to rank ", rendezvous_.rank()));
  return outcome == Link::Outcome::moved;
}

void Connections::run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) {
  const Transfer* first = !sends.empty() ? &sends[0] : !receives.empty() ? &receives[0] : nullptr;
  if (!first) return;
  const Rendezvous::Waiting waiting(rendezvous_, name_of(Collective(first->header.op)));
  std::vector<pollfd> fds;
  for (bool failed = false;;) {
    for (Transfer& t : sends)
      while (!ended(t) && moved(t, peers_[size_t(t.peer)]->push(t))) {
      }
    for (Transfer& t : receives)
      while (!ended(t) && moved(t, peers_[size_t(t.peer)]->pull(t, rendezvous_.rank()))) {
      }
    fds.assign(1, {rendezvous_.failure_fd(), POLLIN, 0});
    for (const Transfer& t : sends)
      if (!ended(t)) fds.push_back({peers_[size_t(t.peer)]->fd().get(), POLLOUT, 0});
    for (const Transfer& t : receives)
      if (!ended(t)) fds.push_back({peers_[size_t(t.peer)]->fd().get(), POLLIN, 0});
    if (fds.size() == 1) return;
    if (failed) rendezvous_.throw_if_failed();  // after a last poll: a call that all ranks made may be complete
    poll(fds.data(), nfds_t(fds.size()), -1);
    failed = fds[0].revents != 0;
  }
}

}  // namespace

std::unique_ptr<Communicator> make_tcp(Rendezvous& rendezvous, const std::string& interfaces) {
  return make_direct(std::make_shared<Connections>(rendezvous, interfaces), rendezvous.rank(), rendezvous.size());
}

}  // namespace athanor
