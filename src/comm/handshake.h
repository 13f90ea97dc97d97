// How ranks let each other in: both sides prove that they know the secret of the job, which itself never travels.
//   listener -> guest: magic, nonce      guest -> listener: nonce, purpose, rank, world, HMAC(secret, all of it)
//   listener -> guest: HMAC(secret, all of it, the other way round)
// Strangers, ranks of other jobs and wrong servers fail; nothing here hides what is said afterwards.
#pragma once
#include <list>
#include <vector>

#include "comm/socket.h"

namespace athanor {

enum class Purpose : uint64_t { rendezvous = 1, data = 2 };

struct Guest {
  Fd fd;
  int rank = 0, world = 0;
};

struct Patience {
  Deadline greeting, all;  // until the listener says what it is, until it has let the guest in
};

// The guest's side. An empty Fd with the reason in *why. Whoever has greeted is not left before the end of patience:
// the listener may let a guest in at any moment, and would miss one that has gone to try again.
Fd enter(const Endpoint&, const std::string& secret, Purpose, int rank, int world, Patience, std::string* why);

// The listener's side, for event loops: strangers that say nothing hold up nobody.
class Doorkeeper {
 public:
  Doorkeeper(Fd listener, std::string secret, Purpose purpose)
      : listener_(std::move(listener)), secret_(std::move(secret)), purpose_(purpose) {}
  int port() const { return port_of(listener_); }
  void add_to(std::vector<pollfd>&) const;
  // After poll(): lets in whoever has proved to belong here.
  std::vector<Guest> admit();

 private:
  struct Applicant {
    Pipe pipe;
    std::string nonce;
    Deadline deadline;
  };
  enum class Verdict { waiting, refused, welcome };
  Verdict judge(Applicant&, Guest*) const;
  Fd listener_;
  std::string secret_;
  Purpose purpose_;
  std::list<Applicant> applicants_;
};

}  // namespace athanor
