// Rendezvous: ranks of a job find each other, exchange small texts and learn of each other's failures. Rank 0 runs the
// server on a thread. Every rank keeps one connection to its parent in the tree of ranks (tree.h), which is rank 0 with
// up to 17 ranks; inner ranks of the tree run a relay on a thread. Transfers no tensors.
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
#include "comm/tree.h"

namespace athanor {

class Relay;
class RendezvousServer;

// A rank's current activity. Each activity has its own limit of how long other ranks wait for this rank.
enum class Activity : uint8_t { startup, step, evaluation, saving, loading };  // loading has the limit of startup

struct Timeouts {                                                  // seconds
  double startup = 600, step = 0, evaluation = 600, saving = 600;  // step 0: kLeastStepLimit, or 3 x the p99 of steps
  double silence = 8;                                              // allowed without a heartbeat, in any activity
};
constexpr double kLeastStepLimit = 9;

struct RendezvousOptions {
  RankInfo ranks;
  std::function<JobKey()> key;         // called at every attempt: rank 0 may not have written the key yet
  std::function<void(int)> listening;  // on rank 0: receives the chosen port; may be empty
  std::string awaited_file = {};       // file into which rank 0 will write the key; "": the key is known
  double timeout = 600;                // seconds for all ranks to connect
  Timeouts timeouts = {};
  // Called on a separate thread if another rank has failed and this one has not exited within grace_seconds, because it
  // hangs in a call that cannot be interrupted.
  std::function<void(const std::string&)> last_resort;
  double grace_seconds = 10;
  std::string interfaces =
      {};  // interfaces to listen on for the ranks below, as in NCCL_SOCKET_IFNAME; "": see address()
  // After this time a rank that has not reached rank 0 logs what it waits for; shorter in tests.
  double notice_seconds = 5;
  int fan_out = kFanOut;  // fan-out of the tree of ranks, the same for all; smaller in tests
};

class Rendezvous {
 public:
  // Returns when all ranks are connected. Throws Error(peer_lost) naming the missing ones.
  explicit Rendezvous(RendezvousOptions);
  // Leaves the job. During stack unwinding it sends no goodbye, so the others learn that this rank is lost.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  int rank() const { return options_.ranks.rank; }
  int size() const { return options_.ranks.world; }
  RankTree tree() const { return {.ranks = size(), .fan_out = options_.fan_out}; }
  const RendezvousOptions& options() const { return options_; }
  // This machine's address as seen by rank 0; on rank 0 its listening address, "" for all.
  const std::string& address() const { return address_; }
  const std::string& server_address() const { return server_address_; }  // rank 0's address, as reached from here
  const std::string& secret() const { return secret_; }                  // the job's secret

  // The values of all ranks under this name, in rank order; blocks until all have called it. Use a name only once.
  std::vector<std::string> exchange(const std::string& name, const std::string& value);
  void barrier(const std::string& name) { exchange(name, ""); }

  // Reports that this rank begins a step (counted from 1), or an activity between two steps.
  void doing(Activity, int64_t step);
  // Reports what the device does: number of collectives begun, and whether it is inside one.
  void device_waits(uint64_t begun, bool inside) { device_entered_ = begun, device_waiting_ = inside; }

  // Tells all other ranks that this rank fails, and why; everybody reports the first failure of the job.
  void fail(const std::string& why);
  // Reports an error that ends this rank. Returns the error to report: its own if that was the job's first, else
  // the first one of another rank, which may have caused it.
  Error first_error(const Error& mine);
  void throw_if_failed();
  std::string where();    // "rank 3 (node-7) at step 17" for this rank
  std::string failure();  // the job's first failure, as all report it; "": none
  // Throws the server's reason if it comes within `silence`, else `otherwise`.
  [[noreturn]] void throw_lost(const std::string& otherwise);
  int failure_fd() const { return failed_.get(); }  // readable once a rank has failed

  // Wraps every wait for another rank: the server blames ranks that are not waiting.
  class Waiting {
   public:
    // begins: false for a further wait of the same call
    Waiting(Rendezvous&, const char* collective, bool begins = true);
    ~Waiting() { --r_.waiting_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Rendezvous& r_;
  };

 private:
  Deadline join();  // connects to rank 0; returns the deadline for all ranks to connect
  void enter_tree(Deadline);
  void go_to_parent(Deadline);
  void monitor();
  bool silent() const;  // no sign of life from the server for timeouts.silence
  void handle(const Frame&);
  void set_failure(const std::string&);
  void post(Frame);
  void send_outbox();
  bool pump(int timeout_ms);
  void beat();
  double limit();             // seconds, for the current activity
  double beat_seconds();      // interval that is short enough for the limits of the others
  std::string at() const;     // "step 17"; under mutex_
  std::string place() const;  // "step 17, collective 3 of it: all_gather for model.layers.2"; under mutex_
  std::string with_place(const std::string& failure);

  RendezvousOptions options_;
  std::unique_ptr<RendezvousServer> server_;  // on rank 0 only
  std::unique_ptr<Relay> relay_;              // on other ranks that have ranks below them
  std::unique_ptr<Channel> channel_;          // connection to the parent; once monitor_ runs, used by it only
  std::string above_;                         // name of the parent: "rank 0 (node-1)"
  std::string address_, server_address_, secret_;
  Fd wake_, failed_;
  std::atomic<uint64_t> entered_{0}, device_entered_{0};
  std::atomic<int> waiting_{0};
  std::atomic<bool> device_waiting_{false}, moved_{false};  // moved_: activity changed since the last beat
  Deadline heard_, looked_;  // last sign of life from the server, and when it was checked; used as channel_ is
  std::mutex mutex_;         // guards the members below
  std::condition_variable changed_;
  std::vector<Frame> outbox_;
  std::map<std::string, std::vector<std::string>> results_;
  std::string failure_;
  Activity activity_ = Activity::startup;
  int64_t step_ = 0;
  uint64_t in_step_ = 0;             // collectives begun in the current activity
  std::string collective_;           // latest collective
  Deadline since_;                   // start of the current activity
  std::deque<double> step_seconds_;  // durations of the latest steps
  bool leaving_ = false;
  std::thread monitor_;
};

}  // namespace athanor
