// Ranks as processes; see process_nccl.h. A collective is two operations on the stream: the first writes what this rank
// contributes to a file, the second waits until everybody's file is there and computes. Files go one collective later.
#include "process_nccl.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "../fake_library.h"
#include "team.h"

namespace emu::fakes {
namespace {

namespace fs = std::filesystem;

// What the handle of a program stands for.
struct Comm {
  fs::path folder;
  int rank = 0, size = 1;
  std::atomic<bool> aborted{false};
  std::shared_ptr<char> in_graphs = std::make_shared<char>();  // every captured operation holds it, too
  long calls = 0;                                              // collectives that ran
  std::map<int, long> sent, taken;                             // messages by peer
  fs::path file(const std::string& kind, long number, int of) const { return folder / text(kind, number, ".", of); }
  bool all(const std::string& kind, long number) const {
    for (int r = 0; r < size; ++r)
      if (!fs::exists(file(kind, number, r))) return false;
    return true;
  }
};

struct World {
  Machine machine;
  std::mutex mutex;
  std::map<ncclComm_t, std::shared_ptr<Comm>> open;
  std::shared_ptr<Comm> of(ncclComm_t comm) {
    const std::lock_guard lock(mutex);
    const auto found = open.find(comm);
    return found == open.end() ? nullptr : found->second;
  }
};
World& world() {
  static World* const the = new World;  // outlives every thread
  return *the;
}

void publish(const fs::path& path, const void* data, size_t bytes) {
  const fs::path draft = path.string() + ".draft";
  std::ofstream(draft, std::ios::binary).write(static_cast<const char*>(data), std::streamsize(bytes));
  fs::rename(draft, path);
}

std::vector<char> load(const fs::path& path) {
  std::vector<char> bytes(fs::file_size(path));
  std::ifstream(path, std::ios::binary).read(bytes.data(), std::streamsize(bytes.size()));
  return bytes;
}

// The meeting of this rank's task with those of the others as their files have them.
void compute(Comm& comm, const Task& mine, long number) {
  const size_t size = element_bytes(nccl_element(mine.type));
  std::vector<std::vector<char>> sent(size_t(comm.size)), received(size_t(comm.size));
  std::vector<Task> tasks(size_t(comm.size), mine);
  Meeting meeting;
  for (int r = 0; r < comm.size; ++r) {
    Task& task = tasks[size_t(r)];
    if (r != comm.rank) {
      sent[size_t(r)] = load(comm.file("call", number, r));
      received[size_t(r)].resize(recv_count(mine, comm.size) * size);
      task.send = sent[size_t(r)].data(), task.recv = received[size_t(r)].data();
    }
    meeting.tasks.push_back(&task);
    meeting.ranks.push_back(r);
  }
  execute(meeting);
  std::error_code gone;
  fs::remove(comm.file("call", number - 1, comm.rank), gone);  // all are past it: they have come to this one
}

ncclResult_t enqueue(const char* function, ncclComm_t handle, Task task, cudaStream_t stream) {
  int code = 0;
  if (world().machine.planned_failure(function, &code)) return static_cast<ncclResult_t>(code);
  const auto comm = world().of(handle);
  if (!comm || comm->aborted) return ncclInvalidArgument;
  const size_t size = element_bytes(nccl_element(task.type));
  const size_t out = send_count(task, comm->size, comm->rank) * size, in = recv_count(task, comm->size) * size;
  const auto number = std::make_shared<long>(0);  // of the call under way
  LibraryOperation give{.name = function}, take{.name = function};
  if (out > 0) give.reads.push_back({task.send, out});
  if (in > 0) take.writes.push_back({task.recv, in});
  if (out > 0 && task.collective()) take.reads.push_back({task.send, out});
  give.compute = [=] {
    if (comm->aborted) return;
    if (task.kind == TaskKind::kSend) {
      publish(comm->file(text("message-", task.peer, "-"), comm->sent[task.peer]++, comm->rank), task.send, out);
    } else if (task.collective()) {
      publish(comm->file("call", *number = comm->calls++, comm->rank), task.send, out);
    }
  };
  const auto message = [=] { return comm->file(text("message-", comm->rank, "-"), comm->taken[task.peer], task.peer); };
  take.ready = [=] {
    if (comm->aborted || task.kind == TaskKind::kSend) return true;
    return task.collective() ? comm->all("call", *number) : fs::exists(message());
  };
  take.compute = [=, held = world().machine.is_capturing(stream) ? comm->in_graphs : nullptr] {
    if (comm->aborted || task.kind == TaskKind::kSend) return;
    if (task.collective()) return compute(*comm, task, *number);
    const std::vector<char> bytes = load(message());
    std::memcpy(task.recv, bytes.data(), in);
    fs::remove(message());
    ++comm->taken[task.peer];
  };
  for (LibraryOperation* operation : {&give, &take})
    if (world().machine.enqueue(stream, std::move(*operation)) != cudaSuccess) return ncclUnhandledCudaError;
  return ncclSuccess;
}

ncclResult_t close(ncclComm_t handle) {
  const auto comm = world().of(handle);
  if (!comm) return ncclInvalidArgument;
  comm->aborted = true;
  {
    const std::lock_guard lock(world().mutex);
    world().open.erase(handle);
  }
  world().machine.wake();
  while (comm->in_graphs.use_count() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // as NCCL
  return ncclSuccess;
}

// The last of all to leave takes the folder along.
ncclResult_t destroy(ncclComm_t handle) {
  const auto comm = world().of(handle);
  if (!comm) return ncclInvalidArgument;
  publish(comm->file("left", 0, comm->rank), "", 0);
  std::error_code gone;
  if (comm->all("left", 0)) fs::remove_all(comm->folder, gone);
  return close(handle);
}

ncclResult_t unique_id(ncclUniqueId* id) {
  int code = 0;
  if (world().machine.planned_failure("ncclGetUniqueId", &code)) return static_cast<ncclResult_t>(code);
  std::string name = (fs::temp_directory_path() / "emulated-nccl-XXXXXX").string();
  if (name.size() >= sizeof id->internal || !mkdtemp(name.data())) return ncclSystemError;
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}

ncclResult_t init(ncclComm_t* out, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  int code = 0;
  if (world().machine.planned_failure("ncclCommInitRank", &code)) return static_cast<ncclResult_t>(code);
  auto comm = std::make_shared<Comm>();
  comm->folder = id.internal, comm->rank = rank, comm->size = size;
  publish(comm->file("here", 0, rank), "", 0);
  *out = reinterpret_cast<ncclComm_t>(comm.get());
  const std::lock_guard lock(world().mutex);
  world().open[*out] = comm;
  return ncclInProgress;
}

ncclResult_t async_error(ncclComm_t handle, ncclResult_t* error) {
  const auto comm = world().of(handle);
  if (!comm) return ncclInvalidArgument;
  *error = comm->calls > 0 || comm->all("here", 0) ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}

}  // namespace

athanor::NcclTable process_nccl(Machine machine) {
  world().machine = std::move(machine);
  athanor::NcclTable t;
  t.ncclGetVersion = [](int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
  };
  t.ncclGetErrorString = [](ncclResult_t) { return "a failure of the emulated NCCL"; };
  t.ncclGetLastError = [](ncclComm_t) { return ""; };
  t.ncclGetUniqueId = unique_id;
  t.ncclCommInitRankConfig = init;
  t.ncclCommFinalize = [](ncclComm_t) { return ncclSuccess; };
  t.ncclCommDestroy = destroy;
  t.ncclCommAbort = close;
  t.ncclCommGetAsyncError = async_error;
  t.ncclGroupStart = [] { return ncclSuccess; };  // a send never waits
  t.ncclGroupEnd = [] { return ncclSuccess; };
  t.ncclAllReduce = [](const void* send, void* recv, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                       cudaStream_t stream) {
    return enqueue("ncclAllReduce", comm,
                   {.kind = TaskKind::kAllReduce, .send = send, .recv = recv, .count = n, .type = type, .op = op},
                   stream);
  };
  t.ncclReduceScatter = [](const void* send, void* recv, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
    return enqueue("ncclReduceScatter", comm,
                   {.kind = TaskKind::kReduceScatter, .send = send, .recv = recv, .count = n, .type = type, .op = op},
                   stream);
  };
  t.ncclAllGather = [](const void* send, void* recv, size_t n, ncclDataType_t type, ncclComm_t comm,
                       cudaStream_t stream) {
    return enqueue("ncclAllGather", comm,
                   {.kind = TaskKind::kAllGather, .send = send, .recv = recv, .count = n, .type = type}, stream);
  };
  t.ncclBroadcast = [](const void* send, void* recv, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
    return enqueue("ncclBroadcast", comm,
                   {.kind = TaskKind::kBroadcast, .send = send, .recv = recv, .count = n, .type = type, .peer = root},
                   stream);
  };
  t.ncclSend = [](const void* send, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return enqueue("ncclSend", comm, {.kind = TaskKind::kSend, .send = send, .count = n, .type = type, .peer = peer},
                   stream);
  };
  t.ncclRecv = [](void* recv, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return enqueue("ncclRecv", comm, {.kind = TaskKind::kRecv, .recv = recv, .count = n, .type = type, .peer = peer},
                   stream);
  };
  return t;
}

}  // namespace emu::fakes
