#include "comm/rendezvous_server.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/thread.h"

namespace athanor {
namespace {

constexpr int kTurnMs = 100;

}  // namespace

std::string rank_names(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += cat(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  return text;
}

RendezvousServer::RendezvousServer(Fd listener, const std::string& secret, RankTree tree, ServerTimeouts limits)
    : tree_(tree),
      door_(std::move(listener), secret, Purpose::rendezvous),
      port_(door_.port()),
      limits_(limits),
      started_(Clock::now()),
      next_beat_(started_),
      now_(started_),
      members_(size_t(tree.ranks)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = start_thread("the rendezvous of rank 0", [this] { serve(); });
}

RendezvousServer::~RendezvousServer() {
  eventfd_write(wake_.get(), 1);
  thread_.join();
}

bool RendezvousServer::finished() const {
  if (!stop_) return false;
  if (Clock::now() > *stop_) return true;
  return std::none_of(members_.begin(), members_.end(), [](const Member& m) { return m.channel.has_value(); });
}

void RendezvousServer::serve() {
  try {
    while (!finished()) turn();
  } catch (const std::exception& e) {
    fail(cat("the rendezvous of rank 0 failed: ", e.what()));
    for (Member& m : members_)
      if (m.channel) m.channel->advance();
  }
}

void RendezvousServer::turn() {
  std::vector<pollfd> fds = {{wake_.get(), short(stop_ ? 0 : POLLIN), 0}};
  door_.add_to(fds);
  for (const Member& m : members_)
    if (m.channel) fds.push_back(m.channel->poll_entry());
  poll(fds.data(), nfds_t(fds.size()), kTurnMs);
  eventfd_t value = 0;
  if (!stop_ && eventfd_read(wake_.get(), &value) == 0) stop_ = after(kSecondsToLeave);
  const Clock::duration late = held_up(&now_);
  started_ += late;
  for (Member& m : members_) m.beat += late, m.progress += late;
  for (Guest& guest : door_.admit()) join(std::move(guest));
  for (int r = 0; r < int(members_.size()); ++r)
    if (members_[size_t(r)].channel) read(r);
  if (failure_.empty()) find_missing();
  if (failure_.empty()) find_silent();
  if (failure_.empty()) find_hanging();
  if (now_ < next_beat_) return;
  next_beat_ = after(std::min(1.0, limits_.silence / 8));
  for (Member& m : members_)
    if (m.channel) m.channel->write({'b', ""});
}

void RendezvousServer::join(Guest guest) {
  const int world = int(members_.size());
  const auto refuse = [&](const std::string& why) {  // also tells the guest
    fail(why);
    Channel channel(std::move(guest.fd), std::move(guest.session));
    channel.write({'a', why});
    channel.advance();
  };
  if (guest.world != world || guest.rank < 0 || guest.rank >= world)
    return refuse(cat("rank ", guest.rank, " of ", guest.world, " joined a job of ", world,
                      " ranks: the ranks were started with different world sizes"));
  Member& m = members_[size_t(guest.rank)];
  if (m.joined)
    return refuse(
        cat("rank ", guest.rank, " joined twice: two jobs use one rendezvous address; give each its own MASTER_PORT"));
  m.channel.emplace(std::move(guest.fd), std::move(guest.session));
  m.joined = true;
  m.visiting = guest.rank > 0 && tree_.parent(guest.rank) != 0;
  m.in_place = !m.visiting;
  m.progress = m.beat = Clock::now();
  if (!failure_.empty()) m.channel->write({'a', failure_});
  if (std::all_of(members_.begin(), members_.end(), [](const Member& member) { return member.joined; })) door_.close();
}

void RendezvousServer::read(int rank) {
  Member& m = members_[size_t(rank)];
  const bool open = m.channel->advance();
  try {
    while (m.channel)
      if (const auto frame = m.channel->take())
        handle(rank, *frame);
      else
        break;
  } catch (const Error& e) {
    fail(cat("the connection to ", name(rank), " cannot be trusted: ", e.what()));
    m.channel.reset();
  }
  if (!open && m.channel) lose(rank);
}

void RendezvousServer::lose(int rank) {
  Member& m = members_[size_t(rank)];
  m.channel.reset();
  if (!m.quit)
    fail(cat(name(rank), " is gone: its process ended or was killed, or its machine is lost",
             m.place.empty() ? "" : cat("; last seen at ", m.place)));
}

void RendezvousServer::handle(int rank, const Frame& frame) {
  Member& m = members_[size_t(rank)];
  FieldReader fields(frame.payload);
  m.beat = Clock::now();
  if (frame.kind == 'b') {
    const uint64_t entered = fields.u64();
    const bool waiting = fields.u64() != 0;
    if (entered != m.entered || waiting != m.waiting) m.progress = m.beat;
    m.entered = entered, m.waiting = waiting;
    m.limit = double(fields.u64()) * 1e-3;
    m.host = fields.text();
    m.place = fields.text();
  } else if (frame.kind == 'e') {
    collect(rank, fields);
  } else if (frame.kind == 'f') {
    fail(cat(name(rank), " failed: ", fields.text()));
  } else if (frame.kind == 'q') {
    m.quit = true;
    m.channel.reset();
  } else if (frame.kind == 'h') {
    m.endpoint = fields.text();
    m.host = fields.text();
    show_parent(rank);
    for (int below = tree_.first_child(rank); below < tree_.end_child(rank); ++below) show_parent(below);
  } else if (frame.kind == 'd' && m.visiting) {
    m.visiting = false;
    m.channel.reset();
  } else if (frame.kind == 'm') {
    for (const RankFrame& f : unbundle(frame, tree_, rank)) handle_of_relay(f.rank, f.frame);
  } else {
    throw Error(cat("a frame has the unknown kind ", int(frame.kind)));
  }
}

// Handles a frame that a rank sent to its parent, or the parent's observation of it.
void RendezvousServer::handle_of_relay(int rank, const Frame& frame) {
  if (frame.kind == 'j') {
    members_[size_t(rank)].in_place = true;
  } else if (frame.kind == 'l') {
    lose(rank);
  } else if (frame.kind == 's') {
    blame_silent({rank});
  } else if (frame.kind == 't') {
    fail(cat("the connection to ", name(rank), " cannot be trusted: ", frame.payload));
  } else {
    handle(rank, frame);
  }
}

void RendezvousServer::collect(int rank, FieldReader fields) {
  const std::string name = fields.text();
  auto& values = exchanges_[name];
  values.resize(members_.size());
  values[size_t(rank)] = fields.text();
  members_[size_t(rank)].progress = members_[size_t(rank)].beat;
  if (std::any_of(values.begin(), values.end(), [](const auto& v) { return !v; })) return;
  std::string result;
  put_text(result, name);
  for (const auto& value : values) put_text(result, *value);
  for (Member& to : members_)
    if (to.channel) to.channel->write({'r', result});
  exchanges_.erase(name);
}

// Sends a visitor its parent's address, once both have reported their own.
void RendezvousServer::show_parent(int rank) {
  Member& m = members_[size_t(rank)];
  if (rank == 0 || !m.visiting || !m.channel || !m.endpoint) return;
  const Member& above = members_[size_t(tree_.parent(rank))];
  if (!above.endpoint) return;
  std::string where;
  put_text(where, *above.endpoint);
  put_text(where, above.host);
  m.channel->write({'p', where});
}

void RendezvousServer::fail(const std::string& why) {
  if (!failure_.empty()) return;  // later failures are consequences
  failure_ = why;
  for (Member& m : members_)
    if (m.channel) m.channel->write({'a', why});
}

double RendezvousServer::seconds_since(Deadline then) const {
  return std::chrono::duration<double>(now_ - then).count();
}

void RendezvousServer::find_missing() {
  if (seconds_since(started_) < limits_.join) return;
  std::vector<int> missing;
  for (int r = 0; r < int(members_.size()); ++r)
    if (!members_[size_t(r)].joined) missing.push_back(r);
  if (!missing.empty())
    fail(cat(rank_names(missing), " of ", members_.size(), " did not join the rendezvous within ", limits_.join,
             " s: check that they were started and can reach this machine", door_.strangers()));
  std::vector<int> astray;
  for (int r = 0; r < int(members_.size()); ++r)
    if (!members_[size_t(r)].in_place) astray.push_back(r);
  if (!astray.empty())
    fail(cat(rank_names(astray), " of ", members_.size(),
             " joined the rendezvous, but did not connect to their parents in the tree (",
             name(tree_.parent(astray[0])), " is the parent of rank ", astray[0], ") within ", limits_.join,
             " s: check that their machines can reach each other"));
}

std::string RendezvousServer::name(int rank) const {
  const std::string& host = members_[size_t(rank)].host;
  return cat("rank ", rank, host.empty() ? "" : cat(" (", host, ")"));
}

std::string RendezvousServer::names(const std::vector<int>& ranks) const {
  return ranks.size() == 1 ? name(ranks[0]) : rank_names(ranks);
}

void RendezvousServer::find_silent() {
  std::vector<int> silent;
  for (int r = 0; r < int(members_.size()); ++r)
    if (members_[size_t(r)].channel && !members_[size_t(r)].visiting &&
        seconds_since(members_[size_t(r)].beat) > limits_.silence)
      silent.push_back(r);
  if (!silent.empty()) blame_silent(silent);
}

void RendezvousServer::blame_silent(const std::vector<int>& silent) {
  fail(cat(names(silent), " gave no sign of life for ", limits_.silence,
           " s: stopped, or its machine or the network to it is lost; last seen at ",
           members_[size_t(silent[0])].place));
  for (const int r : silent) {  // do not wait for it to leave
    auto& channel = members_[size_t(r)].channel;
    if (channel) channel->advance();
    channel.reset();
  }
}

// When no rank has made progress within its limit, blames those that are not waiting for others.
void RendezvousServer::find_hanging() {
  std::vector<int> busy, behind;
  uint64_t least = ~uint64_t{0};
  double idle = 1e300;
  for (int r = 0; r < int(members_.size()); ++r) {
    const Member& m = members_[size_t(r)];
    if (!m.in_place) return;
    if (m.quit) continue;
    idle = std::min(idle, seconds_since(m.progress));
    if (!m.waiting) busy.push_back(r);
    if (m.entered < least) least = m.entered, behind.clear();
    if (m.entered == least) behind.push_back(r);
  }
  const bool someone_waits =
      std::any_of(members_.begin(), members_.end(), [](const Member& m) { return m.waiting && !m.quit; });
  const std::vector<int>& guilty = busy.empty() ? behind : busy;
  if (guilty.empty() || !someone_waits) return;
  double limit = 0;
  for (const int r : guilty) limit = std::max(limit, members_[size_t(r)].limit);
  if (limit == 0 || idle < limit) return;
  fail(cat(names(guilty), guilty.size() > 1 ? " hang" : " hangs", ": no progress while others waited for ", limit,
           " s, since ", members_[size_t(guilty[0])].place,
           "; raise the timeout of that phase (docs/distributed.md) if it is usually this slow"));
}

}  // namespace athanor
