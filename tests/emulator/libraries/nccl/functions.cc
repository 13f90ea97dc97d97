// The C functions of NCCL that the table points at, and what the fake keeps beside communicators.
#include <cstring>

#include "fake_nccl.h"

namespace emu::fakes {

// A struct, so that FakeNccl can make it a friend.
struct NcclFunctions {
  static FakeNccl& fake() { return Installed<FakeNccl>::get(); }

  static ncclResult_t version(int* out) {
    if (out == nullptr) return fake().refuse(ncclInvalidArgument, "ncclGetVersion: version is NULL");
    *out = NCCL_VERSION_CODE;
    return ncclSuccess;
  }

  static const char* error_string(ncclResult_t result) {
    switch (result) {
      case ncclSuccess:
        return "no error";
      case ncclUnhandledCudaError:
        return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
      case ncclSystemError:
        return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
      case ncclInternalError:
        return "internal error - please report this issue to the NCCL developers";
      case ncclInvalidArgument:
        return "invalid argument (run with NCCL_DEBUG=WARN for details)";
      case ncclInvalidUsage:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
      case ncclRemoteError:
        return "remote process exited or there was a network error";
      case ncclInProgress:
        return "NCCL operation in progress";
      default:
        return "unknown result code";
    }
  }

  static const char* last_error(ncclComm_t) {
    static std::mutex mutex;  // callers read the text after the call returned
    static std::string held;
    std::lock_guard lock(mutex);
    held = fake().last_refusal();
    return held.c_str();
  }

  static ncclResult_t unique_id(ncclUniqueId* id) {
    FakeNccl& f = fake();
    ncclResult_t result;
    if (f.planned("ncclGetUniqueId", &result)) return result;
    if (id == nullptr) return f.refuse(ncclInvalidArgument, "ncclGetUniqueId: uniqueId is NULL");
    std::memset(id, 0, sizeof *id);
    std::lock_guard lock(f.mutex_);
    std::string name = text("emulated NCCL ", f.next_id_++);
    std::memcpy(id->internal, name.data(), name.size());
    f.teams_[std::string(id->internal, sizeof id->internal)] = nullptr;
    return ncclSuccess;
  }

  static ncclResult_t init_config(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
    FakeNccl& f = fake();
    ncclResult_t result;
    if (f.planned("ncclCommInitRank", &result)) return result;
    return f.init(comm, ranks, id, rank, config);
  }
  static ncclResult_t finalize(ncclComm_t comm) {
    ncclResult_t result = fake().ensure_usable("ncclCommFinalize", comm);
    return result == ncclSuccess ? fake().finalize(comm) : result;
  }
  static ncclResult_t dead(const char* function) {
    return fake().refuse(ncclInvalidArgument, text(function, ": not a live communicator"));
  }
  static ncclResult_t destroy(ncclComm_t comm) {
    if (comm == nullptr) return ncclSuccess;
    return fake().lives(comm) ? fake().destroy(comm) : dead("ncclCommDestroy");
  }
  static ncclResult_t abort(ncclComm_t comm) {
    if (comm == nullptr) return ncclSuccess;
    return fake().lives(comm) ? fake().abort(comm) : dead("ncclCommAbort");
  }
  static ncclResult_t async_error(ncclComm_t comm, ncclResult_t* error) {
    return fake().lives(comm) ? fake().async_error(comm, error) : dead("ncclCommGetAsyncError");
  }

  static ncclResult_t allocate(void** out, size_t bytes) {
    FakeNccl& f = fake();
    ncclResult_t result;
    if (f.planned("ncclMemAlloc", &result)) return result;
    if (out == nullptr || bytes == 0) return f.refuse(ncclInvalidArgument, "ncclMemAlloc: no pointer or no bytes");
    *out = f.machine_.allocate(bytes);
    if (*out == nullptr) return f.refuse(ncclUnhandledCudaError, "ncclMemAlloc: out of memory");
    std::lock_guard lock(f.mutex_);
    f.memory_.insert(*out);
    return ncclSuccess;
  }
  static ncclResult_t release(void* memory) {
    FakeNccl& f = fake();
    if (memory == nullptr) return ncclSuccess;
    {
      std::lock_guard lock(f.mutex_);
      if (f.memory_.erase(memory) == 0) return f.refuse(ncclInvalidArgument, "ncclMemFree: not from ncclMemAlloc");
    }
    f.machine_.release(memory);
    return ncclSuccess;
  }

  static ncclResult_t enlist(const ncclComm_t comm, void* buffer, size_t bytes, void** handle) {
    const char* function = "ncclCommRegister";
    FakeNccl& f = fake();
    ncclResult_t result = f.ensure_usable(function, comm);
    if (result != ncclSuccess) return result;
    if (buffer == nullptr || bytes == 0 || handle == nullptr) {
      return f.refuse(ncclInvalidArgument, text(function, ": no buffer, no bytes or no result pointer"));
    }
    std::lock_guard lock(f.mutex_);
    *handle = new char;
    f.registrations_[*handle] = {.comm = comm, .begin = static_cast<const char*>(buffer), .bytes = bytes};
    return ncclSuccess;
  }
  static ncclResult_t delist(const ncclComm_t comm, void* handle) {
    const char* function = "ncclCommDeregister";
    FakeNccl& f = fake();
    ncclResult_t result = f.ensure_usable(function, comm);
    if (result != ncclSuccess || handle == nullptr) return result;
    std::lock_guard lock(f.mutex_);
    auto found = f.registrations_.find(handle);
    if (found == f.registrations_.end() || found->second.comm != comm) {
      return f.refuse(ncclInvalidArgument, text(function, ": not registered with this communicator"));
    }
    delete static_cast<char*>(handle);
    f.registrations_.erase(found);
    return ncclSuccess;
  }
  static ncclResult_t broadcast(const void* send, void* recv, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                                cudaStream_t stream) {
    Task task{.kind = TaskKind::kBroadcast, .send = send, .recv = recv, .count = n, .type = type, .peer = root};
    return fake().submit("ncclBroadcast", comm, task, stream);
  }
  static ncclResult_t all_reduce(const void* send, void* recv, size_t n, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t comm, cudaStream_t stream) {
    Task task{.kind = TaskKind::kAllReduce, .send = send, .recv = recv, .count = n, .type = type, .op = op};
    return fake().submit("ncclAllReduce", comm, task, stream);
  }
  static ncclResult_t reduce_scatter(const void* send, void* recv, size_t n, ncclDataType_t type, ncclRedOp_t op,
                                     ncclComm_t comm, cudaStream_t stream) {
    Task task{.kind = TaskKind::kReduceScatter, .send = send, .recv = recv, .count = n, .type = type, .op = op};
    return fake().submit("ncclReduceScatter", comm, task, stream);
  }
  static ncclResult_t all_gather(const void* send, void* recv, size_t n, ncclDataType_t type, ncclComm_t comm,
                                 cudaStream_t stream) {
    Task task{.kind = TaskKind::kAllGather, .send = send, .recv = recv, .count = n, .type = type};
    return fake().submit("ncclAllGather", comm, task, stream);
  }
  static ncclResult_t send(const void* buffer, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                           cudaStream_t stream) {
    Task task{.kind = TaskKind::kSend, .send = buffer, .count = n, .type = type, .peer = peer};
    return fake().submit("ncclSend", comm, task, stream);
  }
  static ncclResult_t recv(void* buffer, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                           cudaStream_t stream) {
    Task task{.kind = TaskKind::kRecv, .recv = buffer, .count = n, .type = type, .peer = peer};
    return fake().submit("ncclRecv", comm, task, stream);
  }
  static ncclResult_t group_start() {
    std::lock_guard lock(fake().mutex_);
    ++fake().group().depth;
    return ncclSuccess;
  }
  static ncclResult_t group_end() { return fake().end_group(); }
};

FakeNccl::FakeNccl(Machine machine) : machine_(std::move(machine)), installed_(this) {}

FakeNccl::~FakeNccl() {
  for (ncclComm_t comm : comms_) delete comm;
  for (auto& registration : registrations_) delete static_cast<char*>(registration.first);
  for (void* memory : memory_) machine_.release(memory);
}

ncclResult_t FakeNccl::refuse(ncclResult_t result, const std::string& why) {
  refusals_.add(why);
  return result;
}

bool FakeNccl::planned(const char* function, ncclResult_t* result) {
  int code = 0;
  if (!machine_.planned_failure(function, &code)) return false;
  *result = refuse(static_cast<ncclResult_t>(code), text(function, ": planned failure"));
  return true;
}

bool FakeNccl::lives(ncclComm_t comm) const {
  std::lock_guard lock(mutex_);
  return comms_.count(comm) > 0;
}

FakeNccl::Group& FakeNccl::group() { return groups_[std::this_thread::get_id()]; }

ncclResult_t FakeNccl::in_group(ncclResult_t result) {
  std::lock_guard lock(mutex_);
  Group& mine = group();
  bool bad = result != ncclSuccess && result != ncclInProgress;
  if (mine.depth > 0 && bad && mine.error == ncclSuccess) mine.error = result;
  return result;
}

ncclResult_t FakeNccl::ensure_usable(const char* function, ncclComm_t comm) {
  std::lock_guard lock(mutex_);
  if (comms_.count(comm) == 0) return refuse(ncclInvalidArgument, text(function, ": not a live communicator"));
  if (!comm->team->complete() || comm->member().unread_progress > 0) {
    return refuse(
        ncclInvalidArgument,
        text(function, ": the previous call is still in progress; poll ncclCommGetAsyncError until ncclSuccess"));
  }
  if (comm->team->init_error != ncclSuccess) return comm->team->init_error;
  return comm->member().error;
}

void FakeNccl::hang(int rank, int nth) {
  std::lock_guard lock(mutex_);
  plans_.push_back({.rank = rank, .nth = nth, .hang = true});
}

void FakeNccl::fail_asynchronously(int rank, int nth, ncclResult_t error) {
  std::lock_guard lock(mutex_);
  plans_.push_back({.rank = rank, .nth = nth, .error = error});
}

int64_t FakeNccl::calls_outside_registered_memory() const {
  std::lock_guard lock(mutex_);
  return outside_registered_;
}

std::vector<std::string> FakeNccl::leaks() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> out(comms_.size(), "ncclComm_t");
  out.insert(out.end(), registrations_.size(), "registration");
  out.insert(out.end(), memory_.size(), "ncclMemAlloc");
  return out;
}

athanor::NcclTable FakeNccl::table() const {
  using F = NcclFunctions;
  return {.ncclGetVersion = F::version,
          .ncclGetErrorString = F::error_string,
          .ncclGetLastError = F::last_error,
          .ncclGetUniqueId = F::unique_id,
          .ncclCommInitRankConfig = F::init_config,
          .ncclCommFinalize = F::finalize,
          .ncclCommDestroy = F::destroy,
          .ncclCommAbort = F::abort,
          .ncclCommGetAsyncError = F::async_error,
          .ncclMemAlloc = F::allocate,
          .ncclMemFree = F::release,
          .ncclCommRegister = F::enlist,
          .ncclCommDeregister = F::delist,
          .ncclBroadcast = F::broadcast,
          .ncclAllReduce = F::all_reduce,
          .ncclReduceScatter = F::reduce_scatter,
          .ncclAllGather = F::all_gather,
          .ncclSend = F::send,
          .ncclRecv = F::recv,
          .ncclGroupStart = F::group_start,
          .ncclGroupEnd = F::group_end};
}

}  // namespace emu::fakes
