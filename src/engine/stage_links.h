// StageLinks: activations and their gradients on the way between the stages of a pipeline, or between two chunks of one
// stage. A send returns at once: what is sent is copied to a slot of this stage, which the receiver takes it from, and
// later actions compute meanwhile.
#pragma once
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "comm/communicator.h"
#include "device/memory_plan.h"
#include "engine/stage.h"

namespace athanor {

class StageLinks {
 public:
  // Slots for messages [rows of the stream, hidden size], as many for each receiver as StepProgram::sends_ahead.
  void plan(MemoryPlan&, const Stage&, DType, const Shape& message);
  size_t message_bytes() const { return message_bytes_; }
  // After plan(). All stages call it together, before the first message.
  void open(Device&, Communicator& stages);

  // a: an action that sends, or receives, on this stage.
  void send(const StageAction& a, const Tensor& x);
  void receive(const StageAction& a, Tensor x);
  // Hosts: waits until other stages have received all messages. Streams of a GPU wait where a slot is used again.
  void finish();

 private:
  struct Slot {
    Tensor t;
    std::unique_ptr<Event> sent;  // on a GPU: when it may be written again
  };
  struct Outbox {
    std::vector<Slot> slots;
    size_t sent = 0, received = 0;  // received: by this stage itself
  };
  // A stage that sends, one that receives, and whether it is gradients.
  using Way = std::tuple<int, int, bool>;
  Way way_of(int stage, const StageAction&) const;
  int number() const { return stage_->number(); }

  const Stage* stage_ = nullptr;
  size_t message_bytes_ = 0;
  Device* device_ = nullptr;
  Communicator* stages_ = nullptr;
  std::map<int, Outbox> outboxes_;  // by receiver
  // On a GPU each way has a communicator of its two stages, so that no send waits for one of another way: NCCL runs the
  // calls of a communicator one after the other, and a send ends when it is received.
  std::map<Way, std::unique_ptr<Communicator>> pairs_;
};

}  // namespace athanor
