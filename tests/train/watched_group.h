// Runs of process groups along one mesh axis; their communicator counts what is sent, and can make one mistake.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <map>
#include <mutex>

#include "perf/traffic.h"
#include "tests/comm/forwarding.h"
#include "tests/larger_error.h"
#include "tests/train/ranks_rig.h"

namespace athanor::ranks {

inline constexpr int64_t kLayers = 2, kHidden = 16;  // sizes of tiny()

// Returns the setting of one rank whose losses those of the ranks must equal. It has four KV heads, since a group has
// up to four ranks.
inline Setting alone(const Setting& s) {
  return {.type = s.type,
          .tied = s.tied,
          .precision = s.precision,
          .master = s.master,
          .masked = s.masked,
          .clip = s.clip,
          .lr = s.lr,
          .eps = s.eps,
          .sequences = s.sequences,
          .rule = s.rule,
          .kv_heads = s.kv_heads,
          .vocab = s.vocab,
          .z_loss = s.z_loss,
          .softcap = s.softcap,
          .heads = s.heads,
          .hidden = s.hidden,
          .intermediate = s.intermediate,
          .length = s.length,
          .window = s.window,
          .documents = s.documents};
}

// Without weights: after ten steps AdamW has amplified the rounding of small gradients, so that weights differ.
inline void expect_same_curve(const Curve& want, const Curve& got, double tolerance, const std::string& what) {
  ASSERT_EQ(want.losses.size(), got.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << what << " step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], tolerance * want.norms[i]) << what << " step " << i;
  }
}

// The mistake to make in a group, and counts of what was sent.
struct Watch {
  // reversed: the parts of an all-gather or a reduce-scatter are in reversed rank order.
  enum class Fault : uint8_t { none, missing, twice, averaged, reversed, bias_of_every_rank } fault = Fault::none;
  enum class Part : uint8_t { none, micro_batch, update } part = Part::micro_batch;  // part of a step with the mistake
  int64_t at = -1;                                                                   // index of the faulty call
  Axis axis = Axis::tp;                                                              // axis whose groups are watched
  Part now = Part::none;
  int64_t number = 0;                  // index of the next call in `now`
  int64_t wrong = 0;                   // number of calls with a mistake: a fault applies only to some kinds of calls
  TensorSums::Sent sent;               // in the last micro-batch
  int64_t passes = 0, pass_bytes = 0;  // in the last micro-batch: number of all_to_all calls, and bytes that this rank
                                       // sent in them
  int64_t scatters_in_f32 = 0;         // in the last micro-batch: reduce-scatters with enough workspace to sum in f32
  void begin(Part of_step) { now = of_step, number = 0; }
};

// The communicator of a watched group, with a mistake.
class Watched final : public Forwarding {
 public:
  Watched(std::unique_ptr<Communicator> inner, Watch& watch, int splits)
      : Forwarding(std::move(inner)), watch_(watch), splits_(splits) {}
  // A rank that believes to be the first adds biases and positions.
  int rank() const override {
    const bool lies =
        watch_.now == Watch::Part::micro_batch && watch_.fault == Watch::Fault::bias_of_every_rank && is_group();
    return lies ? 0 : inner_->rank();
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    std::unique_ptr<Communicator> part = inner_->split(color, key);
    if (splits_++ != int(watch_.axis)) return part;
    return std::make_unique<Watched>(std::move(part), watch_, -1);
  }
  void all_reduce(Tensor x, Reduce how, Stream stream) override {
    using Fault = Watch::Fault;
    const Fault fault = next({Fault::missing, Fault::twice, Fault::averaged});
    if (in_micro_batch()) ++watch_.sent.calls, watch_.sent.bytes += int64_t(x.bytes());
    if (fault == Fault::missing) return;
    inner_->all_reduce(x, fault == Fault::averaged ? Reduce::avg : how, stream);
    if (fault == Fault::twice) inner_->all_reduce(x, how, stream);
  }
  // missing: the rows of the other ranks are zero.
  void all_gather(Tensor full, Tensor shard, Stream stream) override {
    using Fault = Watch::Fault;
    const Fault fault = next({Fault::missing, Fault::reversed});
    count_rows(full);
    inner_->all_gather(full, shard, stream);
    if (fault == Fault::reversed) std::memcpy(full.data, reversed(full).data(), full.bytes());
    for (int rank = 0; fault == Fault::missing && rank < size(); ++rank)
      if (rank != inner_->rank()) std::memset(full.at(shard.numel() * rank), 0, shard.bytes());
  }
  // missing: keeps only this rank's contribution. twice: each rank sums values that are already sums.
  void reduce_scatter(Tensor shard, Tensor full, Reduce how, Stream stream) override {
    using Fault = Watch::Fault;
    const Fault fault = next({Fault::missing, Fault::twice, Fault::reversed});
    count_rows(full);
    std::vector<std::byte> other(full.bytes());
    if (fault == Fault::twice) std::memcpy(other.data(), full.data, full.bytes());
    if (fault == Fault::reversed) other = reversed(full);
    if (fault == Fault::twice || fault == Fault::reversed) full.data = other.data();
    if (fault == Fault::twice) inner_->all_reduce(full, how, stream);
    inner_->reduce_scatter(shard, full, how, stream);
    if (fault == Fault::missing) std::memcpy(shard.data, full.at(shard.numel() * inner_->rank()), shard.bytes());
  }
  // Like a transport whose own sums are rounded at every hop.
  int64_t sum_workspace(DType dtype, int64_t n) const override { return bf16_sum_workspace(dtype, n, size()); }
  void sum_scatter(Tensor shard, Tensor full, Tensor workspace, Stream stream) override {
    const int64_t needed = sum_workspace(full.dtype, full.numel());
    if (in_micro_batch()) watch_.scatters_in_f32 += needed == 0 || (workspace && workspace.numel() == needed);
    reduce_scatter(shard, full, Reduce::sum, stream);
  }
  void all_to_all(std::span<const Tensor> out, std::span<const Tensor> in, Stream stream) override {
    const bool missing = next({Watch::Fault::missing}) == Watch::Fault::missing;
    if (in_micro_batch()) {
      ++watch_.passes;
      for (const Tensor& t : out)
        if (t) watch_.pass_bytes += int64_t(t.bytes());
    }
    inner_->all_to_all(out, in, stream);
    if (missing)  // nothing was received
      for (const Tensor& t : in)
        if (t) std::memset(t.data, 0, t.bytes());
  }

 private:
  bool is_group() const { return splits_ < 0; }
  bool in_micro_batch() const { return is_group() && watch_.now == Watch::Part::micro_batch; }
  // The fault to apply in the next call, if it is one of `possible`.
  Watch::Fault next(std::initializer_list<Watch::Fault> possible) {
    using Fault = Watch::Fault;
    const bool here = is_group() && watch_.now == watch_.part && watch_.number++ == watch_.at;
    if (!here || std::ranges::find(possible, watch_.fault) == possible.end()) return Fault::none;
    ++watch_.wrong;
    return watch_.fault;
  }
  std::vector<std::byte> reversed(const Tensor& full) const {
    std::vector<std::byte> out(full.bytes());
    const size_t part = out.size() / size_t(size());
    for (size_t at = 0; at < out.size(); at += part)
      std::memcpy(&out[out.size() - part - at], static_cast<const std::byte*>(full.data) + at, part);
    return out;
  }
  void count_rows(const Tensor& full) {
    if (in_micro_batch()) ++watch_.sent.row_calls, watch_.sent.row_bytes += int64_t(full.bytes());
  }
  Watch& watch_;
  int splits_;  // number of splits so far, in the order of the axes; -1: this is a watched group
};

struct WatchedCurve {
  std::vector<double> losses, norms;
  TensorSums::Sent sent;                            // in a micro-batch
  TensorSums planned;                               // in a micro-batch
  std::vector<std::pair<int64_t, int64_t>> passes;  // all_to_all calls and bytes of every rank in a micro-batch
  ContextPasses planned_passes;                     // the plan of rank 0
  double traffic = 0;                               // bytes that a rank sends per step along the axis
  int64_t wrong = 0;                                // number of calls with a mistake
  int64_t scatters_in_f32 = 0;                      // in a micro-batch
  std::vector<int64_t> units;                       // number of elements of each unit's weights
  std::vector<float> masters;
};

inline WatchedCurve train_watched(const Setting& s, const Watch& fault, int64_t steps) {
  WatchedCurve curve;
  curve.passes.resize(size_t(s.ranks()));
  std::mutex mutex;
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    Watch watch = fault;
    ProcessMesh mesh(std::make_unique<Watched>(std::move(world), watch, 0), s.mesh());
    Engine engine(tiny(s), options(s), {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    engine.init_weights();
    std::vector<double> losses, norms;
    for (int64_t step = 0; step < steps; ++step) {
      watch.sent = {}, watch.passes = watch.pass_bytes = watch.scatters_in_f32 = 0;
      watch.begin(Watch::Part::micro_batch);
      accumulate(engine, step);
      watch.begin(Watch::Part::update);
      const StepState state = engine.finish_step();
      watch.begin(Watch::Part::none);
      losses.push_back(state.loss / state.loss_targets), norms.push_back(state.grad_norm);
    }
    const auto masters = testing::all_masters(engine, *cpu.device);
    const std::lock_guard lock(mutex);
    curve.passes[size_t(mesh.world().rank())] = {watch.passes, watch.pass_bytes};
    if (mesh.world().rank() != 0) return;
    const bool context = fault.axis == Axis::cp, shards = fault.axis == Axis::dp_shard;
    for (const auto& unit : engine.model().params().units()) curve.units.push_back(unit->layout.numel);
    const StepTraffic traffic = step_traffic(engine, mesh, {1e9, 1e9, 8});
    curve.losses = losses, curve.norms = norms, curve.masters = masters;
    curve.sent = watch.sent, curve.wrong = watch.wrong, curve.scatters_in_f32 = watch.scatters_in_f32;
    curve.planned = context ? engine.micro_context_sums() : engine.micro_tensor_sums();
    curve.planned_passes = engine.micro_context_passes();
    curve.traffic = shards    ? traffic.gathers.bytes + traffic.backward.bytes
                    : context ? traffic.context.bytes
                              : traffic.tensor.bytes;
  });
  return curve;
}

// Whether a run differs from the single-rank run by more than rounding.
inline bool differs(const Curve& want, const std::vector<double>& losses, const std::vector<double>& norms) {
  const auto near = [](double a, double b) { return std::abs(a / b - 1) < 1e-4; };  // false for NaN
  for (size_t i = 0; i < want.losses.size(); ++i)
    if (!near(losses[i], want.losses[i]) || !near(norms[i], want.norms[i])) return true;
  return false;
}

// Whether the first three steps differ from `want` if every rank's ops are wrapped in CarelessOps(inner, mistake).
template <class CarelessOps, class Mistake>
bool shows_with(const Setting& s, const Curve& want, Mistake mistake) {
  std::vector<double> losses, norms;  // results of rank 0
  on_ranks(s, [&](Engine& engine, ProcessMesh& mesh, const CpuBackend& cpu) {
    CarelessOps ops(*cpu.ops, mistake);
    engine.set_ops(ops);
    for (int64_t step = 0; step < 3; ++step) {
      accumulate(engine, step);
      const StepState state = engine.finish_step();
      if (mesh.world().rank() > 0) continue;
      losses.push_back(state.loss / state.loss_targets), norms.push_back(state.grad_norm);
    }
  });
  return differs(want, losses, norms);
}

// Maximum difference of a weight.
inline float furthest(const Curve& want, const WatchedCurve& got) {
  float most = 0;
  for (size_t i = 0; i < want.masters.size(); ++i)
    most = testing::larger_error(most, std::abs(got.masters[i] - want.masters[i]));
  return most;
}

}  // namespace athanor::ranks
