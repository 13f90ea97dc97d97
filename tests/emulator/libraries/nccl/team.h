// The state that the ranks of one communicator share: who has come, which operations have met, what failed.
#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../element.h"

namespace emu::fakes {

enum class TaskKind { kBroadcast, kAllReduce, kReduceScatter, kAllGather, kSend, kRecv };

struct Task {
  TaskKind kind = TaskKind::kAllReduce;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = 0;  // root of a collective, other side of a send or receive

  bool collective() const { return kind != TaskKind::kSend && kind != TaskKind::kRecv; }
  bool reduces() const { return kind == TaskKind::kAllReduce || kind == TaskKind::kReduceScatter; }
};
const char* task_name(TaskKind kind);
std::string describe_task(const Task& task);
Element nccl_element(ncclDataType_t type);
size_t send_count(const Task& task, int ranks, int rank);  // elements; 0: the buffer is not used by this rank
size_t recv_count(const Task& task, int ranks);

// One operation of every rank (a collective) or of two ranks (send and receive: sender first).
struct Meeting {
  std::vector<const Task*> tasks;
  std::vector<int> ranks;  // of tasks
  size_t came = 0, left = 0;
  bool executed = false, broken = false;  // broken: the ranks disagree
  bool complete() const { return came == tasks.size() && !broken; }
};

struct Team;

// What one rank put on a stream at once: one call, or a group's calls on one communicator and stream.
struct Batch {
  std::shared_ptr<Team> team;
  int rank = 0;
  std::vector<Task> tasks;
  long ticket = -1;  // place in the order of this rank's launches; -1: captured in a graph, takes it when it runs
  bool came = false, hung = false;
  std::vector<Meeting*> meetings;
};

struct Member {
  bool here = false;
  int device = 0;
  bool blocking = true;
  bool aborted = false, finalized = false;
  ncclResult_t error = ncclSuccess;  // asynchronous
  int unread_progress = 0;           // non-blocking: polls that will still say ncclInProgress
  long next_ticket = 0, next_to_come = 0;
  int pending = 0;  // queued operations that have not ended
  std::vector<cudaStream_t> streams;
};

struct Team {
  explicit Team(int ranks);
  int size() const { return static_cast<int>(members.size()); }
  bool complete() const;

  // Registers the batch's tasks with those of other ranks. A disagreement is returned as text.
  std::string come(Batch& batch);
  bool met(const Batch& batch) const;
  void leave(Batch& batch);  // after its meetings were executed

  void withdraw(int rank);                  // from operations that have not run yet: the other ranks will wait in vain
  void fail(int rank, ncclResult_t error);  // the others learn ncclRemoteError

  std::vector<Member> members;
  ncclResult_t init_error = ncclSuccess;

 private:
  struct Sequence {
    long next_collective = 0;
    std::map<int, long> next_send, next_recv;  // by peer
  };
  Meeting* meet_collective(Batch& batch, const Task& task, std::string* why);
  Meeting* meet_peer(Batch& batch, const Task& task, std::string* why);

  std::vector<Sequence> sequences_;
  std::map<long, Meeting> collectives_;
  std::map<std::pair<std::pair<int, int>, long>, Meeting> exchanges_;
};

// A planned failure of an operation.
struct Plan {
  int rank = 0, nth = 1;
  bool hang = false;
  ncclResult_t error = ncclSuccess;
};

// Moves the data of a meeting whose ranks are all there.
void execute(const Meeting& meeting);

}  // namespace emu::fakes

// The handle that a program holds.
struct ncclComm {
  std::shared_ptr<emu::fakes::Team> team;
  int rank = 0;
  int device = 0;
  bool blocking = true;
  std::shared_ptr<char> in_graphs = std::make_shared<char>();  // every captured operation holds it, too
  bool is_in_graphs() const { return in_graphs.use_count() > 1; }
  emu::fakes::Member& member() const { return team->members[static_cast<size_t>(rank)]; }
};
