// FP8/FP4 GEMMs with tensor and context parallelism: each rank quantizes its own part of a matrix, so the run matches
// one rank except for rounding; if blocks with a scale lie within parts, and with delayed scaling, the quantized values
// are identical.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "base/file.h"
#include "tests/sanitized.h"
#include "tests/train/ranks_rig.h"

namespace athanor::ranks {
namespace {

using G = Recompute::Granularity;

constexpr const char* kPrecisions[] = {"fp8_tensorwise", "fp8_delayed", "fp8_rowwise", "fp8_rowwise_gw_hp",
                                       "fp8_blockwise",  "mxfp8",       "nvfp4"};

Setting setting(const char* precision, int tensor, int context = 1, ModelType type = ModelType::llama) {
  return {.type = type,
          .precision = precision,
          .tensor = tensor,
          .kv_heads = type == ModelType::llama ? 4 : 0,
          .context = context,
          .hidden = 64,
          .intermediate = 128,
          .length = 8};
}

void expect_near(const Curve& want, const Curve& got, const Setting& s) {
  const bool four = s.precision == std::string("nvfp4");
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], (four ? 2e-3 : 1e-3) * want.losses[i]) << s.name() << " step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], (four ? 0.05 : 0.02) * want.norms[i]) << s.name() << " step " << i;
  }
}

TEST(LowPrecisionOnRanks, MatchesOneRankUpToRounding) {
  for (const char* precision : kPrecisions) {
    if (kSanitized && precision != std::string("fp8_blockwise")) continue;
    for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
      const Curve want = train(setting(precision, 1, 1, type), 4);
      for (const auto& [tensor, context, shards] : {std::tuple{2, 1, 2}, {4, 1, 1}, {1, 2, 1}, {2, 2, 1}}) {
        Setting s = setting(precision, tensor, context, type);
        s.shards = shards, s.stage = shards > 1 ? 3 : 0, s.ring = tensor == 1;
        expect_near(want, train(s, 4), s);
      }
    }
  }
}

// Each rank quantizes the rows that it has; experts, in bf16, are on other ranks.
TEST(LowPrecisionOnRanks, MixturesMatchOneRankUpToRounding) {
  for (const char* precision : {"fp8_delayed", "fp8_blockwise", "mxfp8"}) {
    const Setting one{.type = ModelType::dots1, .precision = precision, .hidden = 64, .intermediate = 128, .length = 8};
    const Curve want = train(one);
    for (const auto& [stage, experts, tensor] : {std::tuple{0, 2, 1}, {3, 2, 1}, {3, 1, 1}, {1, 2, 2}}) {
      Setting s = one;
      s.shards = 2, s.stage = stage, s.experts = experts, s.tensor = tensor, s.sequence = tensor > 1;
      expect_near(want, train(s), s);
    }
  }
}

// Rows are all-gathered before they are quantized, in forward and backward; only gradients of norms are summed in
// another order.
TEST(LowPrecisionOnRanks, SequenceParallelismRecomputationAndFp8AllGatherAreBitExact) {
  for (const char* precision : kPrecisions) {
    if (kSanitized && precision != std::string("fp8_tensorwise")) continue;
    for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
      Setting s = setting(precision, 2, 1, type);
      s.shards = 2, s.stage = 1;
      const Curve rows_of_all = train(s, 1);
      s.sequence = true;
      const Curve want = train(s);
      EXPECT_EQ(want.losses[0], rows_of_all.losses[0]) << s.name();
      EXPECT_NEAR(want.norms[0], rows_of_all.norms[0], 1e-6 * want.norms[0]) << s.name();
      for (const G recompute : {G::selective, G::full}) {
        s.recompute = recompute, s.keep_quantized = recompute != G::full;
        expect_equal(want, train(s), s.name());
      }
    }
  }
}

// The amax is reduced over all ranks, so that scales are those of one rank, in checkpoints of any number of ranks.
TEST(LowPrecisionOnRanks, AmaxHistoriesMatchOneRankAndResumeOnAnyRanks) {
  const testing::TempDir dir;
  std::map<std::string, std::vector<std::byte>> of[2];
  const auto folder = [&](int tensor) { return cat(dir.path(), "/", tensor); };
  for (const int tensor : {1, 2}) {
    Setting s = setting("fp8_delayed", tensor);
    s.lr = 0;  // weights do not change
    run_part(s, "", 0, 2, folder(tensor));
    of[tensor - 1] = tensors_of(cat(folder(tensor), "/", step_folder(2)));
  }
  int64_t histories = 0;
  for (const auto& [name, want] : of[0]) {
    if (name.find("amax_history") == std::string::npos) continue;
    ++histories;
    const auto& got = of[1].at(name);
    ASSERT_EQ(got.size(), want.size());
    std::vector<float> a(want.size() / sizeof(float)), b(a.size());
    std::memcpy(a.data(), want.data(), want.size());
    std::memcpy(b.data(), got.data(), got.size());
    const size_t length = a.size() / kMatrices;
    for (size_t i = 0; i < a.size(); ++i)
      if (Matrix(i / length) == Matrix::w)
        EXPECT_EQ(b[i], a[i]) << name << " " << i;
      else
        EXPECT_NEAR(b[i], a[i], 0.08 * a[i]) << name << " " << i;
  }
  EXPECT_EQ(histories, 2 * 4);
  Setting one = setting("fp8_delayed", 1), two = setting("fp8_delayed", 2);
  const auto want = run_part(one, cat(folder(1), "/", step_folder(2)), 2, 5, cat(dir.path(), "/a"));
  for (const auto& got : {run_part(two, cat(folder(1), "/", step_folder(2)), 2, 5, cat(dir.path(), "/b")),
                          run_part(one, cat(folder(2), "/", step_folder(2)), 2, 5, cat(dir.path(), "/c"))})
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-3 * want[i]);
}

using Statistics = std::map<std::pair<std::string, Operand>, QuantizeStatistics>;
Statistics statistics_of(const Setting& s) {
  Statistics all;
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), s.mesh());
    EngineOptions o = options(s);
    o.quantized = true;
    Backend backend{*cpu.device, *cpu.ops, mesh};
    if (s.ranks() > 1) backend.control = &mesh.world();
    Engine engine(tiny(s), o, backend);
    engine.commit();
    engine.init_weights();
    accumulate(engine, 0);
    engine.finish_step();
    const auto found = engine.take_quantized();
    if (mesh.world().rank() == 0)
      for (const QuantizedOperand& q : found)
        all[{engine.model().params().spec(q.parameter).name, q.operand}] = q.statistics;
  });
  return all;
}

// Sizes of parts are multiples of 128, including the number of tokens.
TEST(LowPrecisionOnRanks, StatisticsCountEveryElementOnce) {
  for (const char* precision : {"fp8_blockwise", "mxfp8", "fp8_delayed"}) {
    if (kSanitized && precision != std::string("mxfp8")) continue;
    Setting s = setting(precision, 1);
    s.hidden = s.intermediate = 256, s.lr = 0;
    const Statistics want = statistics_of(s);
    EXPECT_GE(want.size(), 2 * 4 * 3) << precision;
    for (const auto& [tensor, context, shards] : {std::tuple{2, 1, 2}, {1, 2, 1}, {2, 2, 1}})
      for (const bool sequence : {false, true}) {
        if (sequence && tensor == 1) continue;
        s.tensor = tensor, s.context = context, s.shards = shards, s.stage = shards > 1 ? 1 : 0, s.sequence = sequence;
        const Statistics got = statistics_of(s);
        for (const auto& [key, w] : want) {
          ASSERT_TRUE(got.contains(key)) << s.name();
          const QuantizeStatistics& g = got.at(key);
          const std::string what = cat(s.name(), " ", key.first, " ", name_of(key.second));
          if (matrix_of(key.second) == Matrix::w) {
            EXPECT_EQ(g.values, w.values) << what;
            EXPECT_EQ(g.underflowed, w.underflowed) << what;
            EXPECT_EQ(g.amax, w.amax) << what;
          } else {
            EXPECT_NEAR(g.values, w.values, 0.01 * w.values) << what;
            EXPECT_NEAR(g.amax, w.amax, 0.08 * w.amax) << what;
          }
        }
      }
  }
}

// Sizes that are multiples of 16 on one rank need not be so in parts.
TEST(LowPrecisionOnRanks, UnalignedPartsStayIn16Bits) {
  Setting s = setting("fp8_tensorwise", 4);
  s.intermediate = 96;
  const CpuBackend cpu = make_cpu({.threads = 1});
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    ProcessMesh mesh(std::move(world), s.mesh());
    const Engine engine(tiny(s), options(s), {*cpu.device, *cpu.ops, mesh});
    EXPECT_NE(
        engine.low_precision().find("6 of 8 linear layers in 8 bits; 2 in bf16, of sizes that are no multiple of 16 on "
                                    "each of 4 ranks"),
        std::string::npos)
        << engine.low_precision();
  });
}

}  // namespace
}  // namespace athanor::ranks
