// 1-bit Adam after the variance is frozen [Tang et al. 2021]: each worker adds its own gradient to the momentum that
// all have in common, and the sums are made in 1 bit per element (ops/one_bit.h). Ranks within a worker are free:
// blocks of a vector and their servers follow from its place in the unit.
#include "ops/one_bit.h"

#include "optim/rule.h"

namespace athanor {
namespace {

// The records of blocks that workers send each other, server by server.
class Exchange {
 public:
  Exchange(Ctx& c, const OneBitBlocks& blocks)
      : c_(c),
        blocks_(blocks),
        own_(blocks.turn(blocks.worker)),
        records_(allocate("records of blocks", blocks.count)) {
    if (blocks.workers > 1 && serves())
      received_ = allocate("records of other workers", blocks.workers * blocks.served(own_));
  }
  bool serves() const { return blocks_.served(own_) > 0; }
  const Tensor& records() const { return records_.t; }
  const Tensor& received() const { return received_.t; }
  // Of blocks that others serve, to these.
  void send_to_servers() {
    send([&](int w) { return of_turn(blocks_.turn(w)); },
         [&](int w) {
           const int64_t served = blocks_.served(own_);
           return serves() ? slice(received_.t, w * served, (w + 1) * served) : Tensor{};
         });
  }
  // Of the averages of the blocks that this worker serves, to all.
  void send_to_all() {
    send([&](int) { return of_turn(own_); }, [&](int w) { return of_turn(blocks_.turn(w)); });
  }

 private:
  static constexpr int64_t kBytes = sizeof(OneBitRecord);
  Buffer allocate(const char* name, int64_t blocks) const { return c_.alloc(name, DType::u8, {blocks * kBytes}); }
  static Tensor slice(const Tensor& t, int64_t begin, int64_t end) { return t.slice(begin * kBytes, end * kBytes); }
  Tensor of_turn(int turn) const {
    return slice(records_.t, blocks_.begin(turn), blocks_.begin(turn) + blocks_.served(turn));
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
  int own_;  // turn of this worker
  Buffer records_, received_;
};

class OneBitAdamRule final : public UpdateRule {
 public:
  explicit OneBitAdamRule(const RuleOptions& options) : o_(options) {
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
  std::vector<UpdatePass> passes() const override { return {{.masters = UpdatePass::Use::no}, {}}; }
  void run(size_t pass, Ctx& c, ParamStore& params, const Placed& placed, Tensor step_state) override {
    if (pass == 1) return move_along(c, o_, params, placed, step_state);
    for (const OwnedRun& own : owned_runs(params, placed)) make_directions(c, params.worker(), placed, own, step_state);
  }

 private:
  void make_directions(Ctx& c, const WorkerRank& worker, const Placed& placed, const OwnedRun& own,
                       const Tensor& step_state) const {
    const auto [begin, end] = own.range;
    if (begin % kOneBitBlock != 0 || end % kOneBitBlock != 0)
      throw Error(cat("param_groups: two groups have parts of one matrix of ", own.unit.name,
                      ", which onebit_adam compresses as a whole; let one group have all of it"),
                  Exit::usage);
    const OneBitBlocks blocks{.count = (end - begin) / kOneBitBlock,
                              .first = begin / kOneBitBlock,
                              .workers = worker.workers,
                              .worker = worker.worker};
    const auto state = [&](size_t i) { return own.unit.states[placed.states[i]].on_device(own.range); };
    const Tensor m = state(0), v = state(1), error = state(2), grad = own.unit.part(own.unit.grad, own.range);
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
    c.run(OneBitDirection{.state = step_state,
                          .records = exchange.records(),
                          .v = v,
                          .m = m,
                          .grad = grad,
                          .eps = o_.eps,
                          .average1 = placed.averages[0],
                          .average2 = placed.averages[1],
                          .blocks = blocks});
  }

  RuleOptions o_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_one_bit_adam(const RuleOptions& options) {
  return std::make_unique<OneBitAdamRule>(options);
}

}  // namespace athanor
