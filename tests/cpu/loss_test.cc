// Cross-entropy against plain sums in double: vocabularies around the block sizes, padding, ignored targets,
// infinite and NaN logits.
#include <limits>

#include "tests/cpu/host_tensor.h"

namespace athanor {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Xent {
  int64_t n, vocab, padded;
  HostTensor logits, losses, targets, scale;
  Xent(DType type, int64_t rows, int64_t v, int64_t vp, double std = 3)
      : n(rows),
        vocab(v),
        padded(vp),
        logits(HostTensor::normal(type, {n, padded}, 1, 0, std)),
        losses(DType::f32, {n}),
        targets(DType::i32, {n}),
        scale(DType::f32, {1}) {
    for (int64_t i = 0; i < n; ++i) targets.set(i, double(random_bits(2, 3, uint64_t(i)) % uint32_t(vocab)));
    scale.set(0, 512);
  }
  CrossEntropy op(bool grad = true) const { return {logits.t, losses.t, targets.t, scale.t, 0.125f, vocab, grad}; }
};

void expect_loss_and_gradient(const Xent& before, const Xent& after) {
  const double tol = tolerance(before.logits.t.dtype), weight = 512 * 0.125;
  for (int64_t i = 0; i < before.n; ++i) {
    const int64_t row = i * before.padded, target = int64_t(before.targets[i]);
    double max = -kInf, sum = 0;
    for (int64_t c = 0; c < before.vocab; ++c) max = std::max(max, before.logits[row + c]);
    for (int64_t c = 0; c < before.vocab; ++c) sum += std::exp(before.logits[row + c] - max);
    expect_near(after.losses[i], std::log(sum) + max - before.logits[row + target], 4e-6, "loss", i);
    for (int64_t c = 0; c < before.padded; ++c) {
      const double p = c < before.vocab ? std::exp(before.logits[row + c] - max) / sum : 0;
      const double expected = weight * (p - (c == target ? 1 : 0));
      ASSERT_NEAR(after.logits[row + c], expected, tol * std::abs(expected) + 1e-6) << "dlogits " << i << ", " << c;
    }
  }
}

TEST(CrossEntropy, LossAndGradientMatchTheDefinition) {
  for (DType type : kFloats)
    for (int64_t vocab : {1, 2, 257, 2048, 2049, 5000}) {
      const Xent before(type, 3, vocab, vocab + vocab % 7);
      const Xent after = before;
      run_op(after.op());
      expect_loss_and_gradient(before, after);
    }
}

TEST(CrossEntropy, LossOnlyDoesNotModifyLogits) {
  const Xent before(DType::bf16, 4, 300, 320);
  const Xent after = before, with = before;
  run_op(after.op(false));
  run_op(with.op(true));
  EXPECT_EQ(after.logits.bytes(), before.logits.bytes());
  EXPECT_EQ(after.losses.bytes(), with.losses.bytes());
}

TEST(CrossEntropy, PaddingIsNeverRead) {
  const Xent clean(DType::f32, 2, 100, 128);
  Xent dirty = clean;
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t c = 100; c < 128; ++c) dirty.logits.set(i * 128 + c, c % 2 ? kInf : std::nan(""));
  run_op(clean.op());
  run_op(dirty.op());
  EXPECT_EQ(clean.losses.bytes(), dirty.losses.bytes());
  EXPECT_EQ(clean.logits.bytes(), dirty.logits.bytes());
}

TEST(CrossEntropy, IgnoredRowsGiveZeroLossAndGradient) {
  Xent x(DType::f16, 3, 40, 48);
  for (int64_t c = 0; c < 40; ++c) x.logits.set(48 + c, std::nan(""));
  x.targets.set(1, -1);
  x.targets.set(2, -100);
  run_op(x.op());
  EXPECT_NE(x.losses[0], 0);
  EXPECT_EQ(x.losses[1], 0);
  EXPECT_EQ(x.losses[2], 0);
  for (int64_t c = 48; c < 3 * 48; ++c) EXPECT_EQ(x.logits[c], 0);
}

// Logits of -inf have probability 0, even if they fill whole blocks; a target with logit -inf gives infinite loss.
TEST(CrossEntropy, MinusInfinityLogitsHaveZeroProbability) {
  const Xent before = [] {
    Xent x(DType::f32, 2, 6000, 6000);
    for (int64_t i = 0; i < 2; ++i)
      for (int64_t c = 0; c < 6000; ++c)
        if (i == 0 ? c < 4500 : c > 1000) x.logits.set(i * 6000 + c, -kInf);
    x.targets.set(0, 5000);
    x.targets.set(1, 7);
    return x;
  }();
  const Xent after = before;
  run_op(after.op());
  expect_loss_and_gradient(before, after);
  Xent low = before;  // the first finite block is far below 0
  for (int64_t c = 4500; c < 6000; ++c) low.logits.set(c, low.logits[c] - 1000);
  const Xent after_low = low;
  run_op(after_low.op());
  expect_loss_and_gradient(low, after_low);
  Xent lost = before;
  lost.targets.set(0, 3);
  run_op(lost.op());
  EXPECT_EQ(lost.losses[0], kInf);
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  const Xent before(DType::f32, 3, 3000, 3000, 1e4);
  const Xent after = before;
  run_op(after.op());
  expect_loss_and_gradient(before, after);
}

TEST(CrossEntropy, PropagatesNanAndInfinity) {
  for (double bad : {std::nan(""), kInf})
    for (int64_t at : {0, 1999, 4999}) {
      Xent x(DType::f32, 2, 5000, 5000);
      x.logits.set(at, bad);
      x.targets.set(0, 2);
      run_op(x.op());
      EXPECT_FALSE(std::isfinite(x.losses[0])) << bad << " at " << at;
      EXPECT_TRUE(std::isfinite(x.losses[1]));
    }
}

// RowMax, LogitSums and CrossEntropy on vocabulary shards, with the reductions over ranks in between, match
// CrossEntropy on all columns.
TEST(CrossEntropy, VocabularyPartsMatchTheWhole) {
  for (const DType type : kFloats)
    for (const auto& [parts, softcap] : {std::pair<int64_t, float>{1, 0}, {2, 0}, {3, 0}, {1, 5}, {2, 5}, {3, 5}}) {
      Xent whole(type, 9, 4301, 4301);
      for (int64_t c = 0; c < 2100; ++c)
        whole.logits.set(5 * 4301 + c, -kInf);  // all logits of the first of three shards
      whole.targets.set(2, -1), whole.targets.set(5, 4000);
      const Xent before = whole;
      CrossEntropy op = whole.op();
      op.z_loss = 0.125f;
      op.softcap = softcap;
      run_op(op);
      struct Part {
        VocabPart tokens;
        Xent x;
        HostTensor max, sums;
      };
      std::vector<Part> all;
      for (int64_t p = 0; p < parts; ++p) {
        const int64_t first = 4301 * p / parts, count = 4301 * (p + 1) / parts - first;
        Part& part = all.emplace_back(Part{{first, count, 4301},
                                           Xent(type, 9, count, count + 7),
                                           HostTensor(DType::f32, {9}),
                                           HostTensor(DType::f32, {2, 9})});
        for (int64_t i = 0; i < 9; ++i) {
          part.x.targets.set(i, before.targets[i]);
          for (int64_t c = 0; c < count; ++c)
            part.x.logits.set(i * (count + 7) + c, before.logits[i * 4301 + first + c]);
        }
        run_op(RowMax{.max = part.max.t, .x = part.x.logits.t, .columns = count});
      }
      const auto reduce = [&](HostTensor Part::*t, auto&& join) {
        for (int64_t i = 0; i < (all[0].*t).t.numel(); ++i) {
          double sum = (all[0].*t)[i];
          for (size_t p = 1; p < all.size(); ++p) sum = join(sum, (all[p].*t)[i]);
          for (Part& part : all) (part.*t).set(i, sum);
        }
      };
      reduce(&Part::max, [](double a, double b) { return std::max(a, b); });
      for (Part& part : all)
        run_op(LogitSums{.sums = part.sums.t,
                         .logits = part.x.logits.t,
                         .max = part.max.t,
                         .targets = part.x.targets.t,
                         .part = part.tokens,
                         .softcap = softcap});
      reduce(&Part::sums, std::plus());
      for (Part& part : all) {
        CrossEntropy mine = part.x.op();
        mine.z_loss = 0.125f, mine.softcap = softcap, mine.part = part.tokens, mine.max = part.max.t,
        mine.sums = part.sums.t;
        run_op(mine);
        for (int64_t i = 0; i < 9; ++i) {
          expect_near(part.x.losses[i], whole.losses[i], 1e-6, "loss", i);
          for (int64_t c = 0; c < part.tokens.count + 7; ++c) {
            const double want = c < part.tokens.count ? whole.logits[i * 4301 + part.tokens.first + c] : 0;
            const double close = (softcap > 0 ? 2 : 1) * tolerance(type);  // both are rounded
            ASSERT_NEAR(part.x.logits[i * (part.tokens.count + 7) + c], want, close * std::abs(want) + 1e-6)
                << parts << " parts, row " << i << " column " << c;
          }
        }
      }
    }
}

// final_logit_softcapping as transformers computes it, by the chain rule in double.
TEST(CrossEntropy, SoftCapMatchesTransformers) {
  for (const DType type : kFloats)
    for (const double cap : {0.5, 30.0, 1e5}) {
      Xent before(type, 3, 2049, 2056, 20);
      before.logits.set(5, 400), before.logits.set(6, -400);
      const Xent after = before;
      CrossEntropy op = after.op();
      op.softcap = float(cap);
      run_op(op);
      const double tol = tolerance(type), weight = 512 * 0.125;
      for (int64_t i = 0; i < 3; ++i) {
        double sum = 0;
        const int64_t row = i * 2056, target = row + int64_t(before.targets[i]);
        const auto z = [&](int64_t c) { return cap * std::tanh(before.logits[c] / cap); };
        for (int64_t c = row; c < row + 2049; ++c) sum += std::exp(z(c));
        expect_near(after.losses[i], std::log(sum) - z(target), 2e-5, "loss", i);
        for (int64_t c = row; c < row + 2049; ++c) {
          const double slope = 1 / std::pow(std::cosh(before.logits[c] / cap), 2);
          const double want = weight * slope * (std::exp(z(c)) / sum - (c == target ? 1 : 0));
          const double in_exponent = 0x1p-20 * std::abs(z(c));  // 4 ulp of the capped logit, and as much of the sum's
          ASSERT_NEAR(after.logits[c], want, (tol + in_exponent) * std::abs(want) + 1e-6)
              << type << " cap " << cap << " at " << c;
        }
      }
    }
}

TEST(CrossEntropy, TargetsOutsideTheVocabularyAreNamed) {
  Xent x(DType::f32, 3, 10, 16);
  x.targets.set(2, 10);
  try {
    run_op(x.op());
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "cross_entropy: targets[2] = 10 is outside the vocabulary of 10");
  }
}

TEST(CrossEntropy, BitsDoNotDependOnThreads) {
  const Xent start(DType::f32, 40, 5003, 5008);
  expect_same_bits([&](int threads) {
    const Xent x = start;
    run_op(x.op(), threads);
    return std::vector<HostTensor>{x.logits, x.losses};
  });
}

}  // namespace
}  // namespace athanor
