#include "comm/threads.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "comm/reduce.h"

namespace athanor {
namespace {

// State shared by all groups of one run_ranks().
struct Job {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> ended;  // indexed by rank
  int failed_rank = -1;
  std::exception_ptr failure;
  std::string reason;

  void fail(int rank, std::exception_ptr error, const char* what) {
    const std::lock_guard lock(mutex);
    if (failed_rank < 0) failed_rank = rank, failure = std::move(error), reason = what;
    changed.notify_all();
  }
  void end(int rank) {
    const std::lock_guard lock(mutex);
    ended[size_t(rank)] = true;
    changed.notify_all();
  }
};

// One rank's arguments to a collective.
struct Call {
  const char* op = "";
  Tensor in, out;
  int root = 0;
  void* extra = nullptr;
};

// The synchronization point of one group.
class Hub {
 public:
  Hub(Job& job, std::vector<int> members)
      : job_(job), members_(std::move(members)), calls_(members_.size()), arrived_(members_.size()) {}
  int size() const { return int(members_.size()); }
  int world_rank(int rank) const { return members_[size_t(rank)]; }
  Job& job() { return job_; }
  const Call& call(int rank) const { return calls_[size_t(rank)]; }

  // Returns when all ranks have posted their calls; nobody posts the next call before all have called part().
  void meet(int rank, const Call& mine) {
    {
      const std::lock_guard lock(job_.mutex);
      calls_[size_t(rank)] = mine;
    }
    sync(rank, mine.op);
    const Call& first = calls_[0];
    for (int r = 1; r < size(); ++r) {
      const Call& c = calls_[size_t(r)];
      CHECK(std::strcmp(c.op, first.op) == 0 && c.in.dtype == first.in.dtype && c.in.numel() == first.in.numel() &&
                c.out.numel() == first.out.numel() && c.root == first.root,
            "rank ", world_rank(r), " calls ", c.op, " of ", c.in.shape, " ", c.in.dtype, " where rank ", world_rank(0),
            " calls ", first.op, " of ", first.in.shape, " ", first.in.dtype);
    }
  }

  // Called after meet(), once this rank no longer reads the others' memory; returns when all have called it. It waits
  // even after a failure, which is safe because no rank blocks between meet() and part().
  void part(int rank, const char* op) { sync(rank, op, false); }

  void sync(int rank, const char* op, bool until_failure = true) {
    std::unique_lock lock(job_.mutex);
    arrived_[size_t(rank)] = true;
    if (std::find(arrived_.begin(), arrived_.end(), false) == arrived_.end()) {
      arrived_.assign(arrived_.size(), false);
      ++generation_;
      job_.changed.notify_all();
      return;
    }
    const uint64_t generation = generation_;
    try {
      wait(
          lock, op, [&] { return generation_ != generation; }, [&](int r) { return !arrived_[size_t(r)]; },
          until_failure);
    } catch (const Error&) {
      arrived_[size_t(rank)] = false;  // a late rank must not see this rank's memory
      throw;
    }
  }

  void send(int from, int to, Tensor x) {
    start_send(from, to, x);
    try {
      finish_sends(from, to, 0);
    } catch (const Error&) {
      const std::lock_guard lock(job_.mutex);
      mail_[{from, to}].clear();  // no rank may receive a message of a failed send
      throw;
    }
  }
  // The data is copied, since a rank that fails frees its memory before its messages are received.
  void start_send(int from, int to, Tensor x) {
    const std::lock_guard lock(job_.mutex);
    const auto* bytes = static_cast<const std::byte*>(x.data);
    mail_[{from, to}].emplace_back(bytes, bytes + x.bytes());
    job_.changed.notify_all();
  }
  void finish_sends(int from, int to, int64_t under_way) {
    std::unique_lock lock(job_.mutex);
    wait(
        lock, "send",
        [&] {
          return int64_t(mail_[{from, to}].size()) <= under_way;
        },
        [&](int r) { return r == to; });
  }
  void recv(int from, int to, Tensor x) {
    std::unique_lock lock(job_.mutex);
    const auto key = std::pair(from, to);
    wait(
        lock, "recv", [&] { return !mail_[key].empty(); }, [&](int r) { return r == from; });
    const std::vector<std::byte>& sent = mail_[key].front();
    CHECK(sent.size() == x.bytes(), "rank ", world_rank(from), " sends ", sent.size(), " bytes, rank ", world_rank(to),
          " receives ", x.bytes());
    std::memcpy(x.data, sent.data(), sent.size());
    mail_[key].pop_front();
    job_.changed.notify_all();
  }

 private:
  // Waits until done(). Throws if a rank that awaited() names has ended, or, if until_failure, if any rank has failed.
  template <class Done, class Awaited>
  void wait(std::unique_lock<std::mutex>& lock, const char* op, Done done, Awaited awaited, bool until_failure = true) {
    int gone = -1;
    job_.changed.wait(lock, [&] {
      for (int r = 0; r < size(); ++r)
        if (awaited(r) && job_.ended[size_t(world_rank(r))]) gone = world_rank(r);
      return done() || gone >= 0 || (until_failure && job_.failed_rank >= 0);
    });
    if (done()) return;
    if (job_.failed_rank >= 0) throw Error(cat("rank ", job_.failed_rank, " failed: ", job_.reason), Exit::peer_lost);
    throw Error(cat(op, ": rank ", gone, " has ended and will never call it"), Exit::peer_lost);
  }

  Job& job_;
  std::vector<int> members_;  // ranks of the job
  std::vector<Call> calls_;
  std::vector<bool> arrived_;
  uint64_t generation_ = 0;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> mail_;  // messages by sender and receiver
};

void move(const Tensor& to, const Tensor& from) {
  if (to.data != from.data && from.bytes()) std::memmove(to.data, from.data, from.bytes());
}

class Threads final : public Communicator {
 public:
  Threads(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    StepRequest mine{color, key, nullptr};
    hub_->meet(rank_, {.op = "split", .extra = &mine});
    std::vector<int> group;
    for (int r = 0; r < size(); ++r)
      if (request(r).color == color) group.push_back(r);
    std::stable_sort(group.begin(), group.end(), [&](int a, int b) { return request(a).key < request(b).key; });
    if (group[0] == rank_) {
      std::vector<int> members;
      for (const int r : group) members.push_back(hub_->world_rank(r));
      mine.hub = std::make_shared<Hub>(hub_->job(), std::move(members));
    }
    hub_->part(rank_, "split");
    std::shared_ptr<Hub> hub = request(group[0]).hub;
    hub_->part(rank_, "split");
    return std::make_unique<Threads>(std::move(hub), int(std::find(group.begin(), group.end(), rank_) - group.begin()));
  }

  void all_reduce(Tensor x, Reduce how, Stream) override {
    hub_->meet(rank_, {.op = "all_reduce", .in = x});
    std::vector<std::byte> result(x.bytes());
    reduce_in_order(result.data(), inputs(0), x.numel(), x.dtype, how);
    hub_->part(rank_, "all_reduce");
    move(x, {result.data(), x.dtype, x.shape});
  }

  void all_gather(Tensor full, Tensor shard, Stream) override {
    CHECK(full.numel() == shard.numel() * size(), "all_gather: ", size(), " shards of ", shard.shape, " into ",
          full.shape);
    hub_->meet(rank_, {.op = "all_gather", .in = shard, .out = full});
    for (int r = 0; r < size(); ++r) move({full.at(r * shard.numel()), shard.dtype, shard.shape}, hub_->call(r).in);
    hub_->part(rank_, "all_gather");
  }

  void reduce_scatter(Tensor shard, Tensor full, Reduce how, Stream) override {
    CHECK(full.numel() == shard.numel() * size(), "reduce_scatter: ", full.shape, " into ", size(), " shards of ",
          shard.shape);
    hub_->meet(rank_, {.op = "reduce_scatter", .in = full, .out = shard});
    std::vector<std::byte> result(shard.bytes());
    reduce_in_order(result.data(), inputs(rank_ * shard.numel()), shard.numel(), shard.dtype, how);
    hub_->part(rank_, "reduce_scatter");
    move(shard, {result.data(), shard.dtype, shard.shape});
  }

  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream) override {
    CHECK(int(out.size()) == size() && int(in.size()) == size(), "all_to_all: ", out.size(), " and ", in.size(),
          " tensors for ", size(), " ranks");
    hub_->meet(rank_, {.op = "all_to_all", .extra = &out});
    const auto sent_by = [&](int r) {
      return (*static_cast<std::span<const Tensor>*>(hub_->call(r).extra))[size_t(rank_)];
    };
    std::string wrong;
    for (int r = 0; r < size(); ++r) {
      const Tensor &from = sent_by(r), &to = in[size_t(r)];
      const size_t sent = from ? from.bytes() : 0, wanted = to ? to.bytes() : 0;
      if (sent != wanted)
        wrong = cat("rank ", hub_->world_rank(r), " sends ", sent, " bytes, rank ", hub_->world_rank(rank_),
                    " receives ", wanted);
      else if (to)
        move(to, from);
    }
    hub_->part(rank_, "all_to_all");
    CHECK(wrong.empty(), wrong);
  }

  void broadcast(Tensor x, int root, Stream) override {
    CHECK(root >= 0 && root < size(), "broadcast: root ", root, " of ", size());
    hub_->meet(rank_, {.op = "broadcast", .in = x, .root = root});
    move(x, hub_->call(root).in);
    hub_->part(rank_, "broadcast");
  }

  void send(Tensor x, int dst, Stream) override { hub_->send(rank_, peer(dst), x); }
  void start_send(Tensor x, int dst, Stream) override { hub_->start_send(rank_, peer(dst), x); }
  void finish_sends(int dst, int64_t under_way) override { hub_->finish_sends(rank_, peer(dst), under_way); }
  void recv(Tensor x, int src, Stream) override { hub_->recv(peer(src), rank_, x); }
  void exchange(Tensor out, Tensor in, int with, Stream stream) override {
    if (rank_ < with) send(out, with, stream);
    recv(in, with, stream);
    if (rank_ > with) send(out, with, stream);
  }
  void barrier() override { hub_->sync(rank_, "barrier"); }

 private:
  struct StepRequest {
    int color, key;
    std::shared_ptr<Hub> hub;
  };
  const StepRequest& request(int rank) const { return *static_cast<const StepRequest*>(hub_->call(rank).extra); }
  int peer(int rank) const {
    CHECK(rank >= 0 && rank < size() && rank != rank_, "rank ", rank_, " of ", size(), " has no peer ", rank);
    return rank;
  }
  std::vector<const void*> inputs(int64_t offset) const {
    std::vector<const void*> parts;
    for (int r = 0; r < size(); ++r) parts.push_back(hub_->call(r).in.at(offset));
    return parts;
  }
  std::shared_ptr<Hub> hub_;
  int rank_;
};

}  // namespace

void run_ranks(int ranks, const std::function<void(std::unique_ptr<Communicator>)>& body) {
  CHECK(ranks > 0, "a job of ", ranks, " ranks");
  Job job;
  job.ended.resize(size_t(ranks));
  std::vector<int> members;
  for (int r = 0; r < ranks; ++r) members.push_back(r);
  const auto hub = std::make_shared<Hub>(job, std::move(members));
  std::vector<std::thread> threads;
  threads.reserve(size_t(ranks));
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      try {
        body(std::make_unique<Threads>(hub, r));
      } catch (const std::exception& e) {
        job.fail(r, std::current_exception(), e.what());
      }
      job.end(r);
    });
  for (std::thread& t : threads) t.join();
  if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace athanor
