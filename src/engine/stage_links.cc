#include "engine/stage_links.h"

#include <set>

#include "base/error.h"

namespace athanor {
namespace {

bool has_gradients(const StageAction& a) {
  return a.kind == StageAction::Kind::send_gradient || a.kind == StageAction::Kind::receive_gradient;
}

// Activations and gradients are sent in separate streams: in one stream, a send to a stage that is still computing
// would delay a message that another stage waits for. Nothing else of a micro-batch runs in these streams.
Stream stream_of(bool gradients) { return gradients ? Stream::copy_back : Stream::copy; }

}  // namespace

StageLinks::Way StageLinks::way_of(int stage, const StageAction& a) const {
  const int peer = peer_of(stage_->program().shape, stage, a);
  return sends(a) ? Way{stage, peer, has_gradients(a)} : Way{peer, stage, has_gradients(a)};
}

void StageLinks::plan(MemoryPlan& plan, const Stage& stage, DType dtype, const Shape& message) {
  stage_ = &stage;
  message_bytes_ = size_t(message.numel()) * size_of(dtype);
  const StepProgram& program = stage.program();
  for (const StageAction& a : stage.actions())
    if (sends(a)) outboxes_[peer_of(program.shape, number(), a)].slots.resize(size_t(program.sends_ahead));
  for (auto& [peer, box] : outboxes_)
    for (size_t i = 0; i < box.slots.size(); ++i)
      plan.add(MemoryKind::inputs, cat("message ", i, " to stage ", peer), dtype, message, &box.slots[i].t);
}

void StageLinks::open(Device& device, Communicator& stages) {
  device_ = &device, stages_ = &stages;
  if (device.unified()) return;
  std::set<Way> ways;
  const std::vector<Actions>& lists = stage_->program().stages;
  for (size_t s = 0; s < lists.size(); ++s)
    for (const StageAction& a : lists[s])
      if (sends(a)) ways.insert(way_of(int(s), a));
  for (const Way& way : ways) {
    const auto& [from, to, gradients] = way;
    if (from == to) continue;
    const bool mine = number() == from || number() == to;
    auto pair = stages.split(mine ? 0 : 1 + number(), number() == from ? 0 : 1);
    if (mine) pairs_.emplace(way, std::move(pair));
  }
}

void StageLinks::send(const StageAction& a, const Tensor& x) {
  const Way way = way_of(number(), a);
  const int peer = std::get<1>(way);
  Outbox& box = outboxes_.at(peer);
  Slot& slot = box.slots[box.sent++ % box.slots.size()];
  CHECK(slot.t.bytes() == x.bytes(), a, ": ", x.shape, ", planned ", slot.t.shape);
  const bool to_itself = peer == number();
  if (slot.sent)
    device_->wait(Stream::compute, *slot.sent);
  else if (!to_itself && pairs_.empty())
    stages_->finish_sends(peer, int64_t(box.slots.size()) - 1);
  device_->copy(slot.t.data, x.data, x.bytes(), Stream::compute);
  if (to_itself) return;
  const CollectiveSubject subject(cat(a, " on stage ", number()));
  if (pairs_.empty()) return stages_->start_send(slot.t, peer, Stream::compute);
  const Stream stream = stream_of(has_gradients(a));
  device_->wait(stream, *device_->record(Stream::compute));
  pairs_.at(way)->send(slot.t, 1, stream);
  slot.sent = device_->record(stream);
}

void StageLinks::receive(const StageAction& a, Tensor x) {
  const Way way = way_of(number(), a);
  const int peer = std::get<0>(way);
  if (peer == number()) {
    Outbox& own = outboxes_.at(peer);
    return device_->copy(x.data, own.slots[own.received++ % own.slots.size()].t.data, x.bytes(), Stream::compute);
  }
  const CollectiveSubject subject(cat(a, " on stage ", number()));
  if (pairs_.empty()) return stages_->recv(x, peer, Stream::compute);
  pairs_.at(way)->recv(x, 0, Stream::compute);
}

void StageLinks::finish() {
  for (const auto& [peer, box] : outboxes_)
    if (peer != number() && pairs_.empty()) stages_->finish_sends(peer, 0);
}

}  // namespace athanor
