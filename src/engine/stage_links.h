// StageLinks: sends activations and their gradients between pipeline stages, or between two chunks of one stage. A send
// returns at once: it copies the message to a slot of this stage, and the receiver takes it from there while later
// actions compute.
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
  // Plans message slots [rows of the stream, hidden size], StepProgram::sends_ahead of them per receiver.
  void plan(MemoryPlan&, const Stage&, DType, const Shape& message);
  size_t message_bytes() const { return message_bytes_; }
  // Call after plan(), on all stages together, before the first message.
  void open(Device&, Communicator& stages);

  // a: a send or receive action of this stage.
  void send(const StageAction& a, const Tensor& x);
  void receive(const StageAction& a, Tensor x);
  // On hosts, waits until other stages have received all messages. On a GPU a stream waits when a slot is reused.
  void finish();

 private:
  struct Slot {
    Tensor t;
    std::unique_ptr<Event> sent;  // event after which the slot may be overwritten, on a GPU
  };
  struct Outbox {
    std::vector<Slot> slots;
    size_t sent = 0, received = 0;  // received: messages from this stage to itself that it has received
  };
  // Sending stage, receiving stage, and true for gradients.
  using Way = std::tuple<int, int, bool>;
  Way way_of(int stage, const StageAction&) const;
  int number() const { return stage_->number(); }

  const Stage* stage_ = nullptr;
  size_t message_bytes_ = 0;
  Device* device_ = nullptr;
  Communicator* stages_ = nullptr;
  std::map<int, Outbox> outboxes_;  // keys: receiving stage
  // On a GPU each way has its own communicator of two stages, so that no send waits for a send of another way: NCCL
  // runs the calls of a communicator one after the other, and a send ends only when it is received.
  std::map<Way, std::unique_ptr<Communicator>> pairs_;
};

}  // namespace athanor
