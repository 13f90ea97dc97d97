// The kernels of cuda/loss.cu run the op cases; also rows longer than shared memory, non-finite logits, and targets
// outside the vocabulary.
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/cuda/kernel_test.h"
#include "tests/ops/guarded.h"

namespace athanor {
namespace {

class Loss : public KernelTest {};

constexpr double kInf = std::numeric_limits<double>::infinity();

OpCase<CrossEntropy> cross_entropy(const std::string& name, DType dtype, const Shape& shape, int64_t vocab) {
  OpCase<CrossEntropy> c{cat(name, " ", shape, " ", dtype),
                         {.logits = tensor(dtype, shape),
                          .losses = tensor(DType::f32, {shape[0]}),
                          .targets = tensor(DType::i32, {shape[0]}),
                          .scale = tensor(DType::f32, {1}),
                          .inv_count = 0.25f,
                          .vocab = vocab}};
  c.values["scale"] = constant(2);
  c.values["targets"] = below(vocab);
  return c;
}

TEST_F(Loss, NeedsNoAlignment) { needs_no_alignment(CrossEntropy::kName, loss_cases, 5); }

TEST_F(Loss, VocabularyPartsNeedNoAlignment) {
  for (const char* op :
       {RowMax::kName, LogitSums::kName, CrossEntropy::kName, DistillSums::kName, DistilledCrossEntropy::kName})
    needs_no_alignment(op, vocab_part_cases, 5);
}
TEST_F(Loss, TopLogitsNeedNoAlignment) {
  for (const char* op : {TopLogits::kName, PickLogits::kName, CachedDistilledCrossEntropy::kName})
    needs_no_alignment(op, top_logits_cases, 9);
}

// Rows of which only a part fits in shared memory, and rows that end inside a batch of loads.
TEST_F(Loss, LongRowsMatchReference) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const int64_t columns : {8192, 8200, 30016}) {
    examine(cross_entropy("long", DType::f32, {2, columns}, columns - 3));
    examine(cross_entropy("long", DType::bf16, {2, columns}, columns));
  }
  examine(cross_entropy("longer than shared memory", DType::bf16, {1, 65536}, 65530));
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// One special logit at a time: -inf means that a token is impossible, NaN and +inf make loss and gradient NaN.
TEST_F(Loss, NonFiniteLogitsPropagate) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  for (const DType dtype : kFloats)
    for (const double special : {-kInf, kInf, double(NAN)})
      for (const int64_t vocab : {13, 300}) {
        auto c = cross_entropy(cat(special, " in each row, at the target in one"), dtype, {4, vocab + 3}, vocab);
        c.values["targets"] = listed({5, 6, 7, 8});
        c.values["logits"] = [=](uint64_t s, int64_t i) { return i % (vocab + 3) == 7 ? special : normal(0, 2)(s, i); };
        examine(c);
        c.name = cat(special, " everywhere");
        c.values["logits"] = constant(special);
        examine(c);
      }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// With split vocabularies, the max over a part skips NaN, and the sum is then NaN; if all logits are -inf, so is the
// max, and the sum is 0.
TEST_F(Loss, NonFiniteLogitsOfVocabularyPartsPropagate) {
  Examiner examine(make_cuda_backend, {.threads = {2}});
  constexpr int64_t kRows = 4, kPadded = 300;
  const VocabPart part{.first = 100, .count = 297, .total = 500};
  const Tensor rows = tensor(DType::f32, {kRows});
  for (const DType dtype : kFloats)
    for (const double special : {-kInf, kInf, double(NAN)})
      for (const bool everywhere : {false, true}) {
        const std::string name = cat(special, everywhere ? " everywhere " : " in each row ", dtype);
        const Init logits = [=](uint64_t s, int64_t i) {
          return everywhere || i % kPadded == 7 ? special : normal(0, 2)(s, i);
        };
        const Tensor z = tensor(dtype, {kRows, kPadded});
        examine(OpCase<RowMax>{name, {.max = rows, .x = z, .columns = part.count}, {{"x", logits}}, true});
        for (const float softcap : {0.0f, 5.0f}) {
          OpCase<LogitSums> c{cat(name, " softcap ", softcap),
                              {.sums = tensor(DType::f32, {2, kRows}),
                               .logits = z,
                               .max = rows,
                               .targets = tensor(DType::i32, {kRows}),
                               .part = part,
                               .softcap = softcap}};
          const bool none = everywhere && special == -kInf;
          c.values = {{"logits", logits}, {"max", constant(none ? special : special == kInf ? special : 9)}};
          c.values["targets"] = listed({106, 107, 20, -1});
          examine(c);
        }
      }
  EXPECT_TRUE(examine.findings().empty()) << examine.report();
}

// The host refuses such targets when data is read; the kernel cannot report them, but must not access memory with them.
TEST_F(Loss, TargetOutsideTheVocabularyGivesNanLoss) {
  const TestBackend b = make_cuda_backend(2);
  Guarded logits(*b.device, tensor(DType::f32, {2, 8}), 1), losses(*b.device, tensor(DType::f32, {2}), 1);
  Guarded targets(*b.device, tensor(DType::i32, {2}), 1), scale(*b.device, tensor(DType::f32, {1}), 1);
  logits.write(std::vector<std::byte>(2 * 8 * 4));
  scale.write(std::vector<std::byte>(4));
  std::vector<std::byte> bytes(2 * sizeof(int32_t));
  const int32_t values[] = {3, 2000000000};
  std::memcpy(bytes.data(), values, sizeof values);
  targets.write(bytes);
  b.ops->run(CrossEntropy{.logits = logits.tensor(),
                          .losses = losses.tensor(),
                          .targets = targets.tensor(),
                          .scale = scale.tensor(),
                          .inv_count = 1,
                          .vocab = 8},
             nullptr);
  const auto got = decoded(DType::f32, losses.read());
  EXPECT_NEAR(got[0], std::log(8.), 1e-6);
  EXPECT_TRUE(std::isnan(got[1])) << got[1];
  logits.read();
  EXPECT_EQ(logits.damage(), std::nullopt);
}

// The target belongs to no rank, so no part has its logit.
TEST_F(Loss, TargetOutsideAllPartsGivesNanSums) {
  const TestBackend b = make_cuda_backend(2);
  Guarded logits(*b.device, tensor(DType::f32, {2, 8}), 1), sums(*b.device, tensor(DType::f32, {2, 2}), 1);
  Guarded targets(*b.device, tensor(DType::i32, {2}), 1), max(*b.device, tensor(DType::f32, {2}), 1);
  logits.write(std::vector<std::byte>(2 * 8 * 4));
  max.write(std::vector<std::byte>(2 * 4));
  std::vector<std::byte> bytes(2 * sizeof(int32_t));
  const int32_t values[] = {3, 16};
  std::memcpy(bytes.data(), values, sizeof values);
  targets.write(bytes);
  b.ops->run(LogitSums{.sums = sums.tensor(),
                       .logits = logits.tensor(),
                       .max = max.tensor(),
                       .targets = targets.tensor(),
                       .part = {.first = 8, .count = 8, .total = 16}},
             nullptr);
  const auto got = decoded(DType::f32, sums.read());
  EXPECT_EQ(got[0], 8);
  EXPECT_EQ(got[2], 0);
  EXPECT_TRUE(std::isnan(got[3])) << got[3];
}

#ifdef ATHANOR_EMULATED_GPU
TEST(LossBudget, AccessesAreCoalescedAndFreeOfConflicts) {
  const AccessBudget budget;
  constexpr int64_t n = 4, vocab = 8192 + 1024;
  CrossEntropy op{.losses = budget.tensor(DType::f32, {n}),
                  .targets = budget.tensor(DType::i32, {n}),
                  .scale = budget.tensor(DType::f32, {1}),
                  .vocab = vocab};
  CrossEntropy b = op, f = op;
  b.logits = budget.tensor(DType::bf16, {n, vocab});
  f.logits = budget.tensor(DType::f32, {n, vocab});
  CrossEntropy part = b;
  part.part = {.first = 0, .count = vocab, .total = 2 * vocab};
  part.max = budget.tensor(DType::f32, {n}), part.sums = budget.tensor(DType::f32, {2, n});
  const LogitSums sums{
      .sums = part.sums, .logits = b.logits, .max = part.max, .targets = op.targets, .part = part.part};
  EXPECT_EQ(budget.check(b, f, RowMax{.max = part.max, .x = b.logits, .columns = vocab}, sums, part), "");
}
#endif
}  // namespace
}  // namespace athanor
