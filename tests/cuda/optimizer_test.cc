// The kernels of cuda/optimizer.cu run the op cases; AdamW has the bits of the CPU backend, in one launch or several,
// and StepControl those of close_step() on the host.
#include <cmath>
#include <cstring>

#include "cpu/make_cpu.h"
#include "ops/step_control.h"
#include "tests/cuda/kernel_test.h"
#include "tests/ops/guarded.h"

namespace athanor {
namespace {

class Optimizer : public KernelTest {};

TEST_F(Optimizer, AdamW) { agrees_with_the_reference(AdamW::kName, optimizer_cases, 80); }
TEST_F(Optimizer, StepControl) { agrees_with_the_reference(StepControl::kName, optimizer_cases, 8); }
TEST_F(Optimizer, NeedsNoAlignment) { needs_no_alignment(AdamW::kName, optimizer_cases, 7); }

StepState running_state(int skip = 0) {
  return {.updates = 70001, .skip = skip, .grad_scale = 0.37f, .lr = 3e-3f, .bias1 = 0.9711f, .bias2 = 0.7713f};
}

AdamW adamw(int64_t n, DType master) {
  const Tensor f = tensor(DType::f32, {n});
  return {.master = tensor(master, {n}),
          .m = f,
          .v = f,
          .grad = f,
          .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
          .weight_decay = 0.1,
          .seed = 0x123456789abcdef,
          .stream = stream_of("rounding")};
}

// The host does not fuse products with sums, and neither does the kernel.
TEST_F(Optimizer, AdamWHasTheBitsOfTheCpu) {
  const CpuBackend cpu = make_cpu({.threads = 1});
  Examiner examine(make_cuda_backend, {.threads = {2}, .reference = {cpu.ops.get(), [](Ops*) {}}});
  int number = 0;
  for (const int64_t n : {1, 7, 2048, 2 * 2048 + 9})
    for (const DType master : {DType::f32, DType::bf16})
      for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{2}, (uint64_t{1} << 34) + 3}) {
        OpCase<AdamW> c{cat(n, " ", master, " from ", first), adamw(n, master), {}, true};
        c.op.first = first;
        c.op.decayed = n / 2;
        const int copy = number++ % 4;
        if (copy) c.op.param = tensor(kFloats[copy - 1], {n});
        c.values = {{"state", bytes_of(running_state())}, {"v", uniform(0, 1)}, {"m", normal(0, 0.3)}};
        c.values["grad"] = [](uint64_t s, int64_t i) { return normal(0, i % 5 ? 1 : 1e-12)(s, i); };
        examine(c);
      }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// Slices of one buffer, cut where no vector starts.
TEST_F(Optimizer, SeveralLaunchesAreOne) {
  const TestBackend b = make_cuda_backend(2);
  constexpr int64_t n = 2048 + 600;
  const auto run = [&](const std::vector<int64_t>& cuts, DType master) {
    AdamW whole = adamw(n, master);
    whole.param = tensor(DType::bf16, {n});
    whole.decayed = 1030;
    std::vector<std::unique_ptr<Guarded>> memory;
    for (const Field& field : whole.fields()) {
      memory.push_back(std::make_unique<Guarded>(*b.device, *field.t, 1));
      std::vector<std::byte> bytes(field.t->bytes());
      for (size_t i = 0; i < bytes.size(); ++i)  // small positive numbers in each type
        bytes[i] = std::byte(i % size_of(field.t->dtype) == size_of(field.t->dtype) - 1 ? 0x3c : (i * 7 + 3) % 251);
      const StepState state = running_state();
      if (std::string(field.name) == "state") std::memcpy(bytes.data(), &state, sizeof state);
      memory.back()->write(bytes);
      *field.t = memory.back()->tensor();
    }
    for (size_t k = 0; k + 1 < cuts.size(); ++k) {
      AdamW part = whole;
      for (const Field& field : part.fields())
        if (std::string(field.name) != "state") *field.t = field.t->slice(cuts[k], cuts[k + 1]);
      part.first = uint64_t(cuts[k]);
      part.decayed = whole.decayed - cuts[k];
      b.ops->run(part, nullptr);
    }
    std::vector<std::byte> all;
    for (const auto& m : memory) {
      const auto bytes = m->read();
      EXPECT_EQ(m->damage(), std::nullopt);
      if (m != memory.back()) all.insert(all.end(), bytes.begin(), bytes.end());  // state: its padding may differ
    }
    return all;
  };
  for (const DType master : {DType::f32, DType::bf16}) {
    const auto whole = run({0, n}, master);
    for (const auto& cuts : {std::vector<int64_t>{0, 333, 2048, n}, {0, 8, 1030, 1031, n}}) {
      const auto parts = run(cuts, master);
      const auto differs = std::mismatch(parts.begin(), parts.end(), whole.begin()).first;
      EXPECT_EQ(differs, parts.end()) << master << " byte " << differs - parts.begin();
    }
  }
}

TEST_F(Optimizer, RefusesMastersOfF16) {
  AdamW op = adamw(4, DType::f16);
  try {
    make_cuda_backend(1).ops->run(op, nullptr);
    FAIL() << "f16 masters ran";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("adamw.master is f16"), std::string::npos) << e.what();
  }
}

// Random states under random rules.
TEST_F(Optimizer, StepControlIsCloseStepBitForBit) {
  const TestBackend b = make_cuda_backend(1);
  Guarded memory(*b.device, tensor(DType::u8, {int64_t(sizeof(StepState))}), 1);
  for (uint64_t k = 0; k < 200; ++k) {
    const auto draw = [&](uint64_t i) { return random_bits(3, k, i); };
    StepState s;
    s.loss_sum = draw(0) % 9 == 0 ? INFINITY : double(draw(1)) * 1e-6;
    s.norm_sq = draw(2) % 9 == 0 ? NAN : std::exp(double(draw(3) % 60) - 30);
    s.updates = draw(4) % 120;
    s.skipped = draw(5) % 5;
    s.loss_scale = float(1u << draw(6) % 20);
    s.good_steps = int32_t(draw(7) % 4);
    s.hysteresis_left = int32_t(draw(8) % 3);
    const StepControl op{.state = memory.tensor(),
                         .schedule = {.style = DecayStyle(draw(9) % 4),
                                      .wsd = WsdDecay(draw(10) % 3),
                                      .lr = 1e-3,
                                      .min_lr = 1e-5 * double(draw(11) % 10),
                                      .warmup = int64_t(draw(12) % 20),
                                      .decay = int64_t(20 + draw(13) % 90),
                                      .wsd_decay = int64_t(1 + draw(14) % 20)},
                         .scaling = {.dynamic = draw(15) % 2 == 0, .window = 3},
                         .clip_grad = draw(16) % 3 == 0 ? 0.0 : 1.0,
                         .beta1 = 0.9,
                         .beta2 = 0.95};
    const auto* bytes = reinterpret_cast<const std::byte*>(&s);
    memory.write({bytes, bytes + sizeof s});
    b.ops->run(op, nullptr);
    close_step(s, op);
    EXPECT_EQ(std::memcmp(memory.read().data(), &s, sizeof s), 0) << "state " << k;
  }
}

#ifdef ATHANOR_EMULATED_GPU
TEST(OptimizerBudget, AccessesAreCoalescedAndFreeOfConflicts) {
  const AccessBudget budget;
  constexpr int64_t n = 4096;
  const Tensor f = budget.tensor(DType::f32, {n}), b = budget.tensor(DType::bf16, {n});
  AdamW op{.master = f,
           .param = b,
           .m = budget.tensor(DType::f32, {n}),
           .v = budget.tensor(DType::f32, {n}),
           .grad = budget.tensor(DType::f32, {n}),
           .state = budget.tensor(DType::u8, {int64_t(sizeof(StepState))})};
  AdamW rounded = op;
  rounded.master = b;
  rounded.param = {};
  EXPECT_EQ(budget.check(op, rounded, StepControl{.state = op.state}), "");
}
#endif
}  // namespace
}  // namespace athanor
