#include "comm/threads.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/wire.h"

namespace athanor {
namespace {

// The ranks of one run_ranks(), and the data that they have sent and not yet received.
class Job {
 public:
  explicit Job(int ranks) : ended_(size_t(ranks)) {}

  void fail(int rank, std::exception_ptr error, const char* what) {
    const std::lock_guard lock(mutex_);
    if (failed_rank_ < 0) failed_rank_ = rank, failure = std::move(error), reason_ = what;
    changed_.notify_all();
  }
  void end(int rank) {
    const std::lock_guard lock(mutex_);
    ended_[size_t(rank)] = true;
    changed_.notify_all();
  }

  // The data is copied, since a rank that fails frees its memory before its data is received.
  void post(int rank, const Transfer& t) {
    Sent sent{t.header, {t.data, t.data + t.header.bytes}};
    const std::lock_guard lock(mutex_);
    sent_[{rank, t.peer, t.header.group}].push_back(std::move(sent));
    if (is_message(t)) ++messages_[{rank, t.peer}];
    changed_.notify_all();
  }
  void take(int rank, Transfer& t) {
    std::unique_lock lock(mutex_);
    auto& queue = sent_[{t.peer, rank, t.header.group}];
    wait(lock, t, [&] { return !queue.empty(); });
    const Sent sent = std::move(queue.front());
    queue.pop_front();
    if (is_message(t)) --messages_[{t.peer, rank}];
    changed_.notify_all();
    lock.unlock();
    t.arrived = sent.header;
    require_same_call(t, rank);
    std::copy(sent.data.begin(), sent.data.end(), t.data);
  }
  // Returns when at most `under_way` messages to the peer have not been received.
  void await_received(int rank, const Transfer& t, int64_t under_way) {
    std::unique_lock lock(mutex_);
    wait(lock, t, [&] { return messages_[{rank, t.peer}] <= under_way; });
  }
  // Messages of a failed send must not be received.
  void withdraw(int rank, const Transfer& t) {
    const std::lock_guard lock(mutex_);
    sent_[{rank, t.peer, t.header.group}].clear();
  }

  static bool is_message(const Transfer& t) { return Collective(t.header.op) == Collective::message; }

  std::exception_ptr failure;  // of the rank that failed first; read when all have ended

 private:
  struct Sent {
    Header header;
    std::vector<std::byte> data;
  };

  // Waits until done(). Throws if the peer has ended or, in a message, if any rank has failed. A collective that all
  // ranks have called completes even after a failure.
  template <class Done>
  void wait(std::unique_lock<std::mutex>& lock, const Transfer& t, Done done) {
    const auto lost = [&] { return ended_[size_t(t.peer)] || (is_message(t) && failed_rank_ >= 0); };
    changed_.wait(lock, [&] { return done() || lost(); });
    if (done()) return;
    if (failed_rank_ >= 0) throw Error(cat("rank ", failed_rank_, " failed: ", reason_), Exit::peer_lost);
    throw Error(cat(name_of(Collective(t.header.op)), ": rank ", t.peer, " has ended and will never call it"),
                Exit::peer_lost);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> ended_;  // indexed by rank
  int failed_rank_ = -1;
  std::string reason_;
  std::map<std::tuple<int, int, uint64_t>, std::deque<Sent>> sent_;  // by sender, receiver and group
  std::map<std::pair<int, int>, int64_t> messages_;                  // not yet received, by sender and receiver
};

class Threads final : public Wire {
 public:
  Threads(Job& job, int rank) : job_(job), rank_(rank) {}
  void run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) override {
    for (const Transfer& t : sends) job_.post(rank_, t);
    for (Transfer& t : receives) job_.take(rank_, t);
    for (const Transfer& t : sends)
      if (Job::is_message(t)) await_received(t);
  }
  void start(Transfer send) override { job_.post(rank_, send); }
  void finish(int peer, int64_t under_way) override {
    const Transfer message{.peer = peer, .data = nullptr, .header = {.op = uint32_t(Collective::message)}};
    job_.await_received(rank_, message, under_way);
  }

 private:
  void await_received(const Transfer& t) {
    try {
      job_.await_received(rank_, t, 0);
    } catch (const Error&) {
      job_.withdraw(rank_, t);
      throw;
    }
  }

  Job& job_;
  int rank_;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(std::unique_ptr<Communicator>)>& body) {
  CHECK(ranks > 0, "a job of ", ranks, " ranks");
  Job job(ranks);
  std::vector<std::thread> threads;
  threads.reserve(size_t(ranks));
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        body(make_direct(std::make_shared<Threads>(job, r), r, {.ranks = ranks, .fan_out = ranks}));
      } catch (const std::exception& e) {
        job.fail(r, std::current_exception(), e.what());
      }
      job.end(r);
    });
  for (std::thread& t : threads) t.join();
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace athanor
