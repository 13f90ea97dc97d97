#include "comm/relay.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/thread.h"

namespace athanor {
namespace {

// A thread that should check at least once a second counts as suspended after this time.
constexpr std::chrono::seconds kLate{2};
// Heartbeats are passed up in batches: a thousand ranks may beat at every short step.
constexpr double kSecondsBetweenBeatsUp = 0.2;

}  // namespace

Clock::duration held_up(Deadline* looked) {
  const Deadline before = std::exchange(*looked, Clock::now());
  return std::max(Clock::duration::zero(), *looked - before - kLate);
}

Frame bundle(const std::vector<RankFrame>& frames) {
  Frame all{'m', ""};
  put_u64(all.payload, frames.size());
  for (const RankFrame& f : frames) {
    put_u64(all.payload, uint64_t(f.rank));
    put_u64(all.payload, uint64_t(uint8_t(f.frame.kind)));
    put_text(all.payload, f.frame.payload);
  }
  return all;
}

std::vector<RankFrame> unbundle(const Frame& all, const RankTree& tree, int sender) {
  FieldReader fields(all.payload);
  std::vector<RankFrame> frames;
  for (uint64_t left = fields.u64(); left > 0; --left) {
    const uint64_t rank = fields.u64();
    const char kind = char(fields.u64());
    if (rank >= uint64_t(tree.ranks) || !tree.is_below(int(rank), sender))
      throw Error(cat("it sent a message for rank ", rank, ", which is not below it in the tree"));
    frames.push_back({int(rank), {kind, fields.text()}});
  }
  return frames;
}

Relay::Relay(Fd listener, const std::string& secret, int rank, RankTree tree, double silence,
             std::function<void(Frame)> up)
    : door_(std::move(listener), secret, Purpose::rendezvous),
      port_(door_.port()),
      rank_(rank),
      tree_(tree),
      silence_(silence),
      up_(std::move(up)),
      children_(size_t(tree.end_child(rank) - tree.first_child(rank))),
      now_(Clock::now()),
      next_beat_(now_),
      next_beats_up_(now_),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(wake_, "eventfd");
  thread_ = start_thread("the ranks below this one", [this] { serve(); });
}

void Relay::down(Frame frame) {
  {
    const std::lock_guard lock(mutex_);
    outbox_.push_back(std::move(frame));
  }
  eventfd_write(wake_.get(), 1);
}

void Relay::leave() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    if (!stop_) stop_ = after(kSecondsToLeave);
  }
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

void Relay::disappear() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = Deadline::min();
  }
  leave();
  children_.clear();
}

bool Relay::finished() const {
  if (!stop_) return false;
  if (Clock::now() > *stop_) return true;
  return std::none_of(children_.begin(), children_.end(), [](const Child& c) { return c.channel.has_value(); });
}

void Relay::serve() {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (outbox_.empty() && finished()) return;
    }
    try {
      turn();
    } catch (const std::exception& e) {
      std::string why;
      put_text(why, cat("relaying messages between ranks failed: ", e.what()));
      return up_({'f', why});
    }
  }
}

void Relay::turn() {
  std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}};
  door_.add_to(fds);
  for (const Child& c : children_)
    if (c.channel) fds.push_back(c.channel->poll_entry());
  const Deadline next = beats_.empty() ? next_beat_ : std::min(next_beat_, next_beats_up_);
  poll(fds.data(), nfds_t(fds.size()),
       door_.is_idle() ? milliseconds_left(next) : std::min(100, milliseconds_left(next)));
  eventfd_t value = 0;
  eventfd_read(wake_.get(), &value);
  const Clock::duration late = held_up(&now_);
  for (Child& c : children_) c.beat += late;
  for (Guest& guest : door_.admit()) join(std::move(guest));
  for (int r = first(); r < tree_.end_child(rank_); ++r)
    if (child(r).channel) read(r);
  for (int r = first(); r < tree_.end_child(rank_); ++r)
    if (child(r).channel && now_ - child(r).beat > std::chrono::duration<double>(silence_)) lose(r, 's');
  pass_on();
  tell();
}

// Sends the frames from above, and a heartbeat, to the ranks below.
void Relay::tell() {
  std::vector<Frame> frames;
  {
    const std::lock_guard lock(mutex_);
    frames.swap(outbox_);
  }
  for (const Frame& f : frames)
    if (f.kind == 'a' && !abort_) abort_ = f;
  if (now_ >= next_beat_) {
    next_beat_ = after(std::min(1.0, silence_ / 8));
    frames.push_back({'b', ""});
  }
  for (Child& c : children_) {
    if (!c.channel || frames.empty()) continue;
    for (const Frame& f : frames) c.channel->write(f);
    c.channel->advance();
  }
}

void Relay::join(Guest guest) {
  const bool mine = guest.world == tree_.ranks && guest.rank > rank_ && guest.rank < tree_.ranks &&
                    tree_.parent(guest.rank) == rank_ && !child(guest.rank).came;
  if (!mine) return;  // rank 0 sends each rank to its own parent, and this rank is not this guest's
  Child& c = child(guest.rank);
  c.channel.emplace(std::move(guest.fd), std::move(guest.session));
  c.came = true;
  c.beat = Clock::now();
  if (abort_) c.channel->write(*abort_);
  said_.push_back({guest.rank, {'j', ""}});
  if (std::all_of(children_.begin(), children_.end(), [](const Child& other) { return other.came; })) door_.close();
}

void Relay::read(int rank) {
  Child& c = child(rank);
  const bool open = c.channel->advance();
  try {
    while (c.channel)
      if (auto frame = c.channel->take())
        take(rank, std::move(*frame));
      else
        break;
  } catch (const Error& e) {
    return lose(rank, 't', e.what());
  }
  if (!open && c.channel) lose(rank, 'l');
}

void Relay::take(int rank, Frame frame) {
  child(rank).beat = Clock::now();
  std::vector<RankFrame> frames;
  const bool leaves = frame.kind == 'q';
  if (frame.kind == 'm')
    frames = unbundle(frame, tree_, rank);
  else
    frames.push_back({rank, std::move(frame)});
  for (RankFrame& f : frames) {
    if (f.frame.kind == 'b')
      beats_[f.rank] = std::move(f.frame.payload);
    else
      said_.push_back(std::move(f));
  }
  if (leaves) child(rank).channel.reset();
}

void Relay::lose(int rank, char kind, const std::string& why) {
  child(rank).channel->advance();
  child(rank).channel.reset();
  said_.push_back({rank, {kind, why}});
}

void Relay::pass_on() {
  if (said_.empty() && (beats_.empty() || now_ < next_beats_up_)) return;
  std::vector<RankFrame> frames;
  for (auto& [rank, payload] : beats_) frames.push_back({rank, {'b', std::move(payload)}});
  for (RankFrame& f : said_) frames.push_back(std::move(f));
  beats_.clear(), said_.clear();
  next_beats_up_ = after(kSecondsBetweenBeatsUp);
  up_(bundle(frames));
}

}  // namespace athanor
