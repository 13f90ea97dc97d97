// Collectives, sends and receives of the fake NCCL: checks, groups, and how they run in stream order.
#include <algorithm>

#include "fake_nccl.h"

namespace emu::fakes {
namespace {

bool overlaps(const char* x, size_t x_bytes, const char* y, size_t y_bytes) {
  return x_bytes > 0 && y_bytes > 0 && x < y + y_bytes && y < x + x_bytes;
}

// True if the buffers are at the offsets that nccl.h requires of an in-place call of this collective.
bool in_place(const Task& task, int rank) {
  auto offset = static_cast<size_t>(rank) * task.count * element_bytes(nccl_element(task.type));
  const char* send = static_cast<const char*>(task.send);
  const char* recv = static_cast<const char*>(task.recv);
  switch (task.kind) {
    case TaskKind::kReduceScatter:
      return recv == send + offset;
    case TaskKind::kAllGather:
      return send == recv + offset;
    default:
      return send == recv;
  }
}

}  // namespace

ncclResult_t FakeNccl::check_task(const char* function, ncclComm_t comm, const Task& task) {
  auto invalid = [&](const std::string& why) { return refuse(ncclInvalidArgument, text(function, ": ", why)); };
  int ranks = comm->team->size();
  Element type = nccl_element(task.type);
  if (type == Element::kNone) return invalid(text("data type ", int(task.type)));
  if (task.peer < 0 || task.peer >= ranks) return invalid(text("root or peer ", task.peer, " of ", ranks, " ranks"));
  if (task.reduces()) {
    if (task.op < 0 || task.op >= ncclNumOps) return invalid(text("operator ", int(task.op)));
    if (is_fp8(type) && machine_.describe(comm->device).capability() < 90) {
      return invalid("reductions in FP8 need compute capability 9.0");
    }
  }
  size_t size = element_bytes(type);
  size_t sent = send_count(task, ranks, comm->rank) * size, received = recv_count(task, ranks) * size;
  if (sent > 0 && task.send == nullptr) return invalid("sendbuff is NULL");
  if (received > 0 && task.recv == nullptr) return invalid("recvbuff is NULL");
  if (overlaps(static_cast<const char*>(task.send), sent, static_cast<const char*>(task.recv), received) &&
      !in_place(task, comm->rank)) {
    return refuse(ncclInvalidUsage, text(function, ": sendbuff and recvbuff overlap but are not in place"));
  }
  ncclResult_t result = check_memory(function, comm, task.send, sent);
  return result == ncclSuccess ? check_memory(function, comm, task.recv, received) : result;
}

ncclResult_t FakeNccl::check_memory(const char* function, ncclComm_t comm, const void* buffer, size_t bytes) {
  if (bytes == 0) return ncclSuccess;
  std::lock_guard lock(mutex_);
  const char* begin = static_cast<const char*>(buffer);
  for (const auto& [handle, known] : registrations_) {
    if (known.comm != comm || !overlaps(known.begin, known.bytes, begin, bytes)) continue;
    if (begin >= known.begin && begin + bytes <= known.begin + known.bytes) return ncclSuccess;
    return refuse(ncclInvalidUsage, text(function, ": a buffer of ", bytes, " bytes is only partly registered"));
  }
  ++outside_registered_;
  return ncclSuccess;
}

ncclResult_t FakeNccl::submit(const char* function, ncclComm_t comm, Task task, cudaStream_t stream) {
  ncclResult_t result;
  if (planned(function, &result)) return in_group(result);
  result = ensure_usable(function, comm);
  if (result == ncclSuccess) result = check_task(function, comm, task);
  if (result == ncclSuccess && stream != nullptr && machine_.device_of_stream(stream) != comm->device) {
    result = refuse(ncclUnhandledCudaError,
                    text(function, ": the stream is not one of the communicator's device ", comm->device));
  }
  if (result != ncclSuccess) return in_group(result);
  {
    std::lock_guard lock(mutex_);
    if (comm->member().finalized) {
      return refuse(ncclInvalidUsage, text(function, ": the communicator was finalised"));
    }
    Group& mine = group();
    if (mine.depth > 0) {
      mine.tasks.push_back({.comm = comm, .task = task, .stream = stream});
      return ncclSuccess;
    }
  }
  return launch(comm, {task}, stream);
}

ncclResult_t FakeNccl::launch(ncclComm_t comm, std::vector<Task> tasks, cudaStream_t stream) {
  bool captured = machine_.is_capturing(stream);
  auto batch = std::make_shared<Batch>();
  batch->team = comm->team;
  batch->rank = comm->rank;
  batch->tasks = std::move(tasks);
  LibraryOperation operation;
  int ranks = comm->team->size();
  for (const Task& task : batch->tasks) {
    size_t size = element_bytes(nccl_element(task.type));
    size_t sent = send_count(task, ranks, comm->rank) * size, received = recv_count(task, ranks) * size;
    if (sent > 0) operation.reads.push_back({task.send, sent});
    if (received > 0) operation.writes.push_back({task.recv, received});
    if (!operation.name.empty()) operation.name += '+';
    operation.name += task_name(task.kind);
  }
  operation.ready = [this, batch] { return ready(*batch); };
  operation.compute = [this, batch, held = captured ? comm->in_graphs : nullptr] { compute(*batch); };
  {
    std::lock_guard lock(mutex_);
    Member& member = comm->member();
    if (!captured) {
      batch->ticket = member.next_ticket++;
      ++member.pending;
    }
    if (std::find(member.streams.begin(), member.streams.end(), stream) == member.streams.end()) {
      member.streams.push_back(stream);
    }
    if (!comm->blocking) member.unread_progress = 1;
  }
  cudaError_t error = machine_.enqueue(stream, std::move(operation));
  if (error == cudaSuccess) return comm->blocking ? ncclSuccess : ncclInProgress;
  std::lock_guard lock(mutex_);
  comm->team->fail(comm->rank, ncclUnhandledCudaError);
  return refuse(ncclUnhandledCudaError, text("the stream refuses the operation, error ", int(error)));
}

ncclResult_t FakeNccl::end_group() {
  Group ended;
  {
    std::lock_guard lock(mutex_);
    Group& mine = group();
    if (mine.depth == 0) return refuse(ncclInvalidUsage, "ncclGroupEnd: without ncclGroupStart");
    if (--mine.depth > 0) return ncclSuccess;
    ended = std::move(mine);
    mine = {};
  }
  changed_.notify_all();
  if (ended.error != ncclSuccess) return ended.error;
  ncclResult_t result = ncclSuccess;
  // One launch for all calls on one communicator and stream, in the order of the first call on each.
  while (!ended.tasks.empty()) {
    ncclComm_t comm = ended.tasks.front().comm;
    cudaStream_t stream = ended.tasks.front().stream;
    std::vector<Task> together;
    std::erase_if(ended.tasks, [&](PendingTask& pending) {
      if (pending.comm != comm || pending.stream != stream) return false;
      together.push_back(pending.task);
      return true;
    });
    ncclResult_t launched = launch(comm, std::move(together), stream);
    if (launched != ncclSuccess && (result == ncclSuccess || result == ncclInProgress)) result = launched;
  }
  for (ncclComm_t comm : ended.aborts) {
    ncclResult_t freed = reclaim("ncclCommAbort", comm);
    if (freed != ncclSuccess && result == ncclSuccess) result = freed;
  }
  return result;
}

// Called again and again once everything before it on its stream has ended: the first time, the rank has come.
bool FakeNccl::ready(Batch& batch) {
  std::lock_guard lock(mutex_);
  Team& team = *batch.team;
  Member& member = team.members[static_cast<size_t>(batch.rank)];
  if (member.aborted || team.met(batch)) return true;
  if (member.error != ncclSuccess || batch.hung) return false;
  if (!batch.came) {
    if (batch.ticket >= 0 && batch.ticket != member.next_to_come) return false;
    for (auto plan = plans_.begin(); plan != plans_.end(); ++plan) {
      if (plan->rank != batch.rank || --plan->nth > 0) continue;
      batch.hung = plan->hang;
      if (!plan->hang) team.fail(batch.rank, plan->error);
      plans_.erase(plan);
      return false;
    }
    if (batch.ticket >= 0) ++member.next_to_come;
    std::string why = team.come(batch);
    if (!why.empty()) {
      refuse(ncclInvalidUsage, why);
      for (Member& each : team.members) each.error = ncclInvalidUsage;
      return false;
    }
  }
  return team.met(batch);
}

void FakeNccl::compute(Batch& batch) {
  {
    std::lock_guard lock(mutex_);
    Team& team = *batch.team;
    Member& member = team.members[static_cast<size_t>(batch.rank)];
    if (team.met(batch) && !member.aborted) {
      // The first of the ranks to get here does it for all: their operations are all at the head of their streams.
      for (Meeting* meeting : batch.meetings) {
        if (!meeting->executed) execute(*meeting);
        meeting->executed = true;
      }
      team.leave(batch);
    }
    batch.meetings.clear();
    batch.came = false;
    if (batch.ticket >= 0) --member.pending;
    batch.ticket = -1;
  }
  changed_.notify_all();
  machine_.wake();
}

}  // namespace emu::fakes
