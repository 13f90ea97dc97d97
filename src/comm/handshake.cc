#include "comm/handshake.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace athanor {
namespace {

constexpr std::string_view kMagic = "athanor2";
constexpr size_t kNonce = 32, kMac = 32, kDialled = 64;  // "[IPv6]:port" has at most 54 characters
constexpr size_t kAnswer = kNonce + 3 * 8 + kDialled, kVerdict = 1 + kMac;
constexpr size_t kMaxApplicants = 64;
constexpr double kSecondsToAnswerWhenCrowded = 0.05;
constexpr double kSecondsToEnter = 5;
constexpr double kSecondsWithoutDescriptors = 0.1;  // pause before checking for free descriptors again
constexpr int kKeptForFiles = 64;                   // descriptors reserved for files

// The listener's verdict. Only `welcome` comes with a proof; the others are hints for an error message.
constexpr char kWelcome = 'w', kOtherSecret = 's', kOtherAddress = 'a', kOtherPurpose = 'p';

std::string mac(const std::string& secret, std::string_view who, const std::string& nonce, std::string_view answer) {
  return std::string(as_text(derive(secret, who, cat(nonce, answer))));
}

// Keys of both directions, from the listener's or the guest's point of view.
Session session_of(const std::string& secret, const std::string& nonce, const std::string& answer, bool listener) {
  Seal from_listener(derive(secret, "from listener", cat(nonce, answer)));
  Seal from_guest(derive(secret, "from guest", cat(nonce, answer)));
  if (!listener) std::swap(from_listener, from_guest);
  return {.out = std::move(from_listener), .in = std::move(from_guest)};
}

std::string meaning(char verdict, const std::string& dialled) {
  if (verdict == kOtherSecret) return "it refused this rank: the secrets of the job differ";
  if (verdict == kOtherPurpose) return "it refused this rank: it expects connections of another kind";
  if (verdict == kOtherAddress)
    return cat("it refused this rank: the connection was opened to ", dialled,
               " but arrived at another address: a proxy relays it, or NAT translates addresses");
  return "a program that is no rank of athanor listens there";
}

// Limits the descriptors of unauthenticated connections, so that the run can still open its files.
bool spares_files(const Fd& fd) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur <= 2 * kKeptForFiles || rlim_t(fd.get()) + kKeptForFiles < limit.rlim_cur;
}

}  // namespace

Deadline of_attempt(Deadline all, double timeout) {
  return std::min(all, after(std::min(kSecondsToEnter, timeout / 4)));
}

Entrance enter(const Endpoint& to, const std::string& secret, const Card& card, Deadline deadline) {
  Entrance e;
  const auto failed = [&](std::string why, bool refused = false) {
    e.why = std::move(why), e.refused = refused, e.fd = {};
    return std::move(e);
  };
  CHECK(!secret.empty(), "a job without a secret");
  e.fd = connect_to(to, deadline, &e.why);
  if (!e.fd) return e;
  std::string hello(kMagic.size() + kNonce, '\0');
  if (!recv_all(e.fd, hello.data(), hello.size(), deadline))
    return failed("the program that listens there sends no greeting");
  if (!hello.starts_with(kMagic)) return failed(meaning('\0', ""));
  const std::string nonce = hello.substr(kMagic.size());
  std::string answer = random_bytes(kNonce);
  for (const uint64_t field : {uint64_t(card.purpose), uint64_t(card.rank), uint64_t(card.world)})
    put_u64(answer, field);
  const std::string dialled = remote_endpoint(e.fd);
  answer += dialled;
  answer.resize(kAnswer);
  const std::string message = answer + mac(secret, "guest", nonce, answer);
  std::string verdict(kVerdict, '\0');
  if (!send_all(e.fd, message.data(), message.size(), deadline) ||
      !recv_all(e.fd, verdict.data(), verdict.size(), deadline))
    return failed("the program that listens there sends a greeting and then nothing");
  if (verdict[0] != kWelcome) return failed(meaning(verdict[0], dialled), true);
  if (!same_bytes(verdict.substr(1), mac(secret, "listener", nonce, answer)))
    return failed("it does not know the secret of the job", true);
  const std::string last = mac(secret, "guest stays", nonce, answer);
  if (!send_all(e.fd, last.data(), last.size(), deadline)) return failed("it closed the connection");
  e.session = session_of(secret, nonce, answer, false);
  return e;
}

Doorkeeper::Doorkeeper(Fd listener, std::string secret, Purpose purpose, double seconds_to_answer)
    : listener_(std::move(listener)),
      port_(port_of(listener_)),
      secret_(std::move(secret)),
      purpose_(purpose),
      seconds_to_answer_(seconds_to_answer) {
  CHECK(!secret_.empty(), "a job without a secret");
}

void Doorkeeper::close() {
  listener_ = {};
  applicants_.clear();
}

void Doorkeeper::add_to(std::vector<pollfd>& fds) const {
  if (listener_ && applicants_.size() < kMaxApplicants && Clock::now() > pause_)
    fds.push_back({listener_.get(), POLLIN, 0});
  for (const Applicant& a : applicants_) fds.push_back({a.pipe.fd().get(), a.pipe.wanted(), 0});
}

std::string Doorkeeper::strangers() const {
  if (strangers_ == 0) return "";
  return cat("; ", strangers_, strangers_ == 1 ? " connection" : " connections", " had another secret, the last from ",
             last_stranger_, ": check that ATHANOR_SECRET_FILE or ATHANOR_SECRET is the same for all ranks");
}

void Doorkeeper::accept() {
  if (Clock::now() < pause_) return;
  crowded_ = false;
  while (listener_ && applicants_.size() < kMaxApplicants) {
    Fd fd = accept_from(listener_);
    if (!fd && errno != EMFILE && errno != ENFILE) return;
    if (!fd || !spares_files(fd)) {
      crowded_ = true;
      pause_ = after(kSecondsWithoutDescriptors);
      return;
    }
    Applicant& a = applicants_.emplace_back(Applicant{Pipe(std::move(fd)), random_bytes(kNonce), Clock::now()});
    a.pipe.write(cat(kMagic, a.nonce));
    a.pipe.advance(0);
  }
  crowded_ = applicants_.size() >= kMaxApplicants;
}

// Called when a complete answer has arrived.
Doorkeeper::Stage Doorkeeper::judge(Applicant& a) {
  const std::string answer = a.pipe.received().substr(0, kAnswer), proof = a.pipe.received().substr(kAnswer);
  a.pipe.received().clear();
  const auto refuse = [&](char verdict) {
    a.pipe.write(cat(verdict, std::string(kMac, '\0')));
    a.pipe.advance(0);
    return Stage::refused;
  };
  if (!same_bytes(proof, mac(secret_, "guest", a.nonce, answer))) {
    last_stranger_ = remote_endpoint(a.pipe.fd());
    if (++strangers_ == 1)
      log::warn("rendezvous: a connection from ", last_stranger_,
                " had another secret: it is a rank of another job, or ATHANOR_SECRET_FILE or ATHANOR_SECRET differs "
                "between ranks");
    return refuse(kOtherSecret);
  }
  if (FieldReader(std::string_view(answer).substr(kNonce)).u64() != uint64_t(purpose_)) return refuse(kOtherPurpose);
  const std::string dialled = answer.c_str() + kAnswer - kDialled, here = local_endpoint(a.pipe.fd());
  if (dialled != here) {
    if (!std::exchange(relayed_, true))
      log::warn("rendezvous: a rank connected to ", dialled, " but arrived at ", here,
                ": a proxy relays the connection, or NAT translates addresses; the connection is refused");
    return refuse(kOtherAddress);
  }
  a.answer = answer;
  a.pipe.write(cat(kWelcome, mac(secret_, "listener", a.nonce, answer)));
  a.pipe.advance(0);
  return Stage::waiting;
}

Doorkeeper::Stage Doorkeeper::advance(Applicant& a) {
  const size_t wanted = a.answer.empty() ? kAnswer + kMac : kMac;
  const bool open = a.pipe.advance(wanted - a.pipe.received().size());
  if (a.pipe.received().size() == wanted) {
    if (a.answer.empty()) return judge(a);
    return same_bytes(a.pipe.received(), mac(secret_, "guest stays", a.nonce, a.answer)) ? Stage::inside
                                                                                         : Stage::refused;
  }
  // An applicant that knows the secret has no time limit: its last message, which admits it, may be on its way.
  const std::chrono::duration<double> patience(crowded_ ? kSecondsToAnswerWhenCrowded : seconds_to_answer_);
  return open && (!a.answer.empty() || Clock::now() - a.came < patience) ? Stage::waiting : Stage::refused;
}

std::vector<Guest> Doorkeeper::admit() {
  std::vector<Guest> guests;
  for (auto a = applicants_.begin(); a != applicants_.end();) {
    const Stage stage = advance(*a);
    if (stage == Stage::inside) {
      FieldReader fields(std::string_view(a->answer).substr(kNonce + 8));
      Guest& guest = guests.emplace_back();
      guest.rank = int(fields.u64()), guest.world = int(fields.u64());
      guest.session = session_of(secret_, a->nonce, a->answer, true);
      guest.fd = a->pipe.take_fd();
    }
    a = stage == Stage::waiting ? std::next(a) : applicants_.erase(a);
  }
  accept();
  return guests;
}

}  // namespace athanor
