#include "comm/tcp.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "comm/wire.h"

namespace athanor {
namespace {

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

// The connections of one rank to all others.
class Connections final : public Wire {
 public:
  Connections(Rendezvous& rendezvous, const std::string& interfaces);
  void run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) override;

 private:
  void connect(const std::vector<std::string>& endpoints, const std::string& secret);
  bool push(Transfer&);
  bool pull(Transfer&);
  void lost(int peer);
  Rendezvous& rendezvous_;
  std::vector<Fd> peers_;
};

Connections::Connections(Rendezvous& rendezvous, const std::string& interfaces)
    : rendezvous_(rendezvous), peers_(size_t(rendezvous.size())) {
  const RankInfo& me = rendezvous.options().ranks;
  auto listener = listen_on(is_loopback(rendezvous.address()) && is_loopback(me.host), 0);
  if (!listener) throw Error("tcp: this machine has no free port");
  const std::string address = interfaces.empty() ? rendezvous.address() : interface_address(interfaces);
  // One secret of this very run for the connections: known to those who were let in.
  const auto endpoints = rendezvous.exchange("tcp endpoint", cat("[", address, "]:", port_of(*listener)));
  const std::string secret = rendezvous.options().secret();
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
      peers_[size_t(guest.rank)] = std::move(guest.fd);
      --missing;
    }
    if (Clock::now() > deadline) throw Error("tcp: some ranks did not connect in time", Exit::peer_lost);
  }
  rendezvous.barrier("tcp connected");
}

void Connections::connect(const std::vector<std::string>& endpoints, const std::string& secret) {
  const RankInfo& me = rendezvous_.options().ranks;
  const Deadline deadline = after(rendezvous_.options().timeout);
  for (size_t peer = 0; peer < endpoints.size(); ++peer) {
    std::string why;
    const Endpoint to = parse_endpoint(endpoints[peer]);
    while (!peers_[peer]) {
      peers_[peer] = enter(to, secret, Purpose::data, me.rank, me.world, {deadline, deadline}, &why);
      rendezvous_.throw_if_failed();
      if (!peers_[peer] && Clock::now() > deadline)
        throw Error(cat("rank ", me.rank, " cannot reach rank ", peer, " at ", endpoints[peer], ": ", why,
                        "; a firewall may close its ports, or ATHANOR_SOCKET_IFNAME should name another interface"),
                    Exit::peer_lost);
    }
  }
}

void Connections::lost(int peer) {
  rendezvous_.throw_lost(cat("rank ", peer, " is gone: it closed the connection to rank ", rendezvous_.rank()));
}

// True if bytes moved.
bool Connections::push(Transfer& t) {
  const bool head = t.done < sizeof(Header);
  const void* from = head ? reinterpret_cast<const std::byte*>(&t.header) + t.done : t.data + (t.done - sizeof(Header));
  const size_t bytes = (head ? sizeof(Header) : t.total()) - t.done;
  const ssize_t n = send(peers_[size_t(t.peer)].get(), from, bytes, MSG_NOSIGNAL);
  if (n < 0 && !would_block(errno)) lost(t.peer);
  if (n > 0) t.done += size_t(n);
  return n > 0;
}

bool Connections::pull(Transfer& t) {
  const bool head = t.done < sizeof(Header);
  void* to = head ? reinterpret_cast<std::byte*>(&t.arrived) + t.done : t.data + (t.done - sizeof(Header));
  const size_t bytes = (head ? sizeof(Header) : t.total()) - t.done;
  const ssize_t n = recv(peers_[size_t(t.peer)].get(), to, bytes, 0);
  if (n == 0 || (n < 0 && !would_block(errno))) lost(t.peer);
  if (n > 0) t.done += size_t(n);
  if (head && t.done == sizeof(Header)) require_same_call(t, rendezvous_.rank());
  return n > 0;
}

void Connections::run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) {
  const Transfer* first = !sends.empty() ? &sends[0] : !receives.empty() ? &receives[0] : nullptr;
  if (!first) return;
  const Rendezvous::Waiting waiting(rendezvous_, name_of(Collective(first->header.op)));
  std::vector<pollfd> fds;
  for (bool failed = false;;) {
    for (Transfer& t : sends)
      while (!t.ended() && push(t)) {
      }
    for (Transfer& t : receives)
      while (!t.ended() && pull(t)) {
      }
    fds.assign(1, {rendezvous_.failure_fd(), POLLIN, 0});
    for (const Transfer& t : sends)
      if (!t.ended()) fds.push_back({peers_[size_t(t.peer)].get(), POLLOUT, 0});
    for (const Transfer& t : receives)
      if (!t.ended()) fds.push_back({peers_[size_t(t.peer)].get(), POLLIN, 0});
    if (fds.size() == 1) return;
    if (failed) rendezvous_.throw_if_failed();  // after a last look: a call that all have made is whole
    poll(fds.data(), nfds_t(fds.size()), -1);
    failed = fds[0].revents != 0;
  }
}

}  // namespace

std::unique_ptr<Communicator> make_tcp(Rendezvous& rendezvous, const std::string& interfaces) {
  return make_direct(std::make_shared<Connections>(rendezvous, interfaces), rendezvous.rank(), rendezvous.size());
}

}  // namespace athanor
