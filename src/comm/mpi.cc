#include "comm/mpi.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "base/log.h"
#include "base/plugin.h"
#include "comm/mpi_plugin.h"
#include "comm/wire.h"

namespace athanor {
namespace {

constexpr int64_t kMostBytes = 1 << 30;  // per message: MPI counts are int
// Pause between polls of pending messages: none at first, which keeps short waits short; then one that frees the core.
constexpr int kEagerLooks = 1000;
constexpr useconds_t kPauseMicroseconds = 50;

class MpiWire final : public Wire {
 public:
  MpiWire(Rendezvous& rendezvous, const MpiPlugin& mpi) : rendezvous_(rendezvous), mpi_(mpi) {}
  ~MpiWire() override {
    if (std::uncaught_exceptions() == 0) mpi_.finish();  // otherwise peers may be lost, and finish() would block
  }
  void run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) override;

 private:
  // A transfer and its messages: header, then data. The receiver posts no data receive before it has checked the
  // header.
  struct Work {
    Transfer* transfer;
    bool sending, checked = false;
    std::vector<uint64_t> requests = {};
  };
  void post(Work&, void* data, int64_t bytes);
  void post_bytes(Work&);
  bool advance(Work&);
  void require(int code, const char* what) const;
  Rendezvous& rendezvous_;
  const MpiPlugin& mpi_;
  Calls calls_;
};

void MpiWire::require(int code, const char* what) const {
  if (code == 0) return;
  rendezvous_.throw_lost(cat("mpi: ", what, " failed: ", mpi_.error_text(code)));
}

void MpiWire::post(Work& w, void* data, int64_t bytes) {
  uint64_t& request = w.requests.emplace_back();
  require(w.sending ? mpi_.send(data, bytes, w.transfer->peer, &request)
                    : mpi_.receive(data, bytes, w.transfer->peer, &request),
          w.sending ? "MPI_Isend" : "MPI_Irecv");
}

void MpiWire::post_bytes(Work& w) {
  const auto bytes = int64_t(w.transfer->header.bytes);
  for (int64_t at = 0; at < bytes; at += kMostBytes) post(w, w.transfer->data + at, std::min(kMostBytes, bytes - at));
  w.checked = true;
}

// True once all of it has been transferred.
bool MpiWire::advance(Work& w) {
  for (auto r = w.requests.begin(); r != w.requests.end();) {
    int done = 0;
    require(mpi_.test(&*r, &done), "MPI_Test");
    if (!done) return false;
    r = w.requests.erase(r);
  }
  if (w.checked) return true;
  require_same_call(*w.transfer, rendezvous_.rank());
  post_bytes(w);
  return w.requests.empty();
}

void MpiWire::run(std::vector<Transfer>& sends, std::vector<Transfer>& receives) {
  std::vector<Work> works;
  for (Transfer& t : sends) works.push_back({&t, true});
  for (Transfer& t : receives) works.push_back({&t, false});
  if (works.empty()) return;
  const Header& first = works[0].transfer->header;
  const Rendezvous::Waiting waiting(rendezvous_, name_of(Collective(first.op)), calls_.begins(first));
  for (Work& w : works) {
    post(w, w.sending ? &w.transfer->header : &w.transfer->arrived, sizeof(Header));
    if (w.sending) post_bytes(w);
  }
  for (int looks = 0; !works.empty(); ++looks) {
    const bool eager = looks < kEagerLooks, failed = !eager && !rendezvous_.failure().empty();
    std::erase_if(works, [this](Work& w) { return advance(w); });
    if (failed && !works.empty())
      rendezvous_.throw_if_failed();  // after a last poll: a call that all ranks made may be complete
    if (eager) {
      sched_yield();
    } else {
      usleep(kPauseMicroseconds);
    }
  }
}

}  // namespace

std::unique_ptr<Communicator> make_mpi(Rendezvous& rendezvous) {
  std::string why;
  const auto* plugin = static_cast<const MpiPlugin*>(load_plugin("athanor_mpi", "athanor_mpi_plugin", &why));
  if (plugin && plugin->version != kMpiPluginVersion) plugin = nullptr, why = "the plug-in is of another version";
  if (!plugin)
    throw Error(cat("transport: mpi needs the plug-in libathanor_mpi.so, built where MPI is installed: ", why,
                    "; or set transport to tcp, which mpirun and srun start as well"),
                Exit::usage);
  int rank = 0, size = 0;
  const char* description = "";
  if (const int code = plugin->start(&rank, &size, &description))
    throw Error(cat("transport: MPI does not start: ", plugin->error_text(code)), Exit::usage);
  if (rank != rendezvous.rank() || size != rendezvous.size())
    throw Error(
        cat("transport: for MPI this is rank ", rank, " of ", size, ", for the launcher's variables rank ",
            rendezvous.rank(), " of ", rendezvous.size(), "; start the ranks by this MPI's mpirun, or by srun --mpi"),
        Exit::usage);
  if (rank == 0) log::info("tensors travel by ", description);
  return make_direct(std::make_shared<MpiWire>(rendezvous, *plugin), rank, rendezvous.tree());
}

}  // namespace athanor
