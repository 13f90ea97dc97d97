// Threads that process a stream of jobs and return results in job order, so that the outcome does not depend on the
// number of threads.
#pragma once
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread.h"

namespace athanor {

// Cores that this process may run on.
inline int64_t allowed_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

template <class Job, class Result>
class OrderedPool {
 public:
  using Work = std::function<Result(Job)>;

  enum class Fewer : uint8_t { refused, allowed };  // what to do if the system can start only fewer threads

  // make_work is called in each thread, so that its result may own scratch memory.
  OrderedPool(int64_t threads, Fewer fewer, const std::function<Work()>& make_work)
      : capacity_(size_t(2 * threads + 2)) {
    try {
      for (int64_t i = 0; i < threads; ++i)
        threads_.push_back(
            start_thread(cat("jobs, number ", i + 1, " of ", threads), [this, make_work] { run(make_work); }));
    } catch (const Error&) {
      if (fewer == Fewer::allowed && !threads_.empty()) return;
      stop();
      throw;
    }
  }
  OrderedPool(const OrderedPool&) = delete;
  ~OrderedPool() { stop(); }

  bool full() const { return pending_ == capacity_; }
  bool empty() const { return pending_ == 0; }

  void put(Job job) {
    {
      const std::lock_guard lock(mutex_);
      slots_.emplace_back(std::move(job));
    }
    ++pending_;
    changed_.notify_all();
  }

  // Returns the result of the oldest job, or rethrows the exception of its work.
  Result take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return slots_.front().done; });
    Slot slot = std::move(slots_.front());
    slots_.pop_front();
    --begun_;
    --pending_;
    if (slot.problem) std::rethrow_exception(slot.problem);
    return std::move(*slot.result);
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  struct Slot {
    explicit Slot(Job j) : job(std::move(j)) {}
    Job job;
    std::optional<Result> result;
    std::exception_ptr problem;
    bool done = false;
  };

  void run(const std::function<Work()>& make_work) {
    const Work work = make_work();
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || begun_ < slots_.size(); });
      if (stopping_) return;
      Slot& slot = slots_[begun_++];  // stays valid while other jobs come and go
      lock.unlock();
      try {
        slot.result.emplace(work(std::move(slot.job)));
      } catch (...) {
        slot.problem = std::current_exception();
      }
      lock.lock();
      slot.done = true;
      changed_.notify_all();
    }
  }

  const size_t capacity_;
  size_t pending_ = 0;  // accessed only by the thread that calls put() and take()
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slot> slots_;
  size_t begun_ = 0;  // number of slots, from the front, whose work has begun
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace athanor
