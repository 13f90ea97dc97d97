#include "comm/rendezvous.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/process_mark.h"
#include "base/thread.h"
#include "comm/communicator.h"
#include "comm/relay.h"
#include "comm/rendezvous_server.h"

namespace athanor {
namespace {

// descriptors besides connections: events, the configuration, a shard, a checkpoint's file
constexpr int kOtherFiles = 16;
constexpr int kPorts = 8;  // rank 0 and the ranks that look for it try this many ports
constexpr double kSecondsToTell = 2;
constexpr double kSecondsToReach = 60;  // limit to reach the parent, a thread of which always answers
constexpr size_t kStepsRemembered = 256, kStepsToKnow = 8;
constexpr double kSecondsBetweenBeats = 0.05;  // minimum, however often this rank's activity changes
constexpr auto kPause = std::chrono::milliseconds(50);

Fd new_event() { return Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

Fd take_port(const RankInfo& ranks, const std::string& address) {
  if (ranks.listener >= 0) return inherited_listener(ranks.listener, ranks.port);
  for (int p = ranks.port; p < ranks.port + kPorts && p < 65536; ++p)
    if (auto fd = listen_on(address, p)) return std::move(*fd);
  throw Error(cat("rendezvous: ports ", ranks.port, " to ", ranks.port + kPorts - 1,
                  " are all taken on this machine; set MASTER_PORT to a free one"));
}

// Logs once why a rank has not reached rank 0 yet, even while a name look-up blocks the rank.
class LateNotice {
 public:
  LateNotice(std::string prefix, std::string suffix, double seconds)
      : prefix_(std::move(prefix)), suffix_(std::move(suffix)) {
    watch_ = start_thread<std::jthread>("the notice of a late rank 0", [this, seconds](const std::stop_token& over) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, over, std::chrono::duration<double>(seconds), [] { return false; });
      if (!over.stop_requested()) log::warn(prefix_, why_, suffix_);
    });
  }
  void set_reason(const std::string& why) {
    const std::lock_guard lock(mutex_);
    why_ = why;
  }

 private:
  std::string prefix_, suffix_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::string why_ = "neither the DNS look-up of its name nor its port has answered";
  std::jthread watch_;  // declared last, since its thread uses the other members
};

std::string why_silent(const std::string& who, double seconds) {
  return cat(who, " gave no sign of life for ", seconds, " s: stopped, or its machine or the network to it is lost");
}

std::string why_no_key(const std::string& awaited_file) {
  return cat("rank 0 has not written the secret of the job to ", awaited_file,
             " yet, or this rank cannot see that file: choose a `save` folder that all machines share, or set "
             "ATHANOR_SECRET_FILE");
}

}  // namespace

Rendezvous::Rendezvous(RendezvousOptions options) : options_(std::move(options)) {
  const int below = tree().end_child(rank()) - tree().first_child(rank());
  require_file_descriptors(kOtherFiles + (rank() == 0 ? size() : 1 + below),
                           cat("rendezvous: connections of rank ", rank(), " of ", size()));
  wake_ = new_event(), failed_ = new_event();
  CHECK(wake_ && failed_, "eventfd");
  if (rank() == 0) {
    address_ = listening_address(options_.ranks.host);
    secret_ = options_.key().secret;
    server_ = std::make_unique<RendezvousServer>(take_port(options_.ranks, address_), secret_, tree(),
                                                 ServerTimeouts{options_.timeout, options_.timeouts.silence});
    if (options_.listening) options_.listening(server_->port());
  }
  try {
    enter_tree(join());
    monitor_ = start_thread(cat("the connection to ", above_), [this] { monitor(); });
    barrier("everybody is here");
  } catch (const std::exception& e) {
    if (channel_ && !monitor_.joinable()) {  // already admitted by rank 0: reports the failure to the others
      std::string why;
      put_text(why, e.what());
      channel_->write({'f', why});
      channel_->advance();
    }
    if (relay_) {
      relay_->down({'a', e.what()});
      relay_->leave();
    }
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    eventfd_write(wake_.get(), 1);
    if (monitor_.joinable()) monitor_.join();
    throw;
  }
}

Deadline Rendezvous::join() {
  const Deadline deadline = after(options_.timeout);
  const RankInfo& me = options_.ranks;
  LateNotice late(cat("rendezvous: rank ", me.rank, " of ", me.world, " has not reached rank 0 at ", me.host, ": "),
                  cat("; retrying for ", options_.timeout, " s"), options_.notice_seconds);
  std::string why, refusal;  // refusal: reason given by another rank; says more than a later missing answer
  for (;;) {
    const JobKey key = server_ ? JobKey{secret_, server_->port()} : options_.key();
    if (key.secret.empty()) why = why_no_key(options_.awaited_file);
    // The first port's reason is kept: a stranger there says more than no answer on the last port.
    std::string reason;
    for (int k = 0; k < (key.secret.empty() ? 0 : key.port ? 1 : kPorts); ++k) {
      const std::string here = address_.empty() ? "127.0.0.1" : address_;
      const Endpoint to{server_ ? here : me.host, key.port ? key.port : me.port + k};
      Entrance e =
          enter(to, key.secret, {Purpose::rendezvous, me.rank, me.world}, of_attempt(deadline, options_.timeout));
      if (e.fd) {
        if (!server_) address_ = local_address(e.fd);
        server_address_ = remote_address(e.fd);
        secret_ = key.secret;
        channel_ = std::make_unique<Channel>(std::move(e.fd), std::move(e.session));
        above_ = cat("rank 0 (", me.host, ")");
        return deadline;
      }
      if (reason.empty()) reason = e.why;
      const std::string said = cat("port ", to.port, ": ", e.why);
      if (!e.refused || said == refusal) continue;
      refusal = said;
      log::warn("rendezvous: rank 0 at ", me.host, " ", refusal, "; retrying for ", options_.timeout, " s");
    }
    if (!reason.empty()) why = reason;
    late.set_reason(why);
    if (Clock::now() > deadline)
      throw Error(
          cat("rendezvous: rank ", me.rank, " of ", me.world, " could not join rank 0 at ", me.host, " port ",
              key.port ? key.port : me.port, " within ", options_.timeout, " s: ", refusal.empty() ? why : refusal),
          Exit::peer_lost);
    std::this_thread::sleep_for(kPause);
  }
}

// Listens for the ranks below, unless this rank is a leaf, and connects to this rank's parent.
void Rendezvous::enter_tree(Deadline deadline) {
  const RankTree all = tree();
  if (rank() == 0 || all.is_flat()) return;
  std::string here;
  if (!all.is_leaf(rank())) {
    const std::string address = options_.interfaces.empty() ? address_ : interface_address(options_.interfaces);
    auto listener = listen_on(address, 0);
    if (!listener) throw Error("rendezvous: this machine has no free port");
    relay_ = std::make_unique<Relay>(std::move(*listener), secret_, rank(), all, options_.timeouts.silence,
                                     [this](Frame frame) { post(std::move(frame)); });
    here = cat('[', address, "]:", relay_->port());
  }
  std::string payload;
  put_text(payload, here);
  put_text(payload, host_name());
  channel_->write({'h', payload});
  if (all.parent(rank()) != 0) go_to_parent(deadline);
}

// Rank 0 says where the parent is. The connection to rank 0 is kept until this rank is connected to its parent, so that
// at any time some rank would notice its loss. If the parent does not come, rank 0 reports it.
void Rendezvous::go_to_parent(Deadline deadline) {
  const int parent = tree().parent(rank());
  std::string to, host;
  deadline += duration_of(options_.timeouts.silence);
  heard_ = looked_ = Clock::now();
  for (std::string why = "rank 0 has not sent its address yet";;) {
    pollfd entry = channel_->poll_entry();
    poll(&entry, 1, to.empty() ? std::min(100, milliseconds_left(deadline)) : int(kPause.count()));
    heard_ += held_up(&looked_);
    const bool open = channel_->advance();
    while (const auto frame = channel_->take()) {
      heard_ = Clock::now();
      if (frame->kind == 'a') throw Error(frame->payload, Exit::peer_lost);
      if (frame->kind != 'p') continue;
      FieldReader fields(frame->payload);
      to = fields.text(), host = fields.text();
      deadline = after(std::min(kSecondsToReach, options_.timeout / 2));
    }
    if (!open)
      throw Error(cat(above_, " is gone: its process ended or was killed, or its machine is lost"), Exit::peer_lost);
    if (silent()) throw Error(why_silent(above_, options_.timeouts.silence), Exit::peer_lost);
    if (!to.empty()) {
      Entrance e = enter(parse_endpoint(to), secret_, {Purpose::rendezvous, rank(), size()},
                         of_attempt(deadline, options_.timeout));
      if (e.fd) {
        channel_->write({'d', ""});
        channel_->advance();
        channel_ = std::make_unique<Channel>(std::move(e.fd), std::move(e.session));
        above_ = cat("rank ", parent, " (", host, ")");
        return;
      }
      why = e.why;
    }
    if (Clock::now() < deadline) continue;
    throw Error(cat("rendezvous: rank ", rank(), " joined rank 0, but cannot reach rank ", parent, " (", host,
                    "), its parent in the tree, at ", to, ": ", why, "; a firewall may block its ports"),
                Exit::peer_lost);
  }
}

Rendezvous::~Rendezvous() {
  if (relay_) failure().empty() && std::uncaught_exceptions() > 0 ? relay_->disappear() : relay_->leave();
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty() && std::uncaught_exceptions() == 0) outbox_.push_back({'q', ""});
    leaving_ = true;
  }
  eventfd_write(wake_.get(), 1);
  monitor_.join();
  channel_.reset();
  server_.reset();
}

void Rendezvous::post(Frame frame) {
  {
    const std::lock_guard lock(mutex_);
    outbox_.push_back(std::move(frame));
  }
  eventfd_write(wake_.get(), 1);
}

void Rendezvous::beat() {
  moved_ = false;
  std::string payload;
  put_u64(payload, entered_ + device_entered_);
  put_u64(payload, waiting_ > 0 || device_waiting_ ? 1 : 0);
  put_u64(payload, uint64_t(limit() * 1000));
  put_text(payload, host_name());
  {
    const std::lock_guard lock(mutex_);
    put_text(payload, place());
  }
  channel_->write({'b', payload});
}

void Rendezvous::send_outbox() {
  std::vector<Frame> frames;
  {
    const std::lock_guard lock(mutex_);
    frames.swap(outbox_);
  }
  for (const Frame& f : frames) channel_->write(f);
}

// Transfers bytes for a while; false once the connection has closed.
bool Rendezvous::pump(int timeout_ms) {
  send_outbox();
  pollfd fds[] = {{wake_.get(), POLLIN, 0}, channel_->poll_entry()};
  poll(fds, 2, timeout_ms);
  eventfd_t value = 0;
  eventfd_read(wake_.get(), &value);
  send_outbox();
  heard_ += held_up(&looked_);
  const bool open = channel_->advance();
  while (const auto frame = channel_->take()) handle(*frame);
  return open;
}

void Rendezvous::monitor() {
  std::optional<Deadline> last;
  Deadline next_beat = heard_ = looked_ = Clock::now(), soonest = next_beat, turn = next_beat;
  const auto due = [&] { return moved_ ? std::min(next_beat, soonest) : next_beat; };
  bool open = true;
  for (;;) {
    if (const auto late = held_up(&turn); last) *last += late;
    {
      const std::lock_guard lock(mutex_);
      if (leaving_) break;
      if (!failure_.empty() && !last) last = after(options_.grace_seconds);
    }
    if (last && Clock::now() > *last && options_.last_resort) options_.last_resort(failure_);
    if (!open) {
      std::this_thread::sleep_for(kPause);
      continue;
    }
    try {
      if (Clock::now() >= due()) {
        beat();
        soonest = after(kSecondsBetweenBeats), next_beat = after(beat_seconds());
      }
      open = pump(milliseconds_left(due()));
      if (!open) set_failure(cat(above_, " is gone: its process ended or was killed, or its machine is lost"));
      // Compares with the time before reading: a process that was itself suspended still finds messages that arrived
      // meanwhile.
      if (silent()) set_failure(why_silent(above_, options_.timeouts.silence));
    } catch (const Error& e) {
      open = false;
      set_failure(cat("the connection to ", above_, " cannot be trusted: ", e.what()));
    }
  }
  // Sends the last messages.
  const Deadline until = after(kSecondsToTell);
  while (open) {
    try {
      open = pump(0);
    } catch (const Error&) {
      open = false;
    }
    if (channel_->flushed() || Clock::now() > until) break;
  }
}

bool Rendezvous::silent() const { return looked_ - heard_ > std::chrono::duration<double>(options_.timeouts.silence); }

void Rendezvous::handle(const Frame& frame) {
  heard_ = Clock::now();
  if (frame.kind == 'a') return set_failure(frame.payload);
  if (frame.kind == 'b') return;
  if (relay_) relay_->down(frame);
  FieldReader fields(frame.payload);
  const std::string name = fields.text();
  std::vector<std::string> values;
  for (int r = 0; r < size(); ++r) values.push_back(fields.text());
  const std::lock_guard lock(mutex_);
  results_[name] = std::move(values);
  changed_.notify_all();
}

void Rendezvous::set_failure(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  failure_ = why;
  if (relay_) relay_->down({'a', why});
  eventfd_write(failed_.get(), 1);
  changed_.notify_all();
}

std::vector<std::string> Rendezvous::exchange(const std::string& name, const std::string& value) {
  const Waiting waiting(*this, "rendezvous");
  std::string payload;
  put_text(payload, name);
  put_text(payload, value);
  post({'e', payload});
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return results_.contains(name) || !failure_.empty(); });
  const auto found = results_.find(name);
  if (found == results_.end()) throw Error(failure_, Exit::peer_lost);
  std::vector<std::string> values = std::move(found->second);
  results_.erase(found);
  return values;
}

// Wakes the thread without holding the mutex: if this training thread is suspended in that call, it must not block the
// heartbeats, which tell other ranks that it makes no progress.
void Rendezvous::doing(Activity activity, int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    const Deadline now = Clock::now();
    if (activity_ == Activity::step) step_seconds_.push_back(std::chrono::duration<double>(now - since_).count());
    if (step_seconds_.size() > kStepsRemembered) step_seconds_.pop_front();
    activity_ = activity, step_ = step, since_ = now;
    in_step_ = 0;
    moved_ = true;
  }
  eventfd_write(wake_.get(), 1);
}

Rendezvous::Waiting::Waiting(Rendezvous& r, const char* collective, bool begins) : r_(r) {
  ++r_.waiting_;
  if (!begins) return;
  ++r_.entered_;
  const std::lock_guard lock(r_.mutex_);
  ++r_.in_step_;
  r_.collective_ = cat(collective, CollectiveSubject::words());
}

double Rendezvous::beat_seconds() {
  const double most = tree().is_flat() ? 1.0 : 0.6;  // compensates for the delay of relays
  return std::clamp(std::min(options_.timeouts.silence, limit()) / 8, 0.02, most);
}

double Rendezvous::limit() {
  const std::lock_guard lock(mutex_);
  const Timeouts& timeouts = options_.timeouts;
  if (activity_ == Activity::evaluation) return timeouts.evaluation;
  if (activity_ == Activity::saving) return timeouts.saving;
  if (activity_ == Activity::step && timeouts.step > 0) return timeouts.step;
  const bool loads = activity_ == Activity::startup || activity_ == Activity::loading;
  if (loads || step_seconds_.size() < kStepsToKnow) return timeouts.startup;
  std::vector<double> sorted(step_seconds_.begin(), step_seconds_.end());
  std::sort(sorted.begin(), sorted.end());
  return std::max(kLeastStepLimit, 3 * sorted[sorted.size() * 99 / 100]);
}

std::string Rendezvous::at() const {
  const char* what[] = {"start-up", "step ", "evaluation after step ", "saving step ", "rollback after step "};
  return activity_ == Activity::startup ? what[0] : cat(what[size_t(activity_)], step_);
}

std::string Rendezvous::place() const {
  if (in_step_ == 0) return at();
  return cat(at(), ", collective ", in_step_, " of it: ", collective_);
}

std::string Rendezvous::where() {
  const std::lock_guard lock(mutex_);
  return cat("rank ", rank(), " (", host_name(), ") at ", at());
}

std::string Rendezvous::with_place(const std::string& failure) {
  const std::lock_guard lock(mutex_);
  return cat(failure, "; rank ", rank(), " (", host_name(), ") was at ", place());
}

void Rendezvous::fail(const std::string& why) {
  std::string payload;
  put_text(payload, why);
  post({'f', payload});
}

Error Rendezvous::first_error(const Error& mine) {
  if (mine.code() == Exit::peer_lost && !failure().empty()) return mine;  // it is that failure
  fail(mine.what());
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::duration<double>(kSecondsToTell), [&] { return !failure_.empty(); });
  const bool first =
      failure_.empty() || (failure_.starts_with(cat("rank ", rank(), " ")) && failure_.ends_with(mine.what()));
  if (first) return mine;
  return Error(cat(failure_, "; then rank ", rank(), " (", host_name(), ") failed: ", mine.what()), Exit::peer_lost);
}

void Rendezvous::throw_if_failed() {
  std::string failure;
  {
    const std::lock_guard lock(mutex_);
    failure = failure_;
  }
  if (!failure.empty()) throw Error(with_place(failure), Exit::peer_lost);
}

std::string Rendezvous::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Rendezvous::throw_lost(const std::string& otherwise) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, duration_of(options_.timeouts.silence), [&] { return !failure_.empty(); });
  }
  throw_if_failed();
  throw Error(with_place(otherwise), Exit::peer_lost);
}

}  // namespace athanor
