// Rendezvous: where the ranks of a job find each other, exchange small texts and learn of each other's failures. Rank 0
// runs the server on a thread; every rank keeps one connection to it. Carries no tensors.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "comm/channel.h"
#include "comm/handshake.h"
#include "comm/secret.h"

namespace athanor {

class RendezvousServer;

// What a rank is at. Each has a limit of its own, for how long others wait for a rank that is at it.
enum class Activity : uint8_t { startup, step, evaluation, saving };

struct Timeouts {                                                  // seconds
  double startup = 600, step = 0, evaluation = 600, saving = 600;  // step 0: kLeastStepLimit, or 3 x the p99 of steps
  double silence = 8;  // without a sign of life of the process, whatever it is at
};
constexpr double kLeastStepLimit = 9;

struct RendezvousOptions {
  RankInfo ranks;
  std::function<JobKey()> key;         // asked at every attempt: rank 0 may not have written it yet
  std::function<void(int)> listening;  // on rank 0: the port that it has got; may be empty
  double timeout = 600;                // seconds to come together
  Timeouts timeouts = {};
  // Called on a thread of its own when another rank has failed and this one has not left within grace_seconds: it hangs
  // where nothing can reach it.
  std::function<void(const std::string&)> last_resort;
  double grace_seconds = 10;
};

class Rendezvous {
 public:
  // Returns when all ranks are there. Throws Error(peer_lost) naming those that did not come.
  explicit Rendezvous(RendezvousOptions);
  // Leaves. While an exception is under way the others are not told goodbye, and so learn that this rank is lost.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const { return options_.ranks.rank; }
  int size() const { return options_.ranks.world; }
  const RendezvousOptions& options() const { return options_; }
  // Of this machine, as it reaches rank 0's; on rank 0 where it listens, "" for all addresses.
  const std::string& address() const { return address_; }
  const std::string& server_address() const { return server_address_; }  // of rank 0's machine, as this one reaches it
  const std::string& secret() const { return secret_; }                  // of the job

  // The values of all ranks under this name, in rank order; returns when all have called it. A name is used once.
  std::vector<std::string> exchange(const std::string& name, const std::string& value);
  void barrier(const std::string& name) { exchange(name, ""); }

  // This rank begins a step (counted from 1), or something between two steps.
  void doing(Activity, int64_t step);
  // The same for a device, which waits beside the host: how many collectives it has begun, whether it is within one.
  void device_waits(uint64_t begun, bool inside) { device_entered_ = begun, device_waiting_ = inside; }

  // Tells all others that and why this rank fails; the first failure of the job is the one that everybody reports.
  void fail(const std::string& why);
  // The same for an error that ends this rank; returns what it shall report: its own if that was the job's first, else
  // the first of another rank, which this one may be a consequence of.
  Error first_error(const Error& mine);
  void throw_if_failed();
  std::string where();                                         // is this rank: "rank 3 (node-7) at step 17"
  std::string failure();                                       // of some rank, as everybody is told; "": none
  [[noreturn]] void throw_lost(const std::string& otherwise);  // why, as the server knows it within `silence`
  int failure_fd() const { return failed_.get(); }             // readable once some rank has failed

  // Around every wait for another rank: the server blames those who stay away.
  class Waiting {
   public:
    Waiting(Rendezvous&, const char* collective);
    ~Waiting() { --r_.waiting_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Rendezvous& r_;
  };

 private:
  void join();
  void monitor();
  void handle(const Frame&);
  void set_failure(const std::string&);
  void post(Frame);
  void send_outbox();
  bool pump(int timeout_ms);
  void beat();
  double limit();             // seconds, of what this rank is at
  double beat_seconds();      // often enough for what others judge by it
  std::string at() const;     // "step 17"; under mutex_
  std::string place() const;  // "step 17, collective 3 of it: all_gather for model.layers.2"; under mutex_
  std::string with_place(const std::string& failure);

  RendezvousOptions options_;
  std::unique_ptr<RendezvousServer> server_;  // of rank 0
  std::unique_ptr<Channel> channel_;          // the monitor's alone
  std::string address_, server_address_, secret_;
  Fd wake_, failed_;
  std::atomic<uint64_t> entered_{0}, device_entered_{0};
  std::atomic<int> waiting_{0};
  std::atomic<bool> device_waiting_{false}, moved_{false};  // moved_: what it is at, since the last beat
  Deadline heard_, looked_;  // the server's last sign of life, and when that was looked for; the monitor's alone
  std::mutex mutex_;         // guards what follows
  std::condition_variable changed_;
  std::vector<Frame> outbox_;
  std::map<std::string, std::vector<std::string>> results_;
  std::string failure_;
  Activity activity_ = Activity::startup;
  int64_t step_ = 0;
  uint64_t in_step_ = 0;             // collectives of what it is at
  std::string collective_;           // the latest
  Deadline since_;                   // what it is at
  std::deque<double> step_seconds_;  // the latest
  bool leaving_ = false;
  std::thread monitor_;
};

}  // namespace athanor
