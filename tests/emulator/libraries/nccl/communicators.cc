// Making, finalising and aborting communicators of the fake NCCL.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "fake_nccl.h"

namespace emu::fakes {
namespace {

constexpr unsigned kConfigMagic = 0xcafebeef;  // NCCL_CONFIG_INITIALIZER
constexpr auto kPoll = std::chrono::milliseconds(1);

std::string key_of(const ncclUniqueId& id) { return std::string(id.internal, sizeof id.internal); }

std::string missing_ranks(const Team& team) {
  std::string out;
  for (int rank = 0; rank < team.size(); ++rank) {
    if (!team.members[static_cast<size_t>(rank)].here) out += text(" ", rank);
  }
  return out;
}

bool shares_device(const Team& team) {
  std::set<int> devices;
  for (const Member& member : team.members) {
    if (!devices.insert(member.device).second) return true;
  }
  return false;
}

}  // namespace

ncclResult_t FakeNccl::check_config(const ncclConfig_t* config, bool* blocking) {
  if (config == nullptr) return ncclSuccess;
  if (config->magic != kConfigMagic) {
    return refuse(ncclInvalidArgument, "ncclConfig_t was not initialised with NCCL_CONFIG_INITIALIZER");
  }
  if (config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 && config->blocking != 1) {
    return refuse(ncclInvalidArgument, text("ncclConfig_t: blocking is ", config->blocking));
  }
  for (int value : {config->minCTAs, config->maxCTAs, config->cgaClusterSize}) {
    if (value != NCCL_CONFIG_UNDEF_INT && value < 0) return refuse(ncclInvalidArgument, "ncclConfig_t: negative value");
  }
  if (config->minCTAs != NCCL_CONFIG_UNDEF_INT && config->maxCTAs != NCCL_CONFIG_UNDEF_INT &&
      config->minCTAs > config->maxCTAs) {
    return refuse(ncclInvalidArgument, "ncclConfig_t: minCTAs exceeds maxCTAs");
  }
  if (config->blocking != NCCL_CONFIG_UNDEF_INT) *blocking = config->blocking == 1;
  return ncclSuccess;
}

ncclResult_t FakeNccl::init(ncclComm_t* out, int ranks, const ncclUniqueId& id, int rank, ncclConfig_t* config) {
  if (out == nullptr) return refuse(ncclInvalidArgument, "ncclCommInitRank: comm is NULL");
  *out = nullptr;
  bool blocking = true;
  if (ncclResult_t result = check_config(config, &blocking); result != ncclSuccess) return result;
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return refuse(ncclInvalidArgument, text("ncclCommInitRank: rank ", rank, " of ", ranks));
  }
  int device = machine_.current_device();
  std::unique_lock lock(mutex_);
  auto found = teams_.find(key_of(id));
  if (found == teams_.end()) {
    return refuse(ncclInvalidArgument, "ncclCommInitRank: the id is not from ncclGetUniqueId, or was used up");
  }
  if (!found->second) found->second = std::make_shared<Team>(ranks);
  std::shared_ptr<Team> team = found->second;
  if (team->size() != ranks || team->members[static_cast<size_t>(rank)].here) {
    return refuse(ncclInvalidUsage, text("ncclCommInitRank: rank ", rank, " of ", ranks,
                                         " is there already, or others expect ", team->size(), " ranks"));
  }
  Member& member = team->members[static_cast<size_t>(rank)];
  member.here = true;
  member.device = device;
  member.blocking = blocking;
  auto* comm = new ncclComm{.team = team, .rank = rank, .device = device, .blocking = blocking};
  comms_.insert(comm);
  *out = comm;
  if (team->complete()) {
    teams_.erase(found);
    if (!share_device_ && shares_device(*team)) {
      refuse(team->init_error = ncclInvalidUsage, "Duplicate GPU detected: two ranks of a communicator use one device");
    }
  }
  lock.unlock();
  changed_.notify_all();
  return blocking ? wait_for_team(comm) : ncclInProgress;
}

ncclResult_t FakeNccl::wait_for_team(ncclComm_t comm) {
  std::unique_lock lock(mutex_);
  auto there = [&] { return comm->team->complete(); };
  if (!changed_.wait_for(lock, std::chrono::duration<double>(wait_limit_), there)) {
    return refuse(ncclSystemError, text("communicator: these ranks never came:", missing_ranks(*comm->team)));
  }
  return comm->team->init_error;
}

void FakeNccl::drive(ncclComm_t comm) {
  std::vector<cudaStream_t> streams;
  {
    std::lock_guard lock(mutex_);
    streams = comm->member().streams;
  }
  for (cudaStream_t stream : streams) machine_.progress(stream);
}

ncclResult_t FakeNccl::finalize(ncclComm_t comm) {
  {
    std::lock_guard lock(mutex_);
    Member& member = comm->member();
    if (member.finalized) return refuse(ncclInvalidArgument, "ncclCommFinalize: called twice");
    member.finalized = true;
    if (!comm->blocking) return ncclInProgress;
  }
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_limit_);
  for (;;) {
    drive(comm);
    std::unique_lock lock(mutex_);
    if (comm->member().error != ncclSuccess) return comm->member().error;
    if (comm->member().pending == 0 && !comm->is_in_graphs()) return ncclSuccess;
    if (std::chrono::steady_clock::now() > end) {
      return refuse(ncclInternalError,
                    "ncclCommFinalize: operations under way never end, or graphs that captured some are still there");
    }
    changed_.wait_for(lock, kPoll);
  }
}

ncclResult_t FakeNccl::destroy(ncclComm_t comm) {
  bool flush;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [handle, known] : registrations_) {
      if (known.comm == comm) return refuse(ncclInvalidUsage, "ncclCommDestroy: memory is still registered with it");
    }
    flush = !comm->member().finalized && comm->member().error == ncclSuccess;
  }
  if (flush) {
    ncclResult_t result = finalize(comm);
    if (result != ncclSuccess && result != ncclInProgress) return result;
  }
  auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_limit_);
  while (std::chrono::steady_clock::now() < end) {
    {
      std::unique_lock lock(mutex_);
      if (comm->member().pending == 0 || comm->member().error != ncclSuccess) break;
    }
    drive(comm);
  }
  {
    std::lock_guard lock(mutex_);
    comm->member().aborted = true;
    comm->team->withdraw(comm->rank);
  }
  return reclaim("ncclCommDestroy", comm);
}

ncclResult_t FakeNccl::abort(ncclComm_t comm) {
  bool later;
  {
    std::lock_guard lock(mutex_);
    comm->member().aborted = true;
    comm->team->withdraw(comm->rank);
    later = group().depth > 0;
    if (later) group().aborts.push_back(comm);
  }
  changed_.notify_all();
  machine_.wake();
  return later ? ncclSuccess : reclaim("ncclCommAbort", comm);
}

bool FakeNccl::device_waits(int device) {
  std::vector<cudaStream_t> streams;
  {
    std::lock_guard lock(mutex_);
    for (ncclComm_t comm : comms_)
      if (comm->device == device && !comm->member().aborted)
        streams.insert(streams.end(), comm->member().streams.begin(), comm->member().streams.end());
  }
  return std::any_of(streams.begin(), streams.end(), [&](cudaStream_t stream) {
    return machine_.device_of_stream(stream) >= 0 && !machine_.is_capturing(stream) && !machine_.progress(stream);
  });
}

// As commDestroySync() and commFree() of NCCL: when no graph refers to it any more, device memory is freed, which waits
// for all that the device is at. The real library waits for ever.
ncclResult_t FakeNccl::reclaim(const char* function, ncclComm_t comm) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_limit_);
  while (comm->is_in_graphs() || device_waits(comm->device)) {
    if (std::chrono::steady_clock::now() > end) {
      return refuse(ncclInternalError,
                    text(function, comm->is_in_graphs() ? ": graphs that captured operations of it are still there"
                                                        : ": the device still waits in another communicator"));
    }
    std::this_thread::sleep_for(kPoll);
  }
  std::lock_guard lock(mutex_);
  std::erase_if(registrations_, [&](const auto& one) {  // of one that was aborted
    if (one.second.comm != comm) return false;
    delete static_cast<char*>(one.first);
    return true;
  });
  comms_.erase(comm);
  delete comm;
  return ncclSuccess;
}

ncclResult_t FakeNccl::async_error(ncclComm_t comm, ncclResult_t* error) {
  if (error == nullptr) return refuse(ncclInvalidArgument, "ncclCommGetAsyncError: asyncError is NULL");
  bool finalizing;
  {
    std::lock_guard lock(mutex_);
    finalizing = comm->member().finalized && comm->member().pending > 0;
  }
  if (finalizing) drive(comm);
  std::lock_guard lock(mutex_);
  *error = ncclInProgress;
  if (!comm->team->complete()) return ncclSuccess;
  Member& member = comm->member();
  if (comm->team->init_error != ncclSuccess) {
    *error = comm->team->init_error;
  } else if (member.error != ncclSuccess) {
    *error = member.error;
  } else if (member.unread_progress > 0) {
    --member.unread_progress;
  } else if (!member.finalized || (member.pending == 0 && !comm->is_in_graphs())) {
    *error = ncclSuccess;
  }
  return ncclSuccess;
}

}  // namespace emu::fakes
