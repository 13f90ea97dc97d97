#include "param/state_stream.h"

#include <algorithm>

#include "base/int.h"

namespace athanor {
namespace {

using Range = ParamStore::Range;

std::vector<Range> joined(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> all;
  for (const Range& r : ranges)
    if (!all.empty() && r.begin <= all.back().end)
      all.back().end = std::max(all.back().end, r.end);
    else
      all.push_back(r);
  return all;
}

// Device memory of a stretch, and the copies to it and back.
class Window {
 public:
  Window(ParamStore& params, const StateStretch& s) {
    ParamStore::Unit& unit = *params.units()[s.unit];
    const auto stored_in = [&](const Tensor& buffer, std::vector<Range> ranges) {
      const int64_t first = unit.is_shard(buffer) ? unit.shard.begin : 0;
      for (Range& r : ranges) r = {r.begin - first, r.end - first};
      return joined(std::move(ranges));
    };
    if (unit.masters_home != Mem::device)
      add(unit.masters_here, unit.master, stored_in(unit.master, s.masters), s.writes_masters);
    if (unit.home != Mem::device) {
      if (unit.value) add(unit.values_here, unit.value, stored_in(unit.value, s.values), s.writes_values);
      if (unit.grad) add(unit.grads_here, unit.grad, stored_in(unit.grad, s.grads), false);
    }
    for (size_t i = 0; i < unit.states.size(); ++i) {
      ParamStore::State& state = unit.states[i];
      if (state.home == Mem::device) continue;
      std::vector<Range> stored;
      for (const StateStretch::Part& part : s.states)
        if (part.state == i) stored.push_back(state.stored(part.range));
      add(state.here, state.t, joined(std::move(stored)), s.writes_states);
    }
  }

  void bring(Ctx& c) {
    if (copies_.empty()) return;
    buffer_ = c.alloc("masters and optimizer states", DType::u8, {int64_t(bytes_)});
    in_ = move(c, Stream::copy, c.state_traffic ? &c.state_traffic->in : nullptr);
  }
  void open(Ctx& c) {
    c.wait(std::move(in_));
    for (const Shown& s : shown_) *s.to = {{buffer_.t.at(int64_t(s.at)), s.dtype, {s.count}}, s.first};
  }
  void close() {
    for (const Shown& s : shown_) *s.to = {};
  }
  void take_back(Ctx& c) {
    if (!copies_.empty()) out_ = move(c, Stream::copy_back, c.state_traffic ? &c.state_traffic->out : nullptr);
  }
  // Waits for the copies back to the host, and frees the memory.
  void end(Ctx& c) {
    c.wait(std::move(out_));
    buffer_ = {};
  }

 private:
  struct Shown {
    ParamStore::Brought* to;
    int64_t first, count;  // elements of the home buffer
    size_t at;             // offset in the window, in bytes
    DType dtype;
  };
  struct Copy {
    void* home;
    size_t at, bytes;
    bool back;
  };

  // ranges: elements of `buffer`, ascending.
  void add(ParamStore::Brought& to, const Tensor& buffer, const std::vector<Range>& ranges, bool back) {
    if (ranges.empty()) return;
    const int64_t first = ranges.front().begin, count = ranges.back().end - first;
    shown_.push_back({&to, first, count, bytes_, buffer.dtype});
    for (const Range& r : ranges) {
      const Tensor part = buffer.slice(r.begin, r.end);
      copies_.push_back({part.data, bytes_ + size_t(r.begin - first) * size_of(buffer.dtype), part.bytes(), back});
    }
    bytes_ += round_up(size_t(count) * size_of(buffer.dtype), kArenaAlign);
  }

  // Copies in `stream`, after the compute work submitted so far.
  Ctx::Ticket move(Ctx& c, Stream stream, int64_t* counted) const {
    const bool back = stream == Stream::copy_back;
    for (const Copy& copy : copies_)
      if (counted && (copy.back || !back)) *counted += int64_t(copy.bytes);
    if (c.arena.recording()) return nullptr;
    c.device.wait(stream, *c.device.record(Stream::compute));
    for (const Copy& copy : copies_) {
      void* here = buffer_.t.at(int64_t(copy.at));
      if (!back)
        c.device.copy(here, copy.home, copy.bytes, stream);
      else if (copy.back)
        c.device.copy(copy.home, here, copy.bytes, stream);
    }
    return c.device.record(stream);
  }

  std::vector<Shown> shown_;
  std::vector<Copy> copies_;
  size_t bytes_ = 0;
  Buffer buffer_;
  Ctx::Ticket in_, out_;
};

}  // namespace

std::vector<StateStretch> state_stretches(const ParamStore& params, const StatesUsed& used) {
  std::vector<StateStretch> all;
  for (size_t u = 0; u < params.units().size(); ++u) {
    const ParamStore::Unit& unit = *params.units()[u];
    if (!params.here(u) || unit.layout.numel == 0) continue;
    const bool masters = used.masters && unit.masters_home != Mem::device;
    const bool elsewhere = unit.home != Mem::device;
    const bool values = used.values && elsewhere && unit.value && unit.stored == StoredAs::values,
               grads = used.grads && elsewhere && unit.grad;
    const auto moves = [&](size_t s) { return unit.states[s].t && unit.states[s].home != Mem::device; };
    if (!masters && !values && !grads && std::ranges::none_of(used.states, moves)) {
      all.push_back({.unit = u, .range = {0, unit.layout.numel}});
      continue;
    }
    const Range held = params.sharded() ? unit.shard : Range{0, unit.layout.numel};
    const int64_t step = used.whole_units ? held.end - held.begin : params.states_home().stretch;
    for (int64_t begin = held.begin; begin < held.end; begin += step) {
      StateStretch s{.unit = u, .range = {begin, std::min(begin + step, held.end)}};
      if (masters) s.masters = {s.range};
      if (values) s.values = {s.range};
      if (grads) s.grads = {s.range};
      for (const size_t state : used.states)
        for (const Range& r : unit.states[state].within(s.range)) s.states.push_back({state, r});
      all.push_back(std::move(s));
    }
  }
  return all;
}

void stream_states(Ctx& c, ParamStore& params, const std::vector<StateStretch>& all,
                   const std::function<void(const StateStretch&)>& run) {
  std::vector<Window> windows;
  for (const StateStretch& s : all) windows.emplace_back(params, s);
  if (!all.empty()) windows.front().bring(c);
  for (size_t i = 0; i < all.size(); ++i) {
    if (i + 1 < all.size()) windows[i + 1].bring(c);
    windows[i].open(c);
    run(all[i]);
    windows[i].close();
    if (i > 0) windows[i - 1].end(c);
    windows[i].take_back(c);
  }
  if (!all.empty()) windows.back().end(c);
}

}  // namespace athanor
