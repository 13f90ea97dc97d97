// 1-bit Adam [Tang et al. 2021] and 1-bit LAMB [Li et al. 2021] after the variance is frozen: each worker adds its own
// gradient to the shared momentum, which is all-reduced with 1 bit per element (ops/one_bit.h). Blocks of a vector and
// their servers depend only on its offset in the unit, so they do not depend on the number of ranks within a worker.
#include "ops/one_bit.h"

#include <algorithm>
#include <optional>

#include "base/int.h"
#include "optim/lamb.h"

namespace athanor {
namespace {

// Exchange of block records between workers, grouped by server.
class Exchange {
 public:
  Exchange(Ctx& c, const OneBitBlocks& blocks)
      : c_(c),
        blocks_(blocks),
        own_(blocks.order(blocks.worker)),
        records_(allocate("records of blocks", blocks.count)) {
    if (blocks.workers > 1 && serves())
      received_ = allocate("records of other workers", blocks.workers * blocks.served(own_));
  }
  bool serves() const { return blocks_.served(own_) > 0; }
  const Tensor& records() const { return records_.t; }
  const Tensor& received() const { return received_.t; }
  // Sends each block's record to the worker that averages the block.
  void send_to_servers() {
    send([&](int w) { return of_server(blocks_.order(w)); },
         [&](int w) {
           const int64_t served = blocks_.served(own_);
           return serves() ? slice(received_.t, w * served, (w + 1) * served) : Tensor{};
         });
  }
  // Sends the averages of the blocks that this worker serves to all workers.
  void send_to_all() {
    send([&](int) { return of_server(own_); }, [&](int w) { return of_server(blocks_.order(w)); });
  }

 private:
  static constexpr int64_t kBytes = sizeof(OneBitRecord);
  Buffer allocate(const char* name, int64_t blocks) const { return c_.alloc(name, DType::u8, {blocks * kBytes}); }
  static Tensor slice(const Tensor& t, int64_t begin, int64_t end) { return t.slice(begin * kBytes, end * kBytes); }
  Tensor of_server(int order) const {
    return slice(records_.t, blocks_.begin(order), blocks_.begin(order) + blocks_.served(order));
  }
  template <class Out, class In>
  void send(const Out& out_for, const In& in_from) const {
    if (blocks_.workers == 1) return;
    std::vector<Tensor> out, in;
    for (int w = 0; w < blocks_.workers; ++w) {
      const bool other = w != blocks_.worker;
      const Tensor sent = other ? out_for(w) : Tensor{}, received = other ? in_from(w) : Tensor{};
      out.push_back(sent.numel() > 0 ? sent : Tensor{});
      in.push_back(received.numel() > 0 ? received : Tensor{});
    }
    c_.all_to_all(c_.mesh.workers(), out, in);
  }

  Ctx& c_;
  OneBitBlocks blocks_;
  int own_;  // position of this worker in the server order
  Buffer records_, received_;
};

struct LambTensors {  // for onebit_lamb: tensors of a run
  Tensor fresh, ratios, w;
};

// Base of both rules: all-reduces the workers' momenta of a run, and replaces its gradients by directions.
class OneBitRule : public UpdateRule {
 public:
  explicit OneBitRule(const RuleOptions& options) : o_(options) {
    CHECK(options.freeze_step > 0, "a variance that is frozen before the first step");
  }
  std::vector<KeptState> states() const override {
    return {{.name = "m", .dtype = DType::f32, .of_all_workers = true},
            {.name = "v", .dtype = DType::f32, .of_all_workers = true},
            {.name = "compression_error", .dtype = DType::f32, .aligned = kOneBitBlock}};
  }
  std::vector<Average> averages() const override {
    return {{o_.beta1, true}, {.decay = o_.beta2, .end = o_.freeze_step}};
  }

 protected:
  static Tensor state_of(const Placed& placed, const OwnedRun& own, size_t i) {
    return own.unit.states[placed.states[i]].on_device(own.range);
  }
  void make_directions(Ctx& c, const WorkerRank& worker, const Placed& placed, const OwnedRun& own,
                       const Tensor& step_state, const LambTensors& lamb = {}) const {
    const auto [begin, end] = own.range;
    if (begin % kOneBitBlock != 0 || end % kOneBitBlock != 0)
      throw Error(cat("param_groups: two groups have parts of one matrix of ", own.unit.name, ", which ",
                      kRuleNames[size_t(o_.rule)], " compresses as a whole; let one group have all of it"),
                  Exit::usage);
    const OneBitBlocks blocks{.count = (end - begin) / kOneBitBlock,
                              .first = begin / kOneBitBlock,
                              .workers = worker.workers,
                              .worker = worker.worker};
    const Tensor m = state_of(placed, own, 0), v = state_of(placed, own, 1), error = state_of(placed, own, 2),
                 grad = own.unit.part(own.unit.grad, own.range);
    const CollectiveSubject subject(own.unit.name);
    Exchange exchange(c, blocks);
    c.run(OneBitMomentum{.state = step_state,
                         .m = m,
                         .v = v,
                         .grad = grad,
                         .error = error,
                         .records = exchange.records(),
                         .beta1 = o_.beta1,
                         .blocks = blocks});
    exchange.send_to_servers();
    if (exchange.serves())
      c.run(OneBitMean{.state = step_state,
                       .v = v,
                       .grad = grad,
                       .received = exchange.received(),
                       .error = error,
                       .records = exchange.records(),
                       .blocks = blocks});
    exchange.send_to_all();
    OneBitDirection direction{.state = step_state,
                              .records = exchange.records(),
                              .v = v,
                              .m = m,
                              .grad = grad,
                              .fresh = lamb.fresh,
                              .ratios = lamb.ratios,
                              .w = lamb.w,
                              .beta1 = o_.beta1,
                              .beta2 = o_.beta2,
                              .eps = o_.eps,
                              .average1 = placed.averages[0],
                              .average2 = placed.averages[1],
                              .blocks = blocks};
    if (lamb.w) {
      direction.weight_decay = o_.weight_decay, direction.cautious = o_.cautious;
      direction.decayed = std::clamp(own.run.decayed, begin, end) - begin;
      direction.average3 = placed.averages[2];
    }
    c.run(direction);
  }

  RuleOptions o_;
};

class OneBitAdamRule final : public OneBitRule {
 public:
  using OneBitRule::OneBitRule;
  std::vector<UpdatePass> passes() const override { return {{.masters = UpdatePass::Use::no}, {}}; }
  void run(size_t pass, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    if (pass == 1) return move_along(c, o_, params, placed, step_state);
    for (const OwnedRun& own : owned_runs(params, placed)) make_directions(c, params.worker(), placed, own, step_state);
  }
};

// After the freeze the trust ratio is the average of the earlier ratios times a factor: the maximum over the tensor of
// the frozen divided by the fresh Adam denominator, where the fresh variance follows from the momenta.
class OneBitLambRule final : public OneBitRule {
 public:
  using OneBitRule::OneBitRule;
  std::vector<KeptState> states() const override {
    std::vector<KeptState> states = OneBitRule::states();
    states.push_back({.name = "v_fresh", .dtype = DType::f32, .of_all_workers = true});
    CHECK(states.size() == kTrustState, "states before trust_ratio");
    states.push_back({.name = "trust_ratio", .dtype = DType::f32, .sizes = two_of_each, .of_all_workers = true});
    return states;
  }
  std::vector<Average> averages() const override {
    std::vector<Average> averages = OneBitRule::averages();
    averages.push_back({o_.beta2});
    return averages;
  }
  std::vector<UpdatePass> passes() const override { return lamb_passes(); }
  void run(size_t pass, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    if (pass == 0) return begin(c, params, placed, step_state);
    if (pass == 2) return move_without_decay(c, o_, params, placed, step_state);
    scale(c, params, placed, step_state);
    maxima_ = {};
  }

 private:
  static std::vector<int64_t> two_of_each(const ParamStore& params) {
    return std::vector<int64_t>(params.pieces().size(), 2);
  }

  void begin(Ctx& c, const ParamStore& params, const Placed& placed, const Tensor& step_state) {
    maxima_ = c.alloc("largest ratios of variances", DType::f32, {int64_t(placed.all_ranges)});
    c.run(Fill{.x = maxima_.t});
    std::optional<F32Masters> masters;  // master weights of the current unit, shared by its runs
    for (const OwnedRun& own : owned_runs(params, placed)) {
      if (!masters || &masters->unit != &own.unit) masters.emplace(c, own.unit);
      const auto [begin, end] = own.range;
      const Buffer ratios = c.alloc("ratios of variances", DType::f32, {(end - begin) / kOneBitBlock});
      make_directions(c, params.worker(), placed, own, step_state,
                      {.fresh = state_of(placed, own, 3), .ratios = ratios.t, .w = masters->part(own.range)});
      find_maxima(c, placed, own, ratios.t);
    }
  }

  // Updates the maximum ratio of each tensor with the blocks of this run. Queries, keys and values are one tensor in
  // memory: a block in which one of them ends and the next begins counts for both.
  void find_maxima(Ctx& c, const Placed& placed, const OwnedRun& own, const Tensor& ratios) const {
    for (size_t i = 0; i < placed.ranges.size(); ++i) {
      const UpdateRange& tensor = placed.ranges[i];
      const int64_t begin = std::max(tensor.range.begin, own.range.begin),
                    end = std::min(tensor.range.end, own.range.end);
      if (tensor.unit != own.run.unit || begin >= end) continue;
      const int64_t first = (begin - own.range.begin) / kOneBitBlock,
                    last = div_ceil(end - own.range.begin, kOneBitBlock);
      const Tensor row{ratios.at(first), DType::f32, {1, last - first}};
      c.run(RowMax{.max = maxima_.t.slice(int64_t(i), int64_t(i) + 1), .x = row, .columns = last - first});
    }
  }

  void scale(Ctx& c, const ParamStore& params, const Placed& placed, const Tensor& step_state) const {
    reduce_over_ranks(c, params, "ratios of variances", maxima_.t, Reduce::max);
    const auto tensors = int64_t(placed.ranges.size());
    if (tensors == 0) return;
    const Buffer sums = c.alloc("trust ratios", DType::f64, {2 * tensors});
    FrozenTrustRatio op{.parts = {}, .state = step_state};
    for (int64_t i = 0; i < tensors; ++i)
      op.parts.push_back({.max = maxima_.t.slice(i, i + 1),
                          .trust = trust_of(params, placed, placed.ranges[size_t(i)]),
                          .sums = {sums.t.at(2 * i), DType::f64, {2, 1}}});
    c.run(op);
    scale_by_trust_ratios(c, params, placed, 1, sums.t);
  }

  Buffer maxima_;  // kept from the first to the second pass: each tensor's maximum over its blocks
};

}  // namespace

std::unique_ptr<UpdateRule> make_one_bit_adam(const RuleOptions& options) {
  return std::make_unique<OneBitAdamRule>(options);
}
std::unique_ptr<UpdateRule> make_one_bit_lamb(const RuleOptions& options) {
  return std::make_unique<OneBitLambRule>(options);
}

}  // namespace athanor
