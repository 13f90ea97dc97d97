// Mutual authentication of ranks by a shared secret that is never sent. The guest also names the address and port that
// it dialled, and the listener compares them with its own: this detects a man in the middle at another address.
//   listener -> guest: magic, nonce
//   guest -> listener: nonce, purpose, rank, world, address dialled, HMAC(secret, all of it)
//   listener -> guest: verdict, HMAC(secret, all of it, for the other direction)
//   guest -> listener: HMAC(secret, ...) once more, which confirms that it is still connected
// The session keys (seal.h), which authenticate every later message, are derived from both nonces and the transcript.
#pragma once
#include <list>
#include <string>
#include <vector>

#include "comm/seal.h"
#include "comm/socket.h"

namespace athanor {

enum class Purpose : uint64_t { rendezvous = 1, data = 2 };

// Claims of a guest about itself.
struct Card {
  Purpose purpose = Purpose::rendezvous;
  int rank = 0, world = 0;
};

// Deadline of a single attempt, where all attempts together may take `timeout` seconds: the port may belong to another
// program that never answers.
Deadline of_attempt(Deadline all, double timeout);

struct Guest {
  Fd fd;
  Session session;
  int rank = 0, world = 0;
};

struct Entrance {
  Fd fd;  // empty: not admitted
  Session session;
  std::string why;       // reason why not
  bool refused = false;  // refused by a process of this program, with a reason; false: no answer, or another program
};

// The guest's side. A guest may disconnect and retry at any time: it is admitted once it has answered the listener's
// proof.
Entrance enter(const Endpoint&, const std::string& secret, const Card&, Deadline);

constexpr double kSecondsToAnswer = 10;  // limit for a connection that has not yet proved that it knows the secret

// The listener's side, for event loops: silent or slow peers never block the listener and use few resources.
class Doorkeeper {
 public:
  Doorkeeper(Fd listener, std::string secret, Purpose purpose, double seconds_to_answer = kSecondsToAnswer);
  int port() const { return port_; }
  void add_to(std::vector<pollfd>&) const;
  bool is_idle() const { return applicants_.empty() && Clock::now() > pause_; }  // poll() needs no time limit
  // Call after poll(): returns the guests that have authenticated.
  std::vector<Guest> admit();
  void close();  // no more guests are expected
  // "; 3 connections came with another secret, the last from 10.0.0.7: ...", or "".
  std::string strangers() const;

 private:
  struct Applicant {
    Pipe pipe;
    std::string nonce;
    Deadline came;
    std::string answer = {};  // set once it has proved that it knows the secret
  };
  enum class Stage { waiting, refused, inside };
  void accept();
  Stage advance(Applicant&);
  Stage judge(Applicant&);
  Fd listener_;
  int port_;
  std::string secret_;
  Purpose purpose_;
  double seconds_to_answer_;
  std::list<Applicant> applicants_;
  bool crowded_ = false;  // more connections are pending: applicants must answer without delay
  Deadline pause_ = {};   // no free descriptors: accept nobody until then
  bool relayed_ = false;  // the relay was already reported
  int strangers_ = 0;     // connections with another secret
  std::string last_stranger_;
};

}  // namespace athanor
