#include "comm/background.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <utility>

#include "base/thread.h"

namespace athanor {
namespace {

class Background final : public Communicator {
 public:
  explicit Background(std::unique_ptr<Communicator> group) : group_(std::move(group)) {
    thread_ = start_thread("background collectives", [this] { run(); });
  }
  ~Background() override {
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  void all_reduce(Tensor x, Reduce how, Stream stream) override {
    start([this, x, how, stream] { group_->all_reduce(x, how, stream); });
  }
  void all_gather(Tensor full, Tensor shard, Stream stream) override {
    start([this, full, shard, stream] { group_->all_gather(full, shard, stream); });
  }
  int64_t calls() const override { return started_; }
  void finish_calls(int64_t calls) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ >= calls || failure_; });
    if (failure_) std::rethrow_exception(failure_);
  }

  std::unique_ptr<Communicator> split(int, int) override { refuse("split"); }
  void reduce_scatter(Tensor, Tensor, Reduce, Stream) override { refuse("reduce_scatter"); }
  void send(Tensor, int, Stream) override { refuse("send"); }
  void recv(Tensor, int, Stream) override { refuse("recv"); }
  void exchange(Tensor, Tensor, int, Stream) override { refuse("exchange"); }
  void all_to_all(std::span<const Tensor>, std::span<const Tensor>, Stream) override { refuse("all_to_all"); }
  void broadcast(Tensor, int, Stream) override { refuse("broadcast"); }
  void barrier() override { refuse("barrier"); }

 private:
  [[noreturn]] static void refuse(const char* call) {
    check_failed(__FILE__, __LINE__, call, "a background communicator supports only all_reduce and all_gather");
  }
  void start(std::function<void()> call) {
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back([subject = CollectiveSubject::name(), call = std::move(call)] {
        const CollectiveSubject named(subject);
        call();
      });
    }
    ++started_;
    changed_.notify_all();
  }
  // After a failure the other calls are dropped: their peers fail, too.
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return leaving_ || !calls_.empty(); });
      if (calls_.empty()) return;
      const std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      if (!failure_) {
        lock.unlock();
        std::exception_ptr failure;
        try {
          call();
        } catch (...) {
          failure = std::current_exception();
        }
        lock.lock();
        failure_ = failure;
      }
      ++ended_;
      changed_.notify_all();
    }
  }

  std::unique_ptr<Communicator> group_;
  int64_t started_ = 0;  // collectives started; used by the caller's thread only
  std::mutex mutex_;     // guards the members below
  std::condition_variable changed_;
  std::deque<std::function<void()>> calls_;
  int64_t ended_ = 0;
  std::exception_ptr failure_;
  bool leaving_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Communicator> make_background(std::unique_ptr<Communicator> group) {
  return std::make_unique<Background>(std::move(group));
}

}  // namespace athanor
