// Persistent worker threads for data-parallel loops. A worker begins with its share of the chunks, which is the same
// for all loops with equally many chunks, so that rows stay in its core's caches from op to op; then it takes chunks
// from the end of others' shares. Callers must derive chunks from shapes alone for results to be bit-identical for any
// number of threads.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace athanor {

class ThreadPool {
 public:
  // threads: 0 = usable_cores(), or fewer with a warning if the system does not allow as many. A positive number is
  // used exactly; if that is impossible, an Error(usage) names the limits.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }  // working threads, including the caller

  // Runs fn(chunk) or fn(chunk, worker) for every chunk in [0, chunks) and returns when all are done. `worker` is in
  // [0, size()) and no two chunks that run at the same time in this call share it: it selects private scratch memory.
  // A call while the pool is busy (nested, or from another thread) runs inline as worker 0. The call rethrows the first
  // exception of a chunk and skips chunks that have not started. Allocates nothing.
  template <class Fn>
  void parallel_for(int64_t chunks, Fn&& fn) {
    parallel_stages(0, chunks, fn);
  }

  // parallel_for() over [0, first + second). All of the `first` chunks have begun before any of the `second` chunks
  // begins, so these may wait for them.
  template <class Fn>
  void parallel_stages(int64_t first, int64_t second, Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    run({first, second}, const_cast<void*>(static_cast<const void*>(&fn)), [](void* f, int64_t chunk, int worker) {
      if constexpr (std::is_invocable_v<F&, int64_t, int>)
        (*static_cast<F*>(f))(chunk, worker);
      else
        (*static_cast<F*>(f))(chunk);
    });
  }

  // Cuts [0, n) into pieces of `grain` (the last one shorter) and runs fn(begin, end) on each. `grain` must not depend
  // on the number of threads.
  template <class Fn>
  void parallel_ranges(int64_t n, int64_t grain, Fn&& fn) {
    parallel_for((n + grain - 1) / grain, [&](int64_t chunk) {
      const int64_t begin = chunk * grain;
      fn(begin, begin + grain < n ? begin + grain : n);
    });
  }

 private:
  using Call = void (*)(void* fn, int64_t chunk, int worker);
  std::string start_workers();  // starts up to size() threads; returns "", or why the next one could not be started
  void stop_workers();
  static constexpr int kStages = 2;
  void run(std::array<int64_t, kStages> chunks, void* fn, Call call);
  void work(int worker);                                // claims and runs chunks until none is left
  int64_t run_share(int owner, int stage, int worker);  // returns the number of chunks that `worker` ran
  void serve(int worker);                               // main loop of a worker thread
  void keep_first_exception();

  int size_;
  std::vector<std::thread> threads_;
  // The current job. fn_, call_ and total_ are written before its shares are released and only read between a claim
  // and its entry in done_, so they never change under a reader.
  void* fn_ = nullptr;
  Call call_ = nullptr;
  int32_t total_ = 0;
  std::exception_ptr error_;
  std::mutex error_mutex_;
  std::atomic<bool> failed_{false}, busy_{false}, stop_{false};
  struct alignas(64) Share {
    std::atomic<uint64_t> unclaimed[kStages] =
        {};  // per stage: the first chunk, and in the upper half the last one + 1
  };
  std::vector<Share> shares_;                   // [size()]
  alignas(64) std::atomic<int32_t> done_{0};    // chunks finished
  alignas(64) std::atomic<uint32_t> epoch_{0};  // number of published jobs; idle workers wait on it
};

// Cores this process may use: the affinity mask, limited by the cgroup's CPU quota rounded up. At least 1.
int usable_cores();

}  // namespace athanor
