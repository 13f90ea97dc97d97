#include "pipeline/simulate.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace athanor {
namespace {

using Kind = StageAction::Kind;

// Messages from one stage to another.
struct Messages {
  struct Sent {
    StageAction arrival;
    double time;
  };
  std::vector<Sent> sent;
  std::vector<double> received;  // times of receipt
};

class Run {
 public:
  Run(const StepProgram& program, const PassTimes& times)
      : program_(program), times_(times), next_(program.stages.size(), 0), clock_(program.stages.size(), 0.0) {
    found_.stages.resize(program.stages.size());
  }

  bool ends() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < program_.shape.stages; ++stage)
        while (advance(stage)) moved = true;
    }
    for (int stage = 0; stage < program_.shape.stages; ++stage)
      if (next_[size_t(stage)] < list(stage).size()) return false;
    return true;
  }
  Simulation run() {
    if (!ends()) throw_waiting();
    require_received();
    finish();
    return std::move(found_);
  }

 private:
  const Actions& list(int stage) const { return program_.stages[size_t(stage)]; }
  Messages& between(int from, int to) { return messages_[{from, to}]; }

  // Runs a stage's next action, unless the stage has to wait for another stage.
  bool advance(int stage) {
    size_t& next = next_[size_t(stage)];
    if (next == list(stage).size()) return false;
    const StageAction& a = list(stage)[next];
    double& clock = clock_[size_t(stage)];
    const double begin = clock;
    if (computes(a))
      clock += seconds_of(a.kind) / program_.shape.chunks;
    else if (receives(a) ? !receive(stage, a, clock) : !send(stage, a, clock))
      return false;
    found_.stages[size_t(stage)].push_back({a, begin, clock});
    ++next;
    return true;
  }

  double seconds_of(Kind kind) const {
    switch (kind) {
      case Kind::forward:
        return times_.forward;
      case Kind::input_backward:
        return times_.backward - times_.weights;
      case Kind::weight_backward:
        return times_.weights;
      default:
        return times_.backward;
    }
  }

  bool send(int stage, const StageAction& a, double& clock) {
    Messages& m = between(stage, peer_of(program_.shape, stage, a));
    const size_t number = m.sent.size();
    const auto ahead = size_t(program_.sends_ahead);
    if (number >= m.received.size() + ahead) return false;
    if (number >= ahead) clock = std::max(clock, m.received[number - ahead]);
    const int part = program_.shape.part(stage, a.chunk);
    const bool forward = a.kind == Kind::send_activation;
    m.sent.push_back({{forward ? Kind::receive_activation : Kind::receive_gradient,
                       program_.shape.chunk_of(forward ? part + 1 : part - 1), a.micro_batch},
                      clock});
    return true;
  }

  bool receive(int stage, const StageAction& a, double& clock) {
    const int from = peer_of(program_.shape, stage, a);
    Messages& m = between(from, stage);
    if (m.sent.size() == m.received.size()) return false;
    const Messages::Sent& sent = m.sent[m.received.size()];
    if (sent.arrival != a)
      throw Error(cat("pipeline: stage ", stage, " is ", a, ", stage ", from, " sends for ", sent.arrival));
    clock = std::max(clock, sent.time + times_.transfer);
    m.received.push_back(clock);
    return true;
  }

  [[noreturn]] void throw_waiting() const {
    std::string waiting;
    for (int stage = 0; stage < program_.shape.stages; ++stage)
      if (const size_t next = next_[size_t(stage)]; next < list(stage).size())
        waiting += cat(waiting.empty() ? "" : "; ", "stage ", stage, " waits at ", list(stage)[next]);
    throw Error(cat("pipeline: the stages wait for each other: ", waiting));
  }

  void require_received() const {
    for (const auto& [stages, m] : messages_)
      if (m.sent.size() != m.received.size())
        throw Error(cat("pipeline: stage ", stages.second, " receives ", m.received.size(), " of ", m.sent.size(),
                        " messages of stage ", stages.first));
  }

  void finish() {
    for (const auto& stage : found_.stages) {
      double useful = 0;
      for (const TimedAction& t : stage)
        if (computes(t.action)) useful += t.end - t.begin;
      found_.useful = std::max(found_.useful, useful);
      int now = 0, most = 0;
      for (const TimedAction& t : stage) {
        if (t.action.kind == Kind::forward) most = std::max(most, ++now);
        if (t.action.kind == Kind::backward || t.action.kind == Kind::weight_backward) --now;
      }
      found_.in_flight.push_back(double(most) / program_.shape.chunks);
    }
    found_.seconds = *std::ranges::max_element(clock_);
  }

  const StepProgram& program_;
  const PassTimes times_;
  std::vector<size_t> next_;
  std::vector<double> clock_;
  std::map<std::pair<int, int>, Messages> messages_;
  Simulation found_;
};

}  // namespace

bool ends(const StepProgram& program) { return Run(program, {}).ends(); }
Simulation simulate(const StepProgram& program, const PassTimes& times) { return Run(program, times).run(); }
double with_waits(const StepProgram& program) {
  if (program.shape.stages == 1) return 1;
  const Simulation step = simulate(program, {});
  return step.seconds / step.useful;
}

}  // namespace athanor
