// How ranks let each other in: both sides prove that they know the secret of the job, which itself never travels, and
// that they speak of the same connection: the guest names the address and port that it has dialled, the listener
// compares them with those it was reached at. So nobody can stand between them under an address of his own.
//   listener -> guest: magic, nonce
//   guest -> listener: nonce, purpose, rank, world, address dialled, HMAC(secret, all of it)
//   listener -> guest: verdict, HMAC(secret, all of it, the other way round)
//   guest -> listener: HMAC(secret, ...) once more: it is still there
// Both nonces and all that was said make the keys of the connection (seal.h), with which every later message is
// authenticated.
#pragma once
#include <list>
#include <string>
#include <vector>

#include "comm/seal.h"
#include "comm/socket.h"

namespace athanor {

enum class Purpose : uint64_t { rendezvous = 1, data = 2 };

// Who wants to be let in.
struct Card {
  Purpose purpose = Purpose::rendezvous;
  int rank = 0, world = 0;
};

// Of one attempt of several that may take `timeout` seconds together: whoever listens on a port may be a stranger that
// never answers.
Deadline of_attempt(Deadline all, double timeout);

struct Guest {
  Fd fd;
  Session session;
  int rank = 0, world = 0;
};

struct Entrance {
  Fd fd;  // empty: not let in
  Session session;
  std::string why;       // it was not
  bool refused = false;  // by another process of this program, which said why; else nobody answers, or a stranger
};

// The guest's side. A guest may leave at any moment and try again: it counts as inside once it has answered the
// listener's proof.
Entrance enter(const Endpoint&, const std::string& secret, const Card&, Deadline);

// The listener's side, for event loops: silent or talkative peers never block the listener, and cost it little.
class Doorkeeper {
 public:
  Doorkeeper(Fd listener, std::string secret, Purpose purpose);
  int port() const { return port_; }
  void add_to(std::vector<pollfd>&) const;
  // After poll(): lets in whoever has proved to belong here.
  std::vector<Guest> admit();
  void close();  // nobody else is expected
  // "; 3 connections came with another secret, the last from 10.0.0.7: ...", or "".
  std::string strangers() const;

 private:
  struct Applicant {
    Pipe pipe;
    std::string nonce;
    Deadline came;
    std::string answer = {};  // once it has proved to know the secret
  };
  enum class Stage { waiting, refused, inside };
  void accept();
  Stage advance(Applicant&);
  Stage judge(Applicant&);
  Fd listener_;
  int port_;
  std::string secret_;
  Purpose purpose_;
  std::list<Applicant> applicants_;
  bool crowded_ = false;  // others wait at the door, and those inside must answer at once
  Deadline pause_ = {};   // until then nobody is let in: there are no descriptors
  bool relayed_ = false;  // has been said
  int strangers_ = 0;     // with another secret
  std::string last_stranger_;
};

}  // namespace athanor
