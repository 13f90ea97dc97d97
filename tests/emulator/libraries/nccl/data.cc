// What collectives do to memory. Sums go round the ring in order of ranks and are rounded to the element type at every
// hop, as the real library's rings do with 16-bit types.
#include <cmath>
#include <cstring>

#include "team.h"

namespace emu::fakes {
namespace {

bool is_integer(Element type) {
  return type == Element::kI8 || type == Element::kU8 || type == Element::kI32 || type == Element::kU32 ||
         type == Element::kI64 || type == Element::kU64;
}

// 64-bit integers are exact up to 2^53 only; sums of more are outside what the fakes are for.
double rounded(Element type, double value) {
  uint64_t cell = 0;
  write_double(type, &cell, 0, value);
  return read_double(type, &cell, 0);
}

double combine(ncclRedOp_t op, double x, double y) {
  switch (op) {
    case ncclProd:
      return x * y;
    case ncclMax:
      return std::fmax(x, y);  // a number rather than NaN, as NCCL's kernels
    case ncclMin:
      return std::fmin(x, y);
    default:
      return x + y;
  }
}

double reduce_element(const Meeting& meeting, Element type, int64_t index) {
  const Task& first = *meeting.tasks[0];
  int ranks = static_cast<int>(meeting.tasks.size());
  bool divide_at_end = first.op == ncclAvg && is_integer(type);
  double result = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Task& task = *meeting.tasks[static_cast<size_t>(rank)];
    double value = read_double(type, task.send, index);
    if (task.op == ncclAvg && !divide_at_end) value = rounded(type, value / ranks);
    result = rank == 0 ? value : rounded(type, combine(first.op, result, value));
  }
  return divide_at_end ? rounded(type, std::trunc(result / ranks)) : result;
}

void reduce(const Meeting& meeting) {
  const Task& first = *meeting.tasks[0];
  Element type = nccl_element(first.type);
  bool scatter = first.kind == TaskKind::kReduceScatter;
  size_t count = scatter ? first.count * meeting.tasks.size() : first.count;
  std::vector<char> results(count * element_bytes(type));
  for (size_t i = 0; i < count; ++i) {
    write_double(type, results.data(), static_cast<int64_t>(i), reduce_element(meeting, type, static_cast<int64_t>(i)));
  }
  size_t bytes = first.count * element_bytes(type);
  for (size_t rank = 0; rank < meeting.tasks.size(); ++rank) {
    const Task& task = *meeting.tasks[rank];
    std::memcpy(task.recv, results.data() + (scatter ? rank * bytes : 0), bytes);
  }
}

void gather(const Meeting& meeting) {
  const Task& first = *meeting.tasks[0];
  size_t ranks = meeting.tasks.size(), bytes = first.count * element_bytes(nccl_element(first.type));
  std::vector<char> all(bytes * ranks);  // a copy: operations may be in place
  for (size_t rank = 0; rank < ranks; ++rank) std::memcpy(all.data() + rank * bytes, meeting.tasks[rank]->send, bytes);
  for (const Task* task : meeting.tasks) std::memcpy(task->recv, all.data(), all.size());
}

void broadcast(const Meeting& meeting) {
  const Task& root = *meeting.tasks[static_cast<size_t>(meeting.tasks[0]->peer)];
  size_t bytes = root.count * element_bytes(nccl_element(root.type));
  for (const Task* task : meeting.tasks) std::memmove(task->recv, root.send, bytes);
}

}  // namespace

void execute(const Meeting& meeting) {
  const Task& first = *meeting.tasks[0];
  if (first.count == 0) return;
  switch (first.kind) {
    case TaskKind::kAllReduce:
    case TaskKind::kReduceScatter:
      return reduce(meeting);
    case TaskKind::kBroadcast:
      return broadcast(meeting);
    case TaskKind::kAllGather:
      return gather(meeting);
    case TaskKind::kSend:
    case TaskKind::kRecv:
      std::memmove(meeting.tasks[1]->recv, first.send, first.count * element_bytes(nccl_element(first.type)));
  }
}

}  // namespace emu::fakes
