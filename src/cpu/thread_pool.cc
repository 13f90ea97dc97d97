// Dispatch of chunks, idle waiting and exceptions of the pool.
#include "cpu/thread_pool.h"

#include <algorithm>
#include <system_error>

#include "base/error.h"
#include "base/int.h"
#include "base/log.h"
#include "base/thread.h"

namespace athanor {
namespace {

// About 20 us of spinning before a thread sleeps: longer than the serial code between two ops, short enough not to
// waste a shared machine's CPU time.
constexpr int kSpins = 500;

// Threads that a run needs besides the pool: a data loader, a checkpoint writer, connections to other ranks.
constexpr int kSpare = 4;

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

template <class Ready>
bool spin_until(Ready ready) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return true;
    pause_cpu();
  }
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int threads) : size_(threads > 0 ? threads : usable_cores()) {
  const std::string refused = start_workers();
  if (refused.empty()) return;
  const int wanted = size_, running = int(threads_.size()) + 1;
  stop_workers();
  const std::string limits = cat(refused, "; the limits are ", thread_limits());
  if (threads > 0)
    throw Error(cat("threads: ", running, " of ", wanted, " run, no more can be started: ", limits,
                    ": set threads to fewer (0: as many as there are cores, and fewer where that is not allowed), or "
                    "raise the limit that is reached"),
                Exit::usage);
  size_ = std::max(1, running - kSpare);
  if (const std::string again = start_workers(); !again.empty()) {
    stop_workers();
    size_ = 1;
  }
  log::warn("threads: ", size_, " instead of ", wanted, ", one per core: no more can be started: ", limits);
}

ThreadPool::~ThreadPool() { stop_workers(); }

std::string ThreadPool::start_workers() {
  shares_ = std::vector<Share>(size_t(size_));
  threads_.reserve(size_t(size_ - 1));
  for (int worker = 1; worker < size_; ++worker) try {
      threads_.emplace_back([this, worker] { serve(worker); });
    } catch (const std::system_error& e) {
      return e.code().message();
    }
  return "";
}

void ThreadPool::stop_workers() {
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
  stop_.store(false);
}

void ThreadPool::run(std::array<int64_t, kStages> chunks, void* fn, Call call) {
  const int32_t total = narrow<int32_t>(chunks[0] + chunks[1]);
  if (total <= 0) return;
  if (size_ == 1 || total == 1 || busy_.exchange(true, std::memory_order_acquire)) {
    for (int64_t chunk = 0; chunk < total; ++chunk) call(fn, chunk, 0);
    return;
  }
  fn_ = fn;
  call_ = call;
  total_ = total;
  failed_.store(false, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  int64_t first = 0;
  for (int stage = 0; stage < kStages; first += chunks[size_t(stage++)])
    for (int worker = 0; worker < size_; ++worker) {
      const int64_t n = chunks[size_t(stage)], begin = first + n * worker / size_,
                    end = first + n * (worker + 1) / size_;
      shares_[size_t(worker)].unclaimed[stage].store(uint64_t(end) << 32 | uint64_t(begin), std::memory_order_release);
    }
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  work(0);
  const auto finished = [&] { return done_.load(std::memory_order_acquire) == total; };
  if (!spin_until(finished))
    for (int32_t now; (now = done_.load(std::memory_order_acquire)) != total;) done_.wait(now);
  std::exception_ptr error = std::move(error_);
  error_ = nullptr;
  busy_.store(false, std::memory_order_release);
  if (error) std::rethrow_exception(error);
}

void ThreadPool::work(int worker) {
  int64_t ran = 0;  // added to done_ once, at the end: a write to a shared cache line costs as much as a small chunk
  for (int stage = 0; stage < kStages; ++stage)
    for (int i = 0; i < size_; ++i) ran += run_share((worker + i) % size_, stage, worker);
  if (ran == 0) return;
  const int32_t total = total_;
  if (done_.fetch_add(int32_t(ran), std::memory_order_acq_rel) + ran == total) done_.notify_one();
}

int64_t ThreadPool::run_share(int owner, int stage, int worker) {
  std::atomic<uint64_t>& share = shares_[size_t(owner)].unclaimed[stage];
  int64_t ran = 0;
  for (uint64_t left = share.load(std::memory_order_acquire);;) {
    const uint64_t begin = left & 0xffffffffu, end = left >> 32;
    if (begin == end) return ran;
    const bool own = owner == worker;
    const uint64_t after = own ? end << 32 | (begin + 1) : (end - 1) << 32 | begin;
    if (!share.compare_exchange_weak(left, after, std::memory_order_acq_rel)) continue;
    if (!failed_.load(std::memory_order_relaxed)) {
      try {
        call_(fn_, int64_t(own ? begin : end - 1), worker);
      } catch (...) {
        keep_first_exception();
      }
    }
    ++ran;
    left = share.load(std::memory_order_acquire);
  }
}

void ThreadPool::serve(int worker) {
  for (;;) {
    const uint32_t seen = epoch_.load(std::memory_order_acquire);
    work(worker);
    if (stop_.load()) return;
    if (!spin_until([&] { return epoch_.load(std::memory_order_acquire) != seen; })) epoch_.wait(seen);
  }
}

void ThreadPool::keep_first_exception() {
  const std::lock_guard lock(error_mutex_);
  if (!error_) error_ = std::current_exception();
  failed_.store(true, std::memory_order_relaxed);
}

}  // namespace athanor
