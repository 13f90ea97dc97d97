#include "comm/rendezvous.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/communicator.h"
#include "comm/rendezvous_server.h"

namespace athanor {
namespace {

constexpr int kOtherFiles = 16;  // opened besides connections: events, the configuration, a shard, a checkpoint's file
constexpr int kPorts = 8;        // rank 0 and the ranks that look for it try this many ports
constexpr double kSecondsToTell = 2;
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

}  // namespace

Rendezvous::Rendezvous(RendezvousOptions options) : options_(std::move(options)) {
  require_file_descriptors(kOtherFiles + (rank() == 0 ? size() : 1),
                           cat("rendezvous: connections of rank ", rank(), " of ", size()));
  wake_ = new_event(), failed_ = new_event();
  CHECK(wake_ && failed_, "eventfd");
  if (rank() == 0) {
    address_ = listening_address(options_.ranks.host);
    secret_ = options_.key().secret;
    server_ = std::make_unique<RendezvousServer>(take_port(options_.ranks, address_), secret_, size(),
                                                 ServerTimeouts{options_.timeout, options_.timeouts.silence});
    if (options_.listening) options_.listening(server_->port());
  }
  join();
  monitor_ = start_thread("the connection to rank 0", [this] { monitor(); });
  try {
    barrier("everybody is here");
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    eventfd_write(wake_.get(), 1);
    monitor_.join();
    throw;
  }
}

void Rendezvous::join() {
  const Deadline deadline = after(options_.timeout);
  const RankInfo& me = options_.ranks;
  std::string why, told;  // told: reported by another rank, more specific than a later missing answer
  for (;;) {
    const JobKey key = server_ ? JobKey{secret_, server_->port()} : options_.key();
    if (key.secret.empty()) why = "rank 0 has not made the secret of the job yet";
    // A stranger on the first port gives another reason than no answer on the last.
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
        channel_ = std::make_unique<Channel>(std::move(e.fd), e.session);
        return;
      }
      if (reason.empty()) reason = e.why;
      const std::string said = cat("port ", to.port, ": ", e.why);
      if (!e.refused || said == told) continue;
      told = said;
      log::warn("rendezvous: rank 0 at ", me.host, " ", told, "; trying on for ", options_.timeout, " s");
    }
    if (!reason.empty()) why = reason;
    if (Clock::now() > deadline)
      throw Error(cat("rendezvous: rank ", me.rank, " of ", me.world, " could not join rank 0 at ", me.host, " port ",
                      key.port ? key.port : me.port, " within ", options_.timeout, " s: ", told.empty() ? why : told),
                  Exit::peer_lost);
    std::this_thread::sleep_for(kPause);
  }
}

Rendezvous::~Rendezvous() {
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
      if (!open)
        set_failure(
            cat("rank 0 (", options_.ranks.host, ") is gone: its process ended or was killed, or its machine is lost"));
      // Uses the time before reading: a process that was itself suspended still finds what arrived meanwhile.
      if (looked_ - heard_ > std::chrono::duration<double>(options_.timeouts.silence))
        set_failure(cat("rank 0 (", options_.ranks.host, ") gave no sign of life for ", options_.timeouts.silence,
                        " s: stopped, or its machine or the network to it is lost"));
    } catch (const Error& e) {
      open = false;
      set_failure(cat("the connection to rank 0 (", options_.ranks.host, ") cannot be trusted: ", e.what()));
    }
  }
  // The last messages must still be sent.
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

void Rendezvous::handle(const Frame& frame) {
  heard_ = Clock::now();
  if (frame.kind == 'a') return set_failure(frame.payload);
  if (frame.kind == 'b') return;
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

void Rendezvous::doing(Activity activity, int64_t step) {
  const std::lock_guard lock(mutex_);
  const Deadline now = Clock::now();
  if (activity_ == Activity::step) step_seconds_.push_back(std::chrono::duration<double>(now - since_).count());
  if (step_seconds_.size() > kStepsRemembered) step_seconds_.pop_front();
  activity_ = activity, step_ = step, since_ = now;
  in_step_ = 0;
  moved_ = true;
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

double Rendezvous::beat_seconds() { return std::clamp(std::min(options_.timeouts.silence, limit()) / 8, 0.02, 1.0); }

double Rendezvous::limit() {
  const std::lock_guard lock(mutex_);
  const Timeouts& timeouts = options_.timeouts;
  if (activity_ == Activity::evaluation) return timeouts.evaluation;
  if (activity_ == Activity::saving) return timeouts.saving;
  if (activity_ == Activity::step && timeouts.step > 0) return timeouts.step;
  if (activity_ == Activity::startup || step_seconds_.size() < kStepsToKnow) return timeouts.startup;
  std::vector<double> sorted(step_seconds_.begin(), step_seconds_.end());
  std::sort(sorted.begin(), sorted.end());
  return std::max(kLeastStepLimit, 3 * sorted[sorted.size() * 99 / 100]);
}

std::string Rendezvous::at() const {
  const char* what[] = {"start-up", "step ", "evaluation after step ", "saving step "};
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
  if (mine.code() == Exit::peer_lost) return mine;
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
    changed_.wait_for(lock, std::chrono::duration<double>(options_.timeouts.silence),
                      [&] { return !failure_.empty(); });
  }
  throw_if_failed();
  throw Error(with_place(otherwise), Exit::peer_lost);
}

}  // namespace athanor
