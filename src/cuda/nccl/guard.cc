#include "cuda/nccl/guard.h"

#include <chrono>
#include <exception>
#include <utility>

#include "base/thread.h"
#include "cuda/check.h"

namespace athanor::cuda {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLook = std::chrono::milliseconds(50);
constexpr double kSecondsToClose = 10;  // limit for ncclCommFinalize()

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

constexpr Stream kStreams[] = {Stream::compute, Stream::comm, Stream::copy, Stream::copy_back, Stream::workers};

}  // namespace

NcclGuard::NcclGuard(const NcclTable& nccl, CudaDevice& device, NcclOptions options)
    : nccl_(nccl), device_(device), options_(std::move(options)), marks_(device), names_{"no collective"} {
  CUDA_CHECK(cudaGetDevice(&index_));
  moved_ = Clock::now();
  thread_ = start_thread("the watchdog of NCCL", [this] { watch(); });
  device_.set_wait_check([this] {
    const std::lock_guard lock(mutex_);
    throw_if_ended();
  });
  if (nccl_.ncclMemAlloc && nccl_.ncclMemFree && nccl_.ncclCommRegister && nccl_.ncclCommDeregister)
    device_.set_memory_source({.allocate = [this](size_t bytes) { return allocate(bytes); },
                               .released = [this](void* memory) { released(memory); },
                               .free = [free = nccl_.ncclMemFree](void* memory) { (void)free(memory); }});
}

NcclGuard::~NcclGuard() {
  device_.set_wait_check(nullptr);
  device_.set_memory_source({});
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

ncclComm_t NcclGuard::open(Communicator& control) {
  ncclUniqueId id{};
  if (control.rank() == 0) {
    const std::lock_guard lock(mutex_);
    throw_if_ended();
    if (const ncclResult_t result = nccl_.ncclGetUniqueId(&id); result != ncclSuccess) {
      fail(cat(options_.place(), ": NCCL cannot open a port: ", words(result, nullptr)));
      throw_if_ended();
    }
  }
  control.broadcast({&id, DType::u8, {int64_t(sizeof id)}}, 0, Stream::compute);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // non-blocking, so that waiting for a missing peer can be aborted
  std::unique_lock lock(mutex_);
  throw_if_ended();
  ncclComm_t comm = nullptr;
  const std::string what = cat("making a communicator of ", control.size(), " ranks");
  const ncclResult_t result = nccl_.ncclCommInitRankConfig(&comm, control.size(), id, control.rank(), &config);
  if (comm) open_.insert(comm);
  settle(lock, comm, result, what);
  for (const auto& [memory, bytes] : memory_) enroll(comm, memory, bytes);
  return comm;
}

// NCCL rounds sizes up to what its hardware can share, up to 512 MiB; if that does not fit, cudaMalloc() may still
// work.
void* NcclGuard::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  void* memory = nullptr;
  if (!ended_.empty() || nccl_.ncclMemAlloc(&memory, bytes) != ncclSuccess) {
    (void)cudaGetLastError();  // clears the error, so that the next launch does not report it
    return nullptr;
  }
  memory_[memory] = bytes;
  for (ncclComm_t comm : open_) enroll(comm, memory, bytes);
  return memory;
}

void NcclGuard::released(void* memory) {
  const std::lock_guard lock(mutex_);
  for (ncclComm_t comm : open_) withdraw(comm, memory);
  memory_.erase(memory);
}

// Registers memory. A failure is no error: NCCL then copies through buffers of its own.
void NcclGuard::enroll(ncclComm_t comm, void* memory, size_t bytes) {
  void* handle = nullptr;
  if (nccl_.ncclCommRegister(comm, memory, bytes, &handle) == ncclSuccess && handle)
    registrations_[{comm, memory}] = handle;
}

void NcclGuard::withdraw(ncclComm_t comm, void* memory) {
  const auto found = registrations_.find({comm, memory});
  if (found == registrations_.end()) return;
  (void)nccl_.ncclCommDeregister(comm, found->second);
  registrations_.erase(found);
}

void NcclGuard::close(ncclComm_t comm) {
  std::unique_lock lock(mutex_);
  if (!ended_.empty()) return;  // watch() aborts the communicator
  for (const auto& [memory, bytes] : memory_) withdraw(comm, memory);
  if (std::uncaught_exceptions() > 0 || !finalize(lock, comm)) {
    if (ended_.empty()) end("NCCL: the run aborted its communicators");
    return;
  }
  open_.erase(comm);
  last_stream_.erase(comm);
  (void)nccl_.ncclCommDestroy(comm);
}

bool NcclGuard::finalize(std::unique_lock<std::mutex>& lock, ncclComm_t comm) {
  ncclResult_t result = nccl_.ncclCommFinalize(comm);
  for (const auto begin = Clock::now(); result == ncclInProgress && seconds(Clock::now() - begin) < kSecondsToClose;) {
    changed_.wait_for(lock, std::chrono::milliseconds(1));
    if (!ended_.empty()) return false;
    if (nccl_.ncclCommGetAsyncError(comm, &result) != ncclSuccess) result = ncclInternalError;
  }
  return result == ncclSuccess;
}

// Waits for a non-blocking call to complete. [NCCL user guide, "Fault Tolerance"]
void NcclGuard::settle(std::unique_lock<std::mutex>& lock, ncclComm_t comm, ncclResult_t result,
                       const std::string& what) {
  const auto begin = Clock::now();
  call_ = &what;
  while (result == ncclInProgress && comm && ended_.empty()) {
    // measured before the query, so that a pause in between does not count
    const double waited = seconds(Clock::now() - begin);
    if (nccl_.ncclCommGetAsyncError(comm, &result) != ncclSuccess) result = ncclInternalError;
    if (result != ncclInProgress) break;
    if (const double limit = options_.timeout(); waited > limit) {
      fail(cat(options_.place(), ": ", what, " has not ended for ", limit,
               " s; some rank did not take part, or NCCL cannot reach it (NCCL_DEBUG=INFO tells more)"));
      break;
    }
    lock.unlock();
    if (waited < 1e-3) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    lock.lock();
  }
  call_ = nullptr;
  if (result != ncclSuccess && ended_.empty()) fail(cat(options_.place(), ": ", what, ": ", words(result, comm)));
  throw_if_ended();
}

void NcclGuard::throw_if_ended() const {
  if (!ended_.empty()) throw Error(ended_, Exit::peer_lost);
}

void NcclGuard::fail(const std::string& why) {
  if (end_as_told()) return;  // this rank's error may be a consequence of that failure
  options_.fail(why);
  end(why);
}

bool NcclGuard::end_as_told() {
  const std::string why = options_.failure();
  if (!why.empty()) end(cat(why, "; ", options_.place(), ", was in ", present()));
  return !why.empty();
}

void NcclGuard::end(const std::string& why) {
  ended_ = why;
  changed_.notify_all();
}

// ncclCommAbort() stops the communicator's kernels at once but returns only when no graph contains them any more, and
// the run destroys the graphs. Therefore it runs on the guard's thread and without the lock. All aborts are in one
// group, which stops all communicators before freeing any, since freeing waits for the device. [NCCL, ncclCommAbort()
// and commDestroySync()]
void NcclGuard::abort_all(std::unique_lock<std::mutex>& lock) {
  const std::set<ncclComm_t> comms = std::exchange(open_, {});
  if (comms.empty()) return;
  lock.unlock();
  (void)nccl_.ncclGroupStart();
  for (ncclComm_t comm : comms) (void)nccl_.ncclCommAbort(comm);
  (void)nccl_.ncclGroupEnd();
  lock.lock();
}

uint32_t NcclGuard::enter(const std::string& what) {
  const std::lock_guard lock(mutex_);
  throw_if_ended();
  const auto [entry, fresh] = numbers_.try_emplace(what, uint32_t(names_.size()));
  if (fresh) names_.push_back(what);
  return entry->second;
}

// Keeps the collectives of one communicator in the order in which they are queued, whichever streams they use, also
// within a graph. A stream that is being captured needs no wait for one that is not: the start of the graph already
// orders them.
void NcclGuard::wait_for_last_stream(ncclComm_t comm, Stream stream) {
  Stream last = stream;
  {
    const std::lock_guard lock(mutex_);
    last = std::exchange(last_stream_.try_emplace(comm, stream).first->second, stream);
  }
  const auto captured = [&](Stream which) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    CUDA_CHECK(cudaStreamIsCapturing(device_.stream(which), &status));
    return status != cudaStreamCaptureStatusNone;
  };
  if (last != stream && captured(last) == captured(stream)) device_.wait(stream, *device_.record(last));
}

std::string NcclGuard::present() const {
  for (const Stream stream : kStreams) {
    const CollectiveMarks::State state = marks_.read(stream);
    if (state.inside() && state.what < names_.size())
      return cat(names_[state.what], ", collective ", state.collectives(), " of its stream");
  }
  return call_ ? *call_ : "no collective";
}

std::string NcclGuard::words(ncclResult_t result, ncclComm_t comm) const {
  const char* last = nccl_.ncclGetLastError(comm);
  return cat("NCCL: ", nccl_.ncclGetErrorString(result), last && *last ? cat(" (", last, ")") : "");
}

void NcclGuard::watch() {
  (void)cudaSetDevice(index_);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (ended_.empty() && !leaving_) look();
    if (!ended_.empty()) abort_all(lock);
    if (leaving_) return;
    changed_.wait_for(lock, kLook);
  }
}

void NcclGuard::look() {
  const auto now = Clock::now();  // measured before the queries, so that a pause in between does not count
  uint64_t passed = 0, begun = 0;
  bool inside = false;
  for (const Stream stream : kStreams) {
    const CollectiveMarks::State state = marks_.read(stream);
    passed += state.passed, begun += state.collectives();
    inside = inside || state.inside();
  }
  options_.progress(begun, inside || call_);
  if (std::exchange(seen_, passed) != passed || !inside) moved_ = Clock::now();
  if (end_as_told()) return;
  for (ncclComm_t comm : open_) {
    ncclResult_t result = ncclSuccess;
    if (nccl_.ncclCommGetAsyncError(comm, &result) != ncclSuccess) result = ncclInternalError;
    if (result == ncclSuccess || result == ncclInProgress) continue;
    return fail(cat(options_.place(), ", in ", present(), ": ", words(result, comm)));
  }
  if (const double limit = options_.timeout(); seconds(now - moved_) > limit)
    fail(cat(options_.place(), ": ", present(), " has not ended for ", limit,
             " s; raise timeouts.connect if this is its usual pace"));
}

}  // namespace athanor::cuda
