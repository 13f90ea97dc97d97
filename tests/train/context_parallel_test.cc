// Context parallelism gives the same run as one rank: initial weights bit for bit, losses and gradient norms within
// rounding, checkpoints that any number of ranks resumes. Ranks send what docs/distributed.md says. Missing sums of dK
// and dV, positions of the wrong chunk, targets shifted after splitting, and losses counted twice are detected.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <numeric>

#include "tests/sanitized.h"
#include "tests/train/watched_group.h"

namespace athanor::ranks {
namespace {
using G = Recompute::Granularity;

constexpr int64_t kTokens = 16;  // per sequence: two to four in a chunk

std::vector<Setting> all_groups() {
  std::vector<Setting> all;
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const bool tied : {false, true})
      for (const int context : {2, 4})
        for (const auto& [shards, stage] : {std::pair{1, 0}, {2, 0}, {2, 1}, {1, 2}, {2, 3}})
          for (const auto recompute : {G::none, G::selective, G::full})
            for (const int64_t window : {0, 5})
              for (const bool documents : {false, true})
                all.push_back({.type = type,
                               .tied = tied,
                               .shards = shards,
                               .stage = stage,
                               .accumulation = stage == 1 ? 2 : 1,
                               .recompute = recompute,
                               .masked = true,
                               .z_loss = tied ? 0.1 : 0,
                               .softcap = tied ? 0 : 0.5,
                               .context = context,
                               .length = kTokens,
                               .window = window,
                               .documents = documents});
  return all;
}

// A sample of all groups; all of them with ATHANOR_FULL=1 (scripts/test.sh --all).
TEST(ContextParallel, LossesAndNormsMatchOneRank) {
  const auto every = size_t(testing::every_case(kSanitized ? 67 : 23));  // coprime to the numbers of choices
  std::map<std::string, Curve> one;
  const auto all = all_groups();
  for (size_t i = 0; i < all.size(); i += every) {
    const Setting& s = all[i];
    const std::string key = alone(s).name();
    if (!one.contains(key)) one[key] = train(alone(s), 5);
    expect_same_curve(one[key], train(s, 5), 1e-5, s.name());
  }
}

TEST(ContextParallel, EveryFamilyMatchesOneRankWithTensorParallelism) {
  for (const ModelType type : {ModelType::qwen3, ModelType::mistral, ModelType::gpt2, ModelType::athanor})
    for (const bool sequence : {false, true}) {
      const Setting s{.type = type,
                      .shards = 2,
                      .stage = 3,
                      .tensor = 2,
                      .sequence = sequence,
                      .vocab = 131,
                      .context = 2,
                      .length = kTokens,
                      .window = type == ModelType::mistral ? 6 : 0,
                      .documents = sequence};
      expect_same_curve(train(alone(s), 4), train(s, 4), 1e-5, s.name());
    }
}

TEST(ContextParallel, EveryPrecisionAndOptimizerMatchesOneRank) {
  for (const auto& [precision, master, moments] :
       {std::tuple{"bf16", DType::i16, DType::bf16}, {"fp16", DType::f32, DType::f32}}) {
    const Setting s{.type = ModelType::gpt2,
                    .precision = precision,
                    .master = master,
                    .stage = 2,
                    .moments = moments,
                    .context = 2,
                    .length = kTokens};
    const Curve want = train(alone(s)), got = train(s);
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], 5e-3 * want.losses[i]) << s.name();
  }
  for (const RuleName rule : {RuleName::muon, RuleName::adafactor})
    for (const int stage : {0, 1}) {
      const Setting s{.stage = stage, .rule = rule, .context = 2, .length = kTokens};
      expect_same_curve(train(alone(s), 4), train(s, 4), 1e-5, cat(s.name(), " ", int(rule)));
    }
}

// Each rank has the logits of its own queries; together the ranks have those of whole sequences.
TEST(ContextParallel, QkClipScalesTheSameHeads) {
  const Setting s{.shards = 2, .stage = 1, .lr = 0.03, .qk_clip = 0.05, .context = 2, .length = kTokens};
  Setting one = alone(s);
  one.lr = s.lr, one.qk_clip = s.qk_clip;
  const Curve want = train(one, 4), got = train(s, 4);
  expect_same_curve(want, got, 1e-5, s.name());
  ASSERT_EQ(got.scores.size(), want.scores.size());
  for (size_t i = 0; i < want.scores.size(); ++i) EXPECT_NEAR(got.scores[i], want.scores[i], 1e-5 * want.scores[i]);
  EXPECT_GT(want.scores.back(), s.qk_clip);  // some heads were scaled
}

// Initial weights, repeated runs and recomputation give the same bits.
TEST(ContextParallel, RepeatsAndRecomputesBitExactly) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const Setting s{.type = type, .shards = 2, .stage = 3, .context = 2, .length = kTokens, .documents = true};
    EXPECT_EQ(train(s, 0).masters, train(alone(s), 0).masters) << s.name();
    expect_repetition_and_recomputation_change_no_bit(s);
  }
}

// The losses of all ranks together match those of whole sequences in order, and so does their sum.
TEST(ContextParallel, EvaluationsMatchOneRank) {
  std::vector<float> want;
  double want_sum = 0;
  for (const auto& [context, documents] : {std::pair{1, true}, {2, true}, {4, true}}) {
    const Setting s{.type = ModelType::gpt2, .context = context, .length = kTokens, .documents = documents};
    std::mutex mutex;
    int reporters = 0;
    on_ranks(s, [&](Engine& engine, ProcessMesh&, const CpuBackend&) {
      std::vector<int32_t> tokens, targets;
      for (int64_t row = 0; row < kSequences; ++row) append_sample(row, tokens, targets, true, kVocab, s.length);
      set_documents(engine, 0);
      const double sum = engine.evaluate(tokens, targets);
      const std::vector<float> losses = engine.losses();
      const std::lock_guard lock(mutex);
      reporters += engine.reports_losses() ? 1 : 0;
      if (want.empty()) want = losses, want_sum = sum;
      EXPECT_NEAR(sum, want_sum, 1e-6 * want_sum) << s.name();
      ASSERT_EQ(losses.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(losses[i], want[i], 1e-5) << s.name() << " token " << i;
    });
    EXPECT_EQ(reporters, 1) << s.name();
  }
}

// Every rank has equally many visible query-key pairs, and every query is on exactly one rank.
TEST(ContextParallel, ChunksBalanceVisiblePairs) {
  constexpr int64_t kSequencesHere = 3, kLengthHere = 24;
  std::vector<Span> whole;
  for (int32_t s = 0; s < kSequencesHere; ++s)
    whole.push_back(
        {s * int32_t(kLengthHere), int32_t(kLengthHere), s * int32_t(kLengthHere), int32_t(kLengthHere), 0, 0});
  for (const int64_t ranks : {2, 3, 4}) {
    std::vector<int32_t> all = ContextPart{ranks, 0, kSequencesHere, kLengthHere}.rows_of_ranks();
    std::sort(all.begin(), all.end());
    std::vector<int32_t> every(size_t(kSequencesHere * kLengthHere));
    std::iota(every.begin(), every.end(), 0);
    EXPECT_EQ(all, every);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      int64_t pairs = 0;
      for (const Span& span : ContextPart{ranks, rank, kSequencesHere, kLengthHere}.cut(whole))
        for (int64_t q = span.q_pos; q < span.q_pos + span.q_len; ++q) pairs += q + 1;
      EXPECT_EQ(pairs, kSequencesHere * kLengthHere * (kLengthHere + 1) / 2 / ranks) << rank << " of " << ranks;
    }
  }
}

// Per layer and micro-batch: K and V of all tokens are all-gathered in forward, in recomputed forward, and in backward;
// their gradients are reduce-scattered.
TEST(ContextParallel, TrafficMatchesTheDocumentedTable) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const int context : {2, 4})
      for (const char* precision : {"fp32", "bf16"})
        for (const auto recompute : {G::none, G::full}) {
          const Setting s{.type = type,
                          .precision = precision,
                          .accumulation = 2,
                          .recompute = recompute,
                          .context = context,
                          .length = kTokens};
          const WatchedCurve curve = train_watched(s, {.axis = Axis::cp}, 1);
          const ModelConfig m = tiny(s);
          const int64_t calls = kLayers * (recompute == G::full ? 4 : 3), micros = s.accumulation;
          const int64_t size = s.precision == std::string("fp32") ? 4 : 2;
          const int64_t bytes = calls * (kSequences / micros) * kTokens * 2 * m.num_key_value_heads * m.head_dim * size;
          EXPECT_EQ(curve.sent.row_calls, micros * calls) << s.name();
          EXPECT_EQ(curve.sent.row_bytes, micros * bytes) << s.name();
          EXPECT_EQ(curve.sent.calls, 0) << s.name();
          EXPECT_EQ(curve.scatters_in_f32, micros * kLayers) << s.name();
          EXPECT_EQ(curve.planned.all().row_calls, calls) << s.name();
          EXPECT_EQ(curve.planned.all().row_bytes, bytes) << s.name();
          EXPECT_DOUBLE_EQ(curve.traffic, double(context - 1) / context * double(micros * bytes)) << s.name();
        }
}

// Context parallelism reduces the activations of a rank, and shards optimizer states.
TEST(ContextParallel, ReducesMemoryOfEveryRank) {
  Setting s{.type = ModelType::gpt2, .stage = 1, .vocab = 512, .length = kTokens};
  const auto activations = [&](int context) {
    s.context = context;
    return double(planned_activations(s));
  };
  const double one = activations(1);
  EXPECT_LT(activations(2), 0.65 * one);
  EXPECT_LT(activations(4), 0.45 * one);
  s.context = 1;
  const Curve alone = train(s, 0);
  s.context = 4;
  const Curve four = train(s, 0);
  EXPECT_LT(double(four.optimizer), 0.3 * double(alone.optimizer));
  for (size_t i = 1; i < four.planned.size(); ++i) EXPECT_EQ(four.planned[i], four.planned[0]);
}

// Checkpoints hold whole tensors and the number of samples: any number of ranks resumes with the next samples.
TEST(ContextParallel, CheckpointsAreIndependentOfIt) {
  const testing::TempDir dir;
  const auto at = [&](const std::string& run, int64_t step) {
    return cat(dir.path(), "/", run, "/", step_folder(step));
  };
  const Setting one{.tied = true, .length = kTokens, .documents = true};
  Setting two = one;
  two.context = 2, two.stage = 2;
  const auto whole = run_part(one, "", 0, 6, cat(dir.path(), "/whole"));
  run_part(one, "", 0, 2, cat(dir.path(), "/one"));
  run_part(two, at("one", 2), 2, 4, cat(dir.path(), "/two"));
  for (const auto& [context, shards, tensor, stage] : {std::tuple{1, 1, 1, 0}, {1, 3, 1, 3}, {2, 1, 2, 1}}) {
    Setting s = one;
    s.context = context, s.shards = shards, s.tensor = tensor, s.stage = stage;
    const std::string name = cat("run", context, shards, tensor);
    const auto rest = run_part(s, at("two", 4), 4, 6, cat(dir.path(), "/", name));
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(rest[i], whole[i + 4], 1e-5 * whole[i + 4]) << name;
    run_part(s, at("two", 4), 4, 4, cat(dir.path(), "/", name, "copy"));
    EXPECT_EQ(tensors_of(at("two", 4)), tensors_of(at(name + "copy", 4))) << name;
  }
}

// A step of SGD exposes the gradients themselves: those of one layer's Q and K hardly affect the loss or the global
// norm.
TEST(ContextParallel, MissingSumsAreDetected) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const Setting s{.type = type, .clip = 0, .lr = 1, .rule = RuleName::sgd, .context = 2, .length = kTokens};
    const Curve want = train(alone(s), 1);
    const auto off = [&](Watch fault) {
      fault.axis = Axis::cp;
      return furthest(want, train_watched(s, fault, 1));
    };
    const float rounding = off({});
    EXPECT_LT(rounding, 1e-6);
    for (int64_t at = 0; at < 3 * kLayers; ++at)  // all-gathers of both layers; then an all-gather and a reduce-scatter
                                                  // of each
      for (const auto fault : {Watch::Fault::missing, Watch::Fault::reversed})
        EXPECT_GT(off({.fault = fault, .at = at}), 20 * rounding) << name_of(type) << " call " << at << int(fault);
  }
}

enum class Mistake : uint8_t { none, positions_of_the_other_piece, targets_shifted_after_cutting, losses_count_twice };

class Careless final : public Decorated<Careless> {
 public:
  Careless(Ops& inner, Mistake mistake) : inner_(inner), mistake_(mistake) {}
  const Ops& inner() const { return inner_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, Rope> || std::is_same_v<Op, EmbeddingFwd>) {
      if (mistake_ == Mistake::positions_of_the_other_piece && op.positions) {
        Op wrong = op;
        const auto words = change(wrong.positions, [](int64_t i, int64_t n) { return (i + n / 2) % n; });
        return inner_.run(wrong, scratch);
      }
    } else if constexpr (std::is_same_v<Op, CrossEntropy>) {
      if (mistake_ == Mistake::targets_shifted_after_cutting) {  // a chunk's last target is the next local one
        Op wrong = op;
        const auto words =
            change(wrong.targets, [](int64_t i, int64_t n) { return i % kPiece == kPiece - 1 ? (i + kPiece) % n : i; });
        return inner_.run(wrong, scratch);
      }
    } else if constexpr (std::is_same_v<Op, ReduceSum>) {
      if (mistake_ == Mistake::losses_count_twice && op.x.numel() > 1) inner_.run(op, scratch);
    }
    inner_.run(op, scratch);
  }

 private:
  // Replaces t by its elements permuted by index(), stored in the vector that is returned.
  template <class Index>
  static std::vector<int32_t> change(Tensor& t, Index&& index) {
    std::vector<int32_t> words;
    for (int64_t i = 0; i < t.numel(); ++i) words.push_back(t.as<int32_t>()[index(i, t.numel())]);
    t.data = words.data();
    return words;
  }
  static constexpr int64_t kPiece = kTokens / 4;
  Ops& inner_;
  Mistake mistake_;
};

TEST(ContextParallel, DetectsMistakes) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const Setting s{.type = type, .context = 2, .length = kTokens};
    const Curve want = train(alone(s));
    for (const Mistake mistake : {Mistake::none, Mistake::positions_of_the_other_piece,
                                  Mistake::targets_shifted_after_cutting, Mistake::losses_count_twice}) {
      EXPECT_EQ(shows_with<Careless>(s, want, mistake), mistake != Mistake::none) << name_of(type) << int(mistake);
    }
  }
}

}  // namespace
}  // namespace athanor::ranks
