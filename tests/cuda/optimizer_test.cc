// The kernels of cuda/update/optimizer.cu and lamb.cu run the op cases; AdamW is bit-identical to the CPU backend, in
// one launch or several, and StepControl to close_step() on the host.
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "cpu/make_cpu.h"
#include "ops/step_control.h"
#include "tests/cuda/kernel_test.h"
#include "tests/ops/guarded.h"

namespace athanor {
namespace {

class Optimizer : public KernelTest {};

TEST_F(Optimizer, NeedsNoAlignment) {
  needs_no_alignment(AdamW::kName, optimizer_cases, 7);
  needs_no_alignment(AdamW8bit::kName, optimizer_cases, 5);
  needs_no_alignment(ScheduleFreeAdamW::kName, optimizer_cases, 5);
  needs_no_alignment(AdamDirection::kName, optimizer_cases, 5);
  needs_no_alignment(ScaleOutputs::kName, optimizer_cases, 5);
  needs_no_alignment(QkClip::kName, qk_clip_cases, 5);
}
TEST_F(Optimizer, SplitMastersNeedNoAlignment) {
  needs_no_alignment(SplitMaster::kName, optimizer_cases, 3);
  needs_no_alignment(JoinMaster::kName, optimizer_cases, 3);
}

StepState running_state(int skip = 0) {
  return {.updates = 70001, .skip = skip, .grad_scale = 0.37f, .lr = 3e-3f, .corrections = {0.9711f, 0.7713f}};
}

// Dtypes of master weights, of the copy of the weights, and of the moments.
struct Kind {
  DType master;
  std::optional<DType> copy;
  DType m = DType::f32, v = DType::f32;
};
const Kind kKinds[] = {{DType::f32, {}},
                       {DType::f32, DType::bf16, DType::bf16, DType::bf16},
                       {DType::f32, DType::f16, DType::f32, DType::bf16},
                       {DType::bf16, {}, DType::bf16},
                       {DType::bf16, {}, DType::bf16, DType::bf16},
                       {DType::i16, DType::bf16},
                       {DType::i16, DType::bf16, DType::bf16, DType::bf16}};

AdamW adamw(int64_t n, const Kind& kind) {
  AdamW::Part part{.master = tensor(kind.master, {n}),
                   .m = tensor(kind.m, {n}),
                   .v = tensor(kind.v, {n}),
                   .grad = tensor(DType::f32, {n}),
                   .stream = stream_of("rounding"),
                   .moment_stream = stream_of("rounding of moments")};
  if (kind.copy) part.param = tensor(*kind.copy, {n});
  return {.parts = {part},
          .state = tensor(DType::u8, {int64_t(sizeof(StepState))}),
          .weight_decay = 0.1,
          .seed = 0x123456789abcdef};
}

// Neither the host nor the kernel uses fused multiply-add.
class OptimizerBits : public Optimizer {
 protected:
  using Try = std::function<void(const std::string& name, const AdamW&)>;
  static void are_those_of_the_cpu(const std::function<void(const Try&)>& cases) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    Examiner examine(make_cuda_backend, {.threads = {2}, .reference = {cpu.ops.get(), [](Ops*) {}}});
    cases([&](const std::string& name, const AdamW& op) {
      OpCase<AdamW> c{name, op, {}, true};
      c.values = {{"state", bytes_of(running_state())}, {"v", uniform(0, 1)}, {"m", normal(0, 0.3)}};
      c.values["grad"] = [](uint64_t s, int64_t i) { return normal(0, i % 5 ? 1 : 1e-12)(s, i); };
      if (op.parts[0].master.dtype == DType::i16)
        c.values["master"] = [](uint64_t s, int64_t i) { return double(int16_t(random_bits(9, s, uint64_t(i)))); };
      examine(c);
    });
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
  }
};

TEST_F(OptimizerBits, SingleTensorUpdatesMatchTheCpuBitExactly) {
  are_those_of_the_cpu([](const Try& check) {
    for (const int64_t n : {1, 7, 2048, 2 * 2048 + 9})
      for (const Kind& kind : kKinds)
        for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{2}, (uint64_t{1} << 34) + 3}) {
          AdamW op = adamw(n, kind);
          op.parts[0].first = first;
          op.parts[0].decayed = n / 2;
          check(cat(n, " ", kind.master, " from ", first), op);
        }
  });
}

TEST_F(OptimizerBits, MultiTensorUpdatesMatchTheCpuBitExactly) {
  are_those_of_the_cpu([](const Try& check) {
    for (const Kind& kind : kKinds) {
      AdamW op = adamw(2048, kind);
      for (const int64_t n : {5, 4096, 1, 3 * 2048 + 1, 2048}) {
        op.parts.push_back(adamw(n, kind).parts[0]);
        op.parts.back().stream += uint64_t(n);
        op.parts.back().first = uint64_t(64 * n);
        op.parts.back().decayed = n / 3;
      }
      check(cat("list of ", kind.master), op);
    }
    AdamW many = adamw(9, kKinds[6]);  // more tensors than one launch's table holds
    many.parts.resize(200, many.parts[0]);
    check("long list", many);
  });
}

// Slices of one buffer, cut at unaligned positions.
TEST_F(Optimizer, SlicedLaunchesMatchOneLaunch) {
  const TestBackend b = make_cuda_backend(2);
  constexpr int64_t n = 2048 + 600;
  const auto run = [&](const std::vector<int64_t>& cuts, const Kind& kind) {
    AdamW whole = adamw(n, kind);
    whole.parts[0].decayed = 1030;
    std::vector<std::unique_ptr<Guarded>> memory;
    for (const Field& field : whole.fields()) {
      if (!*field.t) continue;
      memory.push_back(std::make_unique<Guarded>(*b.device, *field.t, 1));
      std::vector<std::byte> bytes(field.t->bytes());
      for (size_t i = 0; i < bytes.size(); ++i)  // small positive values in every dtype
        bytes[i] = std::byte(i % size_of(field.t->dtype) == size_of(field.t->dtype) - 1 ? 0x3c : (i * 7 + 3) % 251);
      const StepState state = running_state();
      if (std::string(field.name) == "state") std::memcpy(bytes.data(), &state, sizeof state);
      memory.back()->write(bytes);
      *field.t = memory.back()->tensor();
    }
    for (size_t k = 0; k + 1 < cuts.size(); ++k) {
      AdamW part = whole;
      for (const Field& field : part.fields())
        if (*field.t && std::string(field.name) != "state") *field.t = field.t->slice(cuts[k], cuts[k + 1]);
      part.parts[0].first = uint64_t(cuts[k]);
      part.parts[0].decayed = whole.parts[0].decayed - cuts[k];
      b.ops->run(part, nullptr);
    }
    std::vector<std::byte> all;
    for (const auto& m : memory) {
      const auto bytes = m->read();
      EXPECT_EQ(m->damage(), std::nullopt);
      if (m != memory.front()) all.insert(all.end(), bytes.begin(), bytes.end());  // state: its padding may differ
    }
    return all;
  };
  for (const Kind& kind : kKinds) {
    const auto whole = run({0, n}, kind);
    for (const auto& cuts : {std::vector<int64_t>{0, 333, 2048, n}, {0, 8, 1030, 1031, n}}) {
      const auto parts = run(cuts, kind);
      const auto differs = std::mismatch(parts.begin(), parts.end(), whole.begin()).first;
      EXPECT_EQ(differs, parts.end()) << kind.master << " byte " << differs - parts.begin();
    }
  }
}

// Random states with random options.
TEST_F(Optimizer, StepControlMatchesTheHostBitExactly) {
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
                         .averages = {{0.9, true}, {0.95}}};
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
  const auto op = [&](const Kind& kind) {
    AdamW all = adamw(4096, kind);
    all.parts.resize(2, all.parts[0]);
    for (const Field& field : all.fields())
      if (*field.t) *field.t = budget.tensor(field.t->dtype, field.t->shape);
    return all;
  };
  const AdamW split = op(kKinds[6]);
  const SplitMaster halve{split.parts[0].param, split.parts[0].master, split.parts[0].grad};
  const JoinMaster join{split.parts[0].grad, split.parts[0].param, split.parts[0].master};
  EXPECT_EQ(budget.check(split, op(kKinds[0]), op(kKinds[1]), op(kKinds[4]), op(kKinds[5]), halve, join,
                         StepControl{.state = split.state}),
            "");
}

TEST(OptimizerBudget, ScheduleFreeAccessesAreCoalesced) {
  const AccessBudget budget;
  const auto op = [&](DType master, std::optional<DType> copy, DType v) {
    const Shape n{4096};
    UpdatePart part{.master = budget.tensor(master, n),
                    .m = budget.tensor(DType::f32, n),
                    .v = budget.tensor(v, n),
                    .grad = budget.tensor(DType::f32, n)};
    if (copy) part.param = budget.tensor(*copy, n);
    return ScheduleFreeAdamW{.parts = {part}, .state = budget.tensor(DType::u8, {int64_t(sizeof(StepState))})};
  };
  EXPECT_EQ(budget.check(op(DType::f32, {}, DType::f32), op(DType::i16, DType::bf16, DType::bf16)), "");
}

// A step of LAMB, and per-output sums and scaling in both orders of a matrix.
TEST(OptimizerBudget, LambAndPerOutputAccessesAreCoalesced) {
  const AccessBudget budget;
  const Tensor state = budget.tensor(DType::u8, {int64_t(sizeof(StepState))});
  const auto f32 = [&](int64_t n) { return budget.tensor(DType::f32, {n}); };
  const int64_t rows = 64, cols = 256, n = rows * cols;
  const AdamDirection lamb{.parts = {{.w = f32(n), .m = f32(n), .v = f32(n), .grad = f32(n)}}, .state = state};
  const ScaleByTrustRatio scale{.parts = {{.grad = f32(n), .sums = budget.tensor(DType::f64, {2, 1})}}};
  OutputSquares squares{.parts = {}};
  ScaleOutputs outputs{.parts = {}};
  for (const bool columns : {false, true}) {
    const OutputRange range{0, cols, columns};
    squares.parts.push_back({budget.tensor(DType::f64, {columns ? cols : rows}), f32(n), range});
    outputs.parts.push_back({f32(n), f32(columns ? cols : rows), range});
  }
  EXPECT_EQ(budget.check(lamb, scale, squares, outputs), "");
}
#endif
}  // namespace
}  // namespace athanor
