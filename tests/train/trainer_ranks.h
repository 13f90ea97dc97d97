// Whole runs of several ranks as threads: messages between hosts are counted, each rank can be asked to stop on its
// own, and the device can run one step behind the host.
#pragma once
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "comm/threads.h"
#include "cpu/make_cpu.h"
#include "tests/train/trainer_rig.h"

namespace athanor::testing {

// A request to stop made by the test.
class Asked final : public StopRequests {
 public:
  void ask(int signal) { signal_ = signal; }
  std::optional<Received> received() const override {
    const int signal = signal_;
    if (signal == 0) return std::nullopt;
    return Received{signal, std::chrono::steady_clock::now()};
  }

 private:
  std::atomic<int> signal_{0};
};

// The CPU as a device whose steps are collected one step after they are launched, like a GPU's.
class AheadDevice final : public Device {
 public:
  explicit AheadDevice(Device& inner) : inner_(inner) {}
  std::string description() const override { return inner_.description(); }
  void* allocate(size_t bytes, Mem kind) override {
    if (kind == Mem::device) allocated_ += bytes;
    return inner_.allocate(bytes, kind);
  }
  void release(void* memory, size_t bytes, Mem kind) override {
    if (kind == Mem::device) allocated_ -= bytes;
    inner_.release(memory, bytes, kind);
  }
  void copy(void* dst, const void* src, size_t bytes, Stream stream) override { inner_.copy(dst, src, bytes, stream); }
  size_t capacity(Mem kind) const override { return inner_.capacity(kind); }
  size_t allocated() const override { return allocated_; }

 private:
  Device& inner_;
  std::atomic<size_t> allocated_{0};
};

// A communicator that also wraps subgroups of all ranks split from it, so that a rank whose calls differ from the
// others' gets an error instead of a deadlock. It counts its calls, and can modify results.
class Observed : public Communicator {
 public:
  using Sums = std::function<void(const Tensor& x)>;  // called after an all_reduce, or after a broadcast
  Observed(std::shared_ptr<Communicator> inner, std::atomic<int64_t>* calls, Sums sums = {}, Sums told = {})
      : inner_(std::move(inner)), calls_(calls), sums_(std::move(sums)), told_(std::move(told)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    std::shared_ptr<Communicator> part = inner_->split(color, key);
    return std::make_unique<Observed>(part->size() == size() ? inner_ : part, calls_, sums_);
  }
  void all_reduce(Tensor x, Reduce how, Stream stream) override {
    count(), inner_->all_reduce(x, how, stream);
    if (sums_) sums_(x);
  }
  void all_gather(Tensor full, Tensor shard, Stream stream) override {
    count(), inner_->all_gather(full, shard, stream);
  }
  void reduce_scatter(Tensor shard, Tensor full, Reduce how, Stream stream) override {
    count(), inner_->reduce_scatter(shard, full, how, stream);
  }
  void send(Tensor x, int dst, Stream stream) override { count(), inner_->send(x, dst, stream); }
  void recv(Tensor x, int src, Stream stream) override { count(), inner_->recv(x, src, stream); }
  void exchange(Tensor out, Tensor in, int peer, Stream stream) override {
    count(), inner_->exchange(out, in, peer, stream);
  }
  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream stream) override {
    count(), inner_->all_to_all(out, in, stream);
  }
  void broadcast(Tensor x, int root, Stream stream) override {
    count(), inner_->broadcast(x, root, stream);
    if (told_) told_(x);
  }
  void barrier() override { count(), inner_->barrier(); }

 private:
  void count() {
    if (calls_) ++*calls_;
  }
  std::shared_ptr<Communicator> inner_;
  std::atomic<int64_t>* calls_;
  Sums sums_, told_;
};

// Counts the steps without host messages, from the activities that a run reports.
class QuietSteps {
 public:
  void doing(Activity activity, int64_t said) {
    if (activity == Activity::step && before_ == said) ++count_;
    before_ = activity == Activity::step ? said : -1;
  }
  int64_t count() const { return count_; }

 private:
  int64_t before_ = -1, count_ = 0;
};

// Whether this all-reduce carries the requests of all ranks; they are its last kRequestSums numbers.
inline bool has_requests(const Tensor& x) { return x.dtype == DType::f64 && x.numel() == 1 + kRequestSums; }
inline double* requests_in(const Tensor& x) { return static_cast<double*>(x.data) + 1; }

// How each rank's run ended.
struct Ended {
  Exit code = Exit::done;
  std::string error;        // "": no error
  int64_t quiet_steps = 0;  // steps that began and ended without a message between hosts
};

class TrainerRanks : public ::testing::Test, protected RunFolder {
 protected:
  struct Ranks {
    bool ahead = false;
    int count = 2;
    std::function<void(int rank, Activity, int64_t step, Asked&)> doing = {};
    std::function<Observed::Sums(int rank)> sums = {};  // called after an all_reduce of the device
    std::function<Observed::Sums(int rank)> told = {};  // called after a broadcast between hosts
    std::function<void(int rank)> before = {};          // called before a rank's start; ranks start one after the other
    std::function<void(int rank, Config&)> own = {};    // sets a rank's own options
  };

  std::vector<Ended> run_all(const Config& c, const Ranks& ranks) {
    std::vector<Ended> ended(size_t(ranks.count));
    std::vector<Asked> asked(size_t(ranks.count));
    ::testing::internal::CaptureStdout();
    try {
      run_ranks(ranks.count, [&](std::unique_ptr<Communicator> world) {
        const int rank = world->rank();
        run_one(c, ranks, rank, std::move(world), asked[size_t(rank)], ended[size_t(rank)]);
      });
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): each rank has recorded its own error
    }
    ::testing::internal::GetCapturedStdout();
    return ended;
  }

 private:
  static void run_one(Config c, const Ranks& ranks, int rank, const std::shared_ptr<Communicator>& all, Asked& asked,
                      Ended& ended) {
    if (ranks.own) ranks.own(rank, c);
    const CpuBackend cpu = make_cpu({.threads = 1});
    AheadDevice ahead(*cpu.device);
    std::atomic<int64_t> said{0};
    Observed control(all, &said, {}, ranks.told ? ranks.told(rank) : Observed::Sums{});
    ProcessMesh mesh(std::make_unique<Observed>(all, nullptr, ranks.sums ? ranks.sums(rank) : Observed::Sums{}),
                     {.shards = ranks.count, .experts = int(c.expert_parallel_size)});
    QuietSteps quiet;
    const auto doing = [&](Activity activity, int64_t step) {
      quiet.doing(activity, said);
      if (ranks.doing) ranks.doing(rank, activity, step, asked);
    };
    const auto make = [&] {
      return std::make_unique<Trainer>(
          c, Backend{ranks.ahead ? ahead : *cpu.device, *cpu.ops, mesh, nullptr, &control},
          TrainerOptions{
              .stop = asked, .program = {.version = "test", .command = {}, .libraries = {}}, .doing = doing});
    };
    try {
      std::unique_ptr<Trainer> trainer;
      for (int turn = 0; turn < ranks.count; ++turn) {
        if (turn == rank && ranks.before) ranks.before(rank);
        if (turn == rank) trainer = make();
        all->barrier();
      }
      ended.code = trainer->run();
      ended.quiet_steps = quiet.count();
    } catch (const Error& e) {
      ended.code = e.code(), ended.error = e.what();
      throw;
    }
  }
};

}  // namespace athanor::testing
