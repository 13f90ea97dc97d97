// How operations of different ranks meet; see team.h.
#include "team.h"

#include <algorithm>

#include "../fake_library.h"

namespace emu::fakes {

const char* task_name(TaskKind kind) {
  static const char* const names[] = {"ncclBroadcast", "ncclAllReduce", "ncclReduceScatter",
                                      "ncclAllGather", "ncclSend",      "ncclRecv"};
  return names[static_cast<int>(kind)];
}

std::string describe_task(const Task& task) {
  std::string out = text(task_name(task.kind), " of ", task.count, " ", element_name(nccl_element(task.type)));
  if (task.reduces()) out += text(", operator ", int(task.op));
  if (task.kind == TaskKind::kBroadcast) out += text(", root ", task.peer);
  return out;
}

Element nccl_element(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return Element::kI8;
    case ncclUint8:
      return Element::kU8;
    case ncclInt32:
      return Element::kI32;
    case ncclUint32:
      return Element::kU32;
    case ncclInt64:
      return Element::kI64;
    case ncclUint64:
      return Element::kU64;
    case ncclFloat16:
      return Element::kF16;
    case ncclFloat32:
      return Element::kF32;
    case ncclFloat64:
      return Element::kF64;
    case ncclBfloat16:
      return Element::kBf16;
    case ncclFloat8e4m3:
      return Element::kE4m3;
    case ncclFloat8e5m2:
      return Element::kE5m2;
    default:
      return Element::kNone;
  }
}

size_t send_count(const Task& task, int ranks, int rank) {
  switch (task.kind) {
    case TaskKind::kRecv:
      return 0;
    case TaskKind::kBroadcast:
      return rank == task.peer ? task.count : 0;
    case TaskKind::kReduceScatter:
      return task.count * static_cast<size_t>(ranks);
    default:
      return task.count;
  }
}

size_t recv_count(const Task& task, int ranks) {
  switch (task.kind) {
    case TaskKind::kSend:
      return 0;
    case TaskKind::kAllGather:
      return task.count * static_cast<size_t>(ranks);
    default:
      return task.count;
  }
}

Team::Team(int ranks) : members(static_cast<size_t>(ranks)), sequences_(static_cast<size_t>(ranks)) {}

bool Team::complete() const {
  return std::all_of(members.begin(), members.end(), [](const Member& member) { return member.here; });
}

std::string Team::come(Batch& batch) {
  std::string why;
  for (const Task& task : batch.tasks) {
    Meeting* meeting = task.collective() ? meet_collective(batch, task, &why) : meet_peer(batch, task, &why);
    if (!why.empty()) meeting->broken = true;
    batch.meetings.push_back(meeting);
  }
  batch.came = true;
  return why;
}

Meeting* Team::meet_collective(Batch& batch, const Task& task, std::string* why) {
  Sequence& sequence = sequences_[static_cast<size_t>(batch.rank)];
  Meeting& meeting = collectives_[sequence.next_collective++];
  if (meeting.tasks.empty()) {
    meeting.tasks.assign(members.size(), nullptr);
    for (int rank = 0; rank < size(); ++rank) meeting.ranks.push_back(rank);
  }
  for (int rank = 0; rank < size(); ++rank) {
    const Task* other = meeting.tasks[static_cast<size_t>(rank)];
    if (other && describe_task(*other) != describe_task(task)) {
      *why = text("rank ", batch.rank, " calls ", describe_task(task), " but rank ", rank, " ", describe_task(*other));
    }
  }
  meeting.tasks[static_cast<size_t>(batch.rank)] = &task;
  ++meeting.came;
  return &meeting;
}

Meeting* Team::meet_peer(Batch& batch, const Task& task, std::string* why) {
  bool sends = task.kind == TaskKind::kSend;
  Sequence& sequence = sequences_[static_cast<size_t>(batch.rank)];
  long number = sends ? sequence.next_send[task.peer]++ : sequence.next_recv[task.peer]++;
  int from = sends ? batch.rank : task.peer, to = sends ? task.peer : batch.rank;
  Meeting& meeting = exchanges_[{{from, to}, number}];
  if (meeting.tasks.empty()) {
    meeting.tasks.assign(2, nullptr);
    meeting.ranks = {from, to};
  }
  const Task* other = meeting.tasks[sends ? 1 : 0];
  if (other && (other->count != task.count || other->type != task.type)) {
    *why =
        text("rank ", batch.rank, " calls ", describe_task(task), " but rank ", task.peer, " ", describe_task(*other));
  }
  meeting.tasks[sends ? 0 : 1] = &task;
  ++meeting.came;
  return &meeting;
}

bool Team::met(const Batch& batch) const {
  return batch.came && std::all_of(batch.meetings.begin(), batch.meetings.end(),
                                   [](const Meeting* meeting) { return meeting->complete(); });
}

void Team::leave(Batch& batch) {
  for (Meeting* meeting : batch.meetings) ++meeting->left;
  auto over = [](const auto& entry) { return entry.second.left == entry.second.tasks.size(); };
  std::erase_if(collectives_, over);
  std::erase_if(exchanges_, over);
}

void Team::withdraw(int rank) {
  auto leave_unexecuted = [&](Meeting& meeting) {
    for (size_t i = 0; i < meeting.tasks.size() && !meeting.executed; ++i) {
      if (meeting.ranks[i] != rank || !meeting.tasks[i]) continue;
      meeting.tasks[i] = nullptr;
      --meeting.came;
    }
  };
  for (auto& entry : collectives_) leave_unexecuted(entry.second);
  for (auto& entry : exchanges_) leave_unexecuted(entry.second);
}

void Team::fail(int rank, ncclResult_t error) {
  for (int i = 0; i < size(); ++i) {
    Member& member = members[static_cast<size_t>(i)];
    if (member.error == ncclSuccess) member.error = i == rank ? error : ncclRemoteError;
  }
}

}  // namespace emu::fakes
