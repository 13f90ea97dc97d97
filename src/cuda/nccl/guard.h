// NcclGuard: makes all NCCL calls of one rank; its thread watches for asynchronous errors, collectives that do not end,
// and failures of other ranks. Any of these aborts all communicators of this rank, which unblocks the device and all
// waiting threads, and ends the run with Error(peer_lost). Destroy captured graphs before the guard: NCCL does not free
// communicators that graphs refer to. From NCCL 2.19 on, NCCL allocates the device's memory, which is registered with
// every communicator, so that NCCL may send from it and receive into it without copies [NCCL user guide, "User Buffer
// Registration"].
#pragma once
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "cuda/libraries/nccl_table.h"
#include "cuda/make_cuda.h"
#include "cuda/nccl/collective_marks.h"
namespace athanor::cuda {

class NcclGuard {
 public:
  NcclGuard(const NcclTable&, CudaDevice&, NcclOptions);
  ~NcclGuard();
  NcclGuard(const NcclGuard&) = delete;
  NcclGuard& operator=(const NcclGuard&) = delete;

  CudaDevice& device() { return device_; }
  const NcclTable& nccl() const { return nccl_; }
  // Creates a communicator of the ranks of `control`; collective over them.
  ncclComm_t open(Communicator& control);
  void close(ncclComm_t);
  // Queues a collective on a stream: launch(stream) calls NCCL. `what` names it in messages, e.g. "all_reduce of [4]
  // f32".
  template <class Launch>
  void run(ncclComm_t comm, Stream stream, const std::string& what, Launch launch) {
    const uint32_t name = enter(what);
    wait_for_last_stream(comm, stream);
    marks_.begin(stream, name);  // without the lock: launches block while the device's queue is full
    {
      std::unique_lock lock(mutex_);
      throw_if_ended();
      settle(lock, comm, launch(device_.stream(stream)), what);
    }
    marks_.end(stream);
  }

 private:
  uint32_t enter(const std::string& what);  // index of `what` in names_; throws if the run has ended
  void wait_for_last_stream(ncclComm_t, Stream);
  void watch();
  void* allocate(size_t bytes);  // null: NCCL cannot allocate it
  void released(void* memory);
  // The following require mutex_.
  void enroll(ncclComm_t, void* memory, size_t bytes);
  void withdraw(ncclComm_t, void* memory);
  void look();
  void settle(std::unique_lock<std::mutex>&, ncclComm_t, ncclResult_t, const std::string& what);
  void fail(const std::string& why);  // reports a failure, unless another rank's failure is known
  bool end_as_told();                 // ends the run if another rank's failure is known; returns whether it is
  void end(const std::string& why);   // from now on only the aborting thread calls NCCL
  bool finalize(std::unique_lock<std::mutex>&, ncclComm_t);
  void abort_all(std::unique_lock<std::mutex>&);
  void throw_if_ended() const;
  std::string present() const;  // current collective of the device, else of the host
  std::string words(ncclResult_t, ncclComm_t) const;

  NcclTable nccl_;
  CudaDevice& device_;
  NcclOptions options_;
  CollectiveMarks marks_;
  int index_ = 0;             // index of the GPU
  mutable std::mutex mutex_;  // held during every NCCL call; guards the members below
  std::condition_variable changed_;
  std::set<ncclComm_t> open_;
  std::map<void*, size_t> memory_;                               // allocations of NCCL, with their bytes
  std::map<std::pair<ncclComm_t, void*>, void*> registrations_;  // handles of registered memory
  std::map<ncclComm_t, Stream> last_stream_;                     // stream of each communicator's last collective
  std::vector<std::string> names_;                               // names of collectives; index 0: none
  std::map<std::string, uint32_t> numbers_;
  std::string ended_;                  // reason why the run has ended; empty: it has not ended
  const std::string* call_ = nullptr;  // NCCL call in progress
  bool leaving_ = false;
  uint64_t seen_ = 0;  // marks passed on all streams
  std::chrono::steady_clock::time_point moved_;
  std::thread thread_;
};
}  // namespace athanor::cuda
