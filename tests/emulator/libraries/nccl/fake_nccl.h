// An NCCL whose ranks are threads of one process. Collectives meet in stream order and move real data;
// ranks that disagree, buffers that overlap, streams of other devices are errors where the real library would hang or
// corrupt memory. Hangs and asynchronous failures come on demand. Only what the
// program calls is there.
#pragma once
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "../fake_library.h"
#include "cuda/libraries/nccl_table.h"
#include "team.h"

namespace emu::fakes {

class FakeNccl {
 public:
  explicit FakeNccl(Machine machine);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  athanor::NcclTable table() const;

  // The nth operation (1: the next) that this rank of any communicator starts on a device never starts: a hang.
  void hang(int rank, int nth);
  // As it starts, the network fails: ncclCommGetAsyncError tells this rank `error`, the others ncclRemoteError, and
  // nothing that is under way ends before ncclCommAbort.
  void fail_asynchronously(int rank, int nth, ncclResult_t error);
  // How long calls that wait for other ranks wait before they give up (the real library waits for ever).
  void set_wait_limit(double seconds) { wait_limit_ = seconds; }
  // As NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1; otherwise two ranks on one device are "Duplicate GPU detected".
  void allow_ranks_to_share_a_device(bool allowed) { share_device_ = allowed; }

  // Calls so far with a buffer that is not in memory registered with their communicator. One that only begins there is
  // refused.
  int64_t calls_outside_registered_memory() const;

  std::string last_refusal() const { return refusals_.last(); }
  std::vector<std::string> leaks() const;  // communicators, registrations, memory

 private:
  friend struct NcclFunctions;

  struct PendingTask {
    ncclComm_t comm;
    Task task;
    cudaStream_t stream;
  };
  struct Group {  // of one thread
    int depth = 0;
    ncclResult_t error = ncclSuccess;
    std::vector<PendingTask> tasks;
    std::vector<ncclComm_t> aborts;  // stopped, not freed yet
  };
  struct Registration {
    ncclComm_t comm;
    const char* begin;
    size_t bytes;
  };

  ncclResult_t refuse(ncclResult_t result, const std::string& why);
  bool planned(const char* function, ncclResult_t* result);
  bool lives(ncclComm_t comm) const;
  Group& group();  // of the calling thread; the lock is held
  ncclResult_t ensure_usable(const char* function, ncclComm_t comm);
  ncclResult_t in_group(ncclResult_t result);  // remembers an error for ncclGroupEnd

  // Creating and ending communicators (communicators.cc).
  ncclResult_t init(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank, ncclConfig_t* config);
  ncclResult_t check_config(const ncclConfig_t* config, bool* blocking);
  ncclResult_t wait_for_team(ncclComm_t comm);
  ncclResult_t finalize(ncclComm_t comm);
  ncclResult_t destroy(ncclComm_t comm);
  ncclResult_t abort(ncclComm_t comm);
  ncclResult_t reclaim(const char* function, ncclComm_t comm);
  bool device_waits(int device);  // for a communicator that nobody aborted
  ncclResult_t async_error(ncclComm_t comm, ncclResult_t* error);
  void drive(ncclComm_t comm);  // lets queued work of this rank go on

  // Operations (operations.cc).
  ncclResult_t submit(const char* function, ncclComm_t comm, Task task, cudaStream_t stream);
  ncclResult_t check_task(const char* function, ncclComm_t comm, const Task& task);
  ncclResult_t check_memory(const char* function, ncclComm_t comm, const void* buffer, size_t bytes);
  ncclResult_t launch(ncclComm_t comm, std::vector<Task> tasks, cudaStream_t stream);
  ncclResult_t end_group();
  bool ready(Batch& batch);
  void compute(Batch& batch);

  Machine machine_;
  Refusals refusals_;
  mutable std::mutex mutex_;  // guards everything below; never held while the machine is called
  std::condition_variable changed_;
  std::map<std::string, std::shared_ptr<Team>> teams_;  // by unique id, until all ranks have come
  std::set<ncclComm_t> comms_;
  std::map<std::thread::id, Group> groups_;
  std::map<void*, Registration> registrations_;  // by handle
  int64_t outside_registered_ = 0;
  std::set<void*> memory_;
  std::vector<Plan> plans_;
  unsigned long long next_id_ = 1;
  double wait_limit_ = 60;
  bool share_device_ = false;
  Installed<FakeNccl> installed_;
};

}  // namespace emu::fakes
