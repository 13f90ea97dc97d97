#include "comm/handshake.h"

#include "base/error.h"
#include "base/sha256.h"

namespace athanor {
namespace {

constexpr std::string_view kMagic = "athanor1";
constexpr size_t kNonce = 32, kMac = 32, kAnswer = kNonce + 3 * 8 + kMac;
constexpr size_t kMaxApplicants = 1024;
constexpr double kSecondsToAnswer = 10;

std::string mac(const std::string& secret, std::string_view who, const std::string& nonce, std::string_view answer) {
  const Digest d = hmac_sha256(secret, cat(who, nonce, answer));
  return {reinterpret_cast<const char*>(d.data()), d.size()};
}

bool same(std::string_view a, std::string_view b) {
  unsigned different = a.size() != b.size();
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) different |= unsigned(uint8_t(a[i]) ^ uint8_t(b[i]));
  return different == 0;
}

}  // namespace

Fd enter(const Endpoint& to, const std::string& secret, Purpose purpose, int rank, int world, Patience patience,
         std::string* why) {
  Fd fd = connect_to(to, patience.greeting, why);
  if (!fd) return {};
  std::string hello(kMagic.size() + kNonce, '\0');
  if (!recv_all(fd, hello.data(), hello.size(), patience.greeting))
    return *why = "whoever listens there does not greet", Fd();
  if (!hello.starts_with(kMagic)) return *why = "something else than a rank of this program listens there", Fd();
  const std::string nonce = hello.substr(kMagic.size());
  std::string answer = random_bytes(kNonce);
  for (const uint64_t field : {uint64_t(purpose), uint64_t(rank), uint64_t(world)}) put_u64(answer, field);
  const std::string message = answer + mac(secret, "guest", nonce, answer);
  std::string proof(kMac, '\0');
  if (!send_all(fd, message.data(), message.size(), patience.all) ||
      !recv_all(fd, proof.data(), proof.size(), patience.all))
    return *why = Clock::now() < patience.all ? "it does not let us in: the secrets of the job differ"
                                              : "it does not answer any more",
           Fd();
  if (!same(proof, mac(secret, "listener", nonce, answer)))
    return *why = "it does not know the secret of the job", Fd();
  return fd;
}

void Doorkeeper::add_to(std::vector<pollfd>& fds) const {
  fds.push_back({listener_.get(), POLLIN, 0});
  for (const Applicant& a : applicants_) fds.push_back({a.pipe.fd().get(), a.pipe.wanted(), 0});
}

Doorkeeper::Verdict Doorkeeper::judge(Applicant& a, Guest* guest) const {
  const bool open = a.pipe.advance();
  std::string& in = a.pipe.received();
  if (in.size() < kAnswer) return open && Clock::now() < a.deadline ? Verdict::waiting : Verdict::refused;
  if (in.size() > kAnswer) return Verdict::refused;  // a guest waits for our proof
  const std::string answer = in.substr(0, kAnswer - kMac);
  if (!same(in.substr(kAnswer - kMac, kMac), mac(secret_, "guest", a.nonce, answer))) return Verdict::refused;
  FieldReader fields(std::string_view(answer).substr(kNonce));
  if (fields.u64() != uint64_t(purpose_)) return Verdict::refused;
  guest->rank = int(fields.u64());
  guest->world = int(fields.u64());
  const std::string proof = mac(secret_, "listener", a.nonce, answer);
  if (!send_all(a.pipe.fd(), proof.data(), proof.size(), after(1))) return Verdict::refused;
  guest->fd = a.pipe.take_fd();
  return Verdict::welcome;
}

std::vector<Guest> Doorkeeper::admit() {
  while (Fd fd = accept_from(listener_)) {
    if (applicants_.size() >= kMaxApplicants) applicants_.pop_front();
    Applicant& a =
        applicants_.emplace_back(Applicant{Pipe(std::move(fd)), random_bytes(kNonce), after(kSecondsToAnswer)});
    a.pipe.write(cat(kMagic, a.nonce));
  }
  std::vector<Guest> guests;
  for (auto a = applicants_.begin(); a != applicants_.end();) {
    Guest guest;
    const Verdict verdict = judge(*a, &guest);
    if (verdict == Verdict::welcome) guests.push_back(std::move(guest));
    a = verdict == Verdict::waiting ? std::next(a) : applicants_.erase(a);
  }
  return guests;
}

}  // namespace athanor
