// Local updates: the sums over workers in each step, and the outer steps at the end of rounds
// (optim/outer_optimizer.h).
#include <algorithm>

#include "engine/engine.h"

namespace athanor {
namespace {

std::string end_phase(int64_t fragment) { return cat("end of a round, fragment ", fragment); }
std::string step_phase(int64_t fragment) { return cat("outer step, fragment ", fragment); }

}  // namespace

// All-reduces a few scalars but no gradients, so that workers skip, stop and lower the loss scale in the same steps.
// Loss and targets are sums over all workers; the norm is the root mean square of the workers' norms.
void Engine::agree_among_workers(Ctx& c) {
  Tensor sums = scalar(offsetof(StepState, loss_sum), DType::f64);
  static_assert(offsetof(StepState, targets) == offsetof(StepState, loss_sum) + sizeof(double));
  static_assert(offsetof(StepState, requests) == offsetof(StepState, targets) + sizeof(double));
  static_assert(offsetof(StepState, norm_sq) == offsetof(StepState, requests) + kRequestSums * sizeof(double));
  sums.shape = {3 + kRequestSums};
  const CollectiveSubject subject("a step's loss and norm");
  c.all_reduce(backend_.mesh.workers(), sums);
}

// Averages the gradients of one step, in the order of units, which is the same on all ranks.
void Engine::average_over_workers(Ctx& c) {
  for (const auto& unit : model_->params().units()) {
    if (!unit->grad) continue;
    const CollectiveSubject subject(unit->name);
    c.all_reduce(backend_.mesh.workers(), unit->own(unit->grad), Reduce::avg);
  }
}

void Engine::record_rounds() {
  arena_.record("start of rounds");
  Ctx c = context(plan_, nullptr);
  outer_->start(c);
  arena_.finish_recording();
  for (int64_t fragment = 0; fragment < outer_->fragments(); ++fragment) {
    arena_.record(end_phase(fragment));
    outer_->end_round(c, fragment);
    arena_.finish_recording();
    if (options_.outer.delay == 0) continue;
    arena_.record(step_phase(fragment));
    outer_->outer_step(c, fragment);
    arena_.finish_recording();
  }
}

void Engine::start_states() {
  if (options_.training && options_.packed.weights)
    run_phase("start of sent weights", [&](Ctx& c) { model_->params().start_sent_weights(c); });
  if (outer_) run_phase("start of rounds", [&](Ctx& c) { outer_->start(c); });
}

bool Engine::round_ends(int64_t step) const {
  for (int64_t fragment = 0; outer_ && fragment < outer_->fragments(); ++fragment)
    if (outer_->round_ends(fragment, step) || outer_->is_due(fragment, step)) return true;
  return false;
}

void Engine::end_rounds(int64_t step, bool all) {
  if (!outer_) return;
  CHECK(uncollected() == 0 && micro_slot_ == 0, "the end of a round in the middle of a step");
  for (int64_t fragment = 0; fragment < outer_->fragments(); ++fragment) {
    if ((all && !outer_->is_in_flight(fragment)) || outer_->round_ends(fragment, step))
      run_phase(end_phase(fragment), [&](Ctx& c) { outer_->end_round(c, fragment); });
    if ((all && outer_->is_in_flight(fragment)) || outer_->is_due(fragment, step))
      run_phase(step_phase(fragment), [&](Ctx& c) { outer_->outer_step(c, fragment); });
  }
  refresh_quantized(QuantizedFor::step);
  backend_.device.wait(*backend_.device.record(Stream::compute));  // deltas in flight use another stream
  last_end_ = nullptr;
}

void Engine::receive_deltas() {
  if (!outer_) return;
  Ctx c = context(*ops_, nullptr);
  outer_->receive(c);
}

bool Engine::set_in_flight(const std::vector<int64_t>& fragments) {
  const auto is_one = [&](int64_t f) { return options_.outer.delay > 0 && f >= 0 && f < options_.outer.fragments; };
  if (!std::ranges::all_of(fragments, is_one)) return false;
  if (outer_) outer_->set_in_flight(fragments);
  return true;
}

// States in host memory are in device memory only within a phase, so their deltas cannot be sent while steps run.
bool Engine::overlaps_rounds() const {
  return options_.outer.delay > 0 && options_.states_home.mem == Mem::device && backend_.mesh.workers().size() > 1;
}

}  // namespace athanor
