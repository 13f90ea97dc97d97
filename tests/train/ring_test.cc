// Ring attention: gives the same run as one rank, like all-gathered K and V (context_parallel_test.cc). Ranks send what
// docs/distributed.md says, none holds all keys, and parts that are missing or merged wrongly are detected.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/sanitized.h"
#include "tests/train/watched_group.h"

namespace athanor {
namespace {

using namespace ranks;
using G = Recompute::Granularity;

constexpr int64_t kRingTokens = 16;  // per sequence: two to four in a chunk

std::vector<Setting> all_rings() {
  std::vector<Setting> all;
  for (const ModelType type : {ModelType::llama, ModelType::gpt2})
    for (const int context : {2, 4})
      for (const auto& [shards, tensor, stage] :
           {std::tuple{1, 1, 0}, {2, 1, 1}, {1, 1, 2}, {2, 1, 3}, {1, 2, 1}, {2, 2, 3}})
        for (const auto recompute : {G::none, G::selective, G::full})
          for (const int64_t window : {0, 5})
            for (const bool documents : {false, true}) {
              if (context * shards * tensor > 8) continue;
              all.push_back({.type = type,
                             .shards = shards,
                             .stage = stage,
                             .accumulation = stage == 1 ? 2 : 1,
                             .recompute = recompute,
                             .masked = true,
                             .tensor = tensor,
                             .vocab = tensor > 1 ? 131 : kVocab,
                             .context = context,
                             .ring = true,
                             .length = kRingTokens,
                             .window = window,
                             .documents = documents});
            }
  return all;
}

// A sample; all with ATHANOR_FULL=1 (scripts/test.sh --all).
TEST(ContextParallelRing, LossesAndNormsMatchOneRank) {
  const auto every = size_t(testing::every_case(kSanitized ? 41 : 11));  // coprime to the numbers of choices
  const int steps = kSanitized ? 3 : 10;
  std::map<std::string, Curve> one;
  const auto all = all_rings();
  for (size_t i = 0; i < all.size(); i += every) {
    const Setting& s = all[i];
    const std::string key = alone(s).name();
    if (!one.contains(key)) one[key] = train(alone(s), steps);
    expect_same_curve(one[key], train(s, steps), 1e-5, s.name());
  }
}

// Q and K with norms, GQA, and windows that leave few chunks visible.
TEST(ContextParallelRing, EveryFamilyMatchesOneRank) {
  for (const ModelType type : {ModelType::qwen3, ModelType::mistral})
    for (const int context : {2, 4}) {
      const Setting s{.type = type,
                      .stage = 2,
                      .context = context,
                      .ring = true,
                      .length = 32,
                      .window = type == ModelType::mistral ? 3 : 0,
                      .documents = context == 2};
      expect_same_curve(train(alone(s), 4), train(s, 4), 1e-5, s.name());
    }
}

TEST(ContextParallelRing, EveryPrecisionMatchesOneRank) {
  for (const char* precision : {"bf16", "fp16"}) {
    const Setting s{.precision = precision, .stage = 2, .context = 4, .ring = true, .length = kRingTokens};
    const Curve want = train(alone(s)), got = train(s);
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], 5e-3 * want.losses[i]) << s.name();
  }
}

TEST(ContextParallelRing, RepeatsAndRecomputesBitExactly) {
  expect_repetition_and_recomputation_change_no_bit(
      {.shards = 2, .stage = 3, .context = 4, .ring = true, .length = kRingTokens, .documents = true});
}

TEST(ContextParallelRing, QkClipScalesTheSameHeads) {
  Setting s{.stage = 1, .lr = 0.03, .qk_clip = 0.05, .context = 4, .ring = true, .length = kRingTokens};
  Setting one = alone(s);
  one.lr = s.lr, one.qk_clip = s.qk_clip;
  const Curve want = train(one, 3), got = train(s, 3);
  expect_same_curve(want, got, 1e-5, s.name());
  for (size_t i = 0; i < want.scores.size(); ++i) EXPECT_NEAR(got.scores[i], want.scores[i], 1e-5 * want.scores[i]);
  EXPECT_GT(want.scores.back(), s.qk_clip);  // some heads were scaled
}

// Every visible query-key pair is in exactly one table of one rank; ranks have equally many pairs; and all keys that a
// rank's tables refer to have been sent to it.
TEST(ContextParallelRing, VisitsEveryVisiblePairOnce) {
  constexpr int32_t kSequencesHere = 2, kLengthHere = 24;
  std::vector<Span> sequences, documents;
  for (int32_t s = 0; s < kSequencesHere; ++s) {
    const int32_t at = s * kLengthHere;
    sequences.push_back({at, kLengthHere, at, kLengthHere, 0, 0});
    for (const auto& [begin, size] : {std::pair{0, 1}, {1, 9}, {10, 7}, {20, 4}})
      documents.push_back({at + begin, size, at + begin, size, 0, 0});
  }
  for (const std::vector<Span>& whole : {sequences, documents})
    for (const int64_t ranks : {2, 3, 4})
      for (const int64_t window : {0, 1, 2, 7, 100}) {
        using Seen = std::multiset<std::pair<int64_t, int64_t>>;
        const auto add = [&](Seen& seen, const Span& s, auto&& q_row, auto&& k_row) {
          for (int32_t q = 0; q < s.q_len; ++q)
            for (int32_t k = 0; k < s.k_len; ++k) {
              const int32_t distance = s.q_pos + q - s.k_pos - k;
              const bool visible = distance >= 0 && (window == 0 || distance < window);
              if (visible) seen.emplace(q_row(s.q_begin + q), k_row(s.k_begin + k));
            }
        };
        Seen want, got;
        for (const Span& s : whole)
          add(
              want, s, [](int32_t r) { return r; }, [](int32_t r) { return r; });
        const int64_t piece = kLengthHere / (2 * ranks);
        std::set<size_t> shares;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const Ring ring{ranks, rank, piece, window};
          const std::vector<Span> tables = ring.cut(whole);
          ASSERT_EQ(tables.size(), size_t(ring.tables()) * whole.size());
          const size_t before = got.size();
          size_t table = 0;
          const auto take = [&](const std::vector<Ring::Pair>& pairs, int64_t keys_of) {
            for (const Ring::Pair& pair : pairs) {
              const auto row_of = [&](int64_t of_rank, int64_t half) {
                return [=](int32_t row) {
                  return row / piece * kLengthHere + (half == 0 ? of_rank : 2 * ranks - 1 - of_rank) * piece +
                         row % piece;
                };
              };
              const size_t so_far = got.size();
              for (size_t i = 0; i < whole.size(); ++i)
                add(got, tables[table * whole.size() + i], row_of(rank, pair.q), row_of(keys_of, pair.k));
              ++table;
              const Ring::Halves sent = ring.seen(rank, keys_of);
              EXPECT_TRUE(got.size() == so_far || (sent.begin <= pair.k && pair.k < sent.end));
            }
          };
          take(ring.own_pairs(), rank);
          for (const int64_t hop : ring.hops()) take(ring.pairs(hop), ring.before(hop));
          shares.insert(got.size() - before);
        }
        EXPECT_EQ(got, want) << ranks << " ranks, window " << window;
        EXPECT_TRUE(window > 0 || whole.size() > sequences.size() || shares.size() == 1);
      }
}

TEST(ContextParallelRing, MaximumHalvesPerHopMatchesTheRanks) {
  for (const int64_t ranks : {2, 3, 4, 7, 16})
    for (const int64_t piece : {1, 3, 8})
      for (int64_t window = 0; window <= (2 * ranks + 1) * piece; ++window)
        for (int64_t hop = 1; hop < ranks; ++hop) {
          int64_t most = 0;
          for (int64_t rank = 0; rank < ranks; ++rank) {
            const Ring ring{ranks, rank, piece, window};
            most = std::max(most, ring.seen(ring.after(hop), rank).size());
          }
          EXPECT_EQ((Ring{ranks, 0, piece, window}.most_halves(hop)), most)
              << ranks << " ranks, pieces of " << piece << ", window " << window << ", hop " << hop;
        }
}

// K and V of a rank's tokens make each hop in forward, in recomputed forward, and in backward, per layer and
// micro-batch; gradients make as many hops in backward. A later rank does not need the second chunks of an earlier one.
TEST(ContextParallelRing, TrafficMatchesTheDocumentedTable) {
  for (const int context : {2, 4})
    for (const char* precision : {"fp32", "bf16"})
      for (const auto recompute : {G::none, G::full})
        for (const int64_t window : {0, 2}) {
          const Setting s{.precision = precision,
                          .accumulation = 2,
                          .recompute = recompute,
                          .context = context,
                          .ring = true,
                          .length = 32,
                          .window = window};
          const WatchedCurve curve = train_watched(s, ranks::Watch{.axis = Axis::cp}, 1);
          const ModelConfig m = tiny(s);
          const int64_t micros = s.accumulation, size = s.precision == std::string("fp32") ? 4 : 2;
          const int64_t half =
              kSequences / micros * s.length / (2 * context) * 2 * m.num_key_value_heads * m.head_dim * size;
          const int64_t hops =
              window == 0 ? context - 1 : std::min(context - 1, 2);  // to neighbours, in both directions
          const int64_t calls = kLayers * (recompute == G::full ? 4 : 3) * hops;
          for (int64_t rank = 0; rank < context; ++rank) {
            const auto& [got_calls, got_bytes] = curve.passes[size_t(rank)];
            EXPECT_EQ(got_calls, micros * calls) << s.name();
            const int64_t times = kLayers * micros * (recompute == G::full ? 2 : 1), more = kLayers * micros;
            // Halves sent to other ranks, and gradients of halves of theirs.
            const int64_t keys = rank * 2 + (context - 1 - rank), grads = rank + (context - 1 - rank) * 2;
            const int64_t want = half * (times * keys + more * (keys + grads));
            EXPECT_TRUE(window > 0 ? got_bytes < want : got_bytes == want) << s.name() << rank << " " << got_bytes;
          }
          EXPECT_EQ(int64_t(curve.planned_passes.all.size()), calls) << s.name();
          const int64_t most = window == 0 ? 2 : 1;
          EXPECT_EQ(curve.planned_passes.bytes(), calls * most * half) << s.name();
          EXPECT_EQ(curve.sent.row_calls + curve.sent.calls, 0) << s.name();
          EXPECT_DOUBLE_EQ(curve.traffic, double(micros * calls * most * half)) << s.name();
        }
}

// Because no rank holds all keys, a longer sequence needs less memory than with all-gather; the plan is what is
// allocated, which every run asserts.
TEST(ContextParallelRing, PlansLessMemoryThanAllGather) {
  std::map<bool, size_t> activations;
  for (const bool ring : {false, true}) {
    const Setting s{.type = ModelType::gpt2, .stage = 1, .context = 4, .ring = ring, .length = 256};
    std::mutex mutex;
    run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
      const CpuBackend cpu = make_cpu({.threads = 1});
      ProcessMesh mesh(std::move(world), s.mesh());
      ModelConfig model = tiny(s);
      model.num_hidden_layers = 1;
      Engine engine(model, options(s), {*cpu.device, *cpu.ops, mesh});
      const std::lock_guard lock(mutex);
      const size_t mine = engine.memory().total(MemoryKind::activations);
      EXPECT_TRUE(!activations.contains(ring) || activations[ring] == mine) << "all ranks plan alike";
      activations[ring] = mine;
    });
  }
  EXPECT_LT(double(activations[true]), 0.95 * double(activations[false]));
}

// A step of SGD exposes the gradients themselves. Each hop in turn delivers nothing: keys in forward, keys in backward,
// gradients on their way back.
TEST(ContextParallelRing, MissingHopsAreDetected) {
  const Setting s{.clip = 0, .lr = 1, .rule = RuleName::sgd, .context = 4, .ring = true, .length = kRingTokens};
  const Curve want = train(alone(s), 1);
  const auto off = [&](ranks::Watch fault) {
    fault.axis = Axis::cp;
    return furthest(want, train_watched(s, fault, 1));
  };
  const float rounding = off({});
  EXPECT_LT(rounding, 1e-6);
  const int64_t hops = s.context - 1;
  for (int64_t at = 0; at < 3 * hops * kLayers; at += kSanitized ? 5 : 1)
    EXPECT_GT(off({.fault = ranks::Watch::Fault::missing, .at = at}), 20 * rounding) << "pass " << at;
}

enum class RingMistake : uint8_t { none, part_left_out, merged_without_weights };

class CarelessMerges final : public Decorated<CarelessMerges> {
 public:
  CarelessMerges(Ops& inner, RingMistake mistake) : inner_(inner), mistake_(mistake) {}
  const Ops& inner() const { return inner_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, MergeAttention>) {
      if (mistake_ == RingMistake::part_left_out && ++merges_ % 5 == 0) return;
      if (mistake_ == RingMistake::merged_without_weights) {
        std::vector<float> zeros(size_t(op.lse.numel()), 0.0f);
        Op wrong = op;
        wrong.part_lse.data = zeros.data();
        return inner_.run(wrong, scratch);
      }
    }
    inner_.run(op, scratch);
  }

 private:
  Ops& inner_;
  RingMistake mistake_;
  int64_t merges_ = 0;
};

TEST(ContextParallelRing, DetectsMistakes) {
  const Setting s{.context = 2, .ring = true, .length = kRingTokens};
  const Curve want = train(alone(s));
  for (const RingMistake mistake :
       {RingMistake::none, RingMistake::part_left_out, RingMistake::merged_without_weights}) {
    EXPECT_EQ(shows_with<CarelessMerges>(s, want, mistake), mistake != RingMistake::none) << int(mistake);
  }
}

}  // namespace
}  // namespace athanor
