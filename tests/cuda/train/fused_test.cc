// The law with fused GEMM epilogues: recomputation changes no bit, whichever epilogues are fused, even though the
// library's GELU sees sums that are not rounded yet.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "tests/cuda/train/tiny_model.h"
#include "tests/train/harness.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/libraries/cublaslt/fake_cublaslt.h"
#endif

namespace athanor {
namespace {

using testing::Rig;
using testing::tiny;
using G = Recompute::Granularity;

constexpr int64_t kSeq = 16, kSteps = 2;

EngineOptions options(const char* precision, G granularity) {
  EngineOptions o;
  o.recipe = make_recipe(precision, DType::f32);
  o.recompute = {granularity, 1};
  o.seq_length = kSeq;
  o.micro_batch_size = 1;
  o.global_batch_size = 1;
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  return o;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<float> norms;
  std::vector<std::vector<float>> masters;
  bool operator==(const Outcome&) const = default;
};

// A backend that can be told to reject fused ops.
class Apart final : public Decorated<Apart> {
 public:
  Apart(Ops& ops, bool apart) : ops_(ops), apart_(apart) {}
  const Ops& inner() const { return ops_; }
  template <class Op>
  void on(const Op& op, void* scratch) {
    if constexpr (std::is_same_v<Op, AttentionBwd>) rotated_back += bool(op.cos_sin);
    if constexpr (std::is_same_v<Op, Rope>) rotated_behind += op.inverse;
    ops_.run(op, scratch);
  }
  bool fuses(const Gemm& op) const override { return !apart_ && ops_.fuses(op); }
  bool fuses(const AttentionBwd& op) const override { return !apart_ && ops_.fuses(op); }
  bool fuses(const GroupedGemm& op) const override { return !apart_ && ops_.fuses(op); }
  int64_t rotated_back = 0, rotated_behind = 0;  // gradients of q and k, by attention, and by a launch behind it

 private:
  Ops& ops_;
  bool apart_;
};

// Autotune choices: given ones, those of a search (stored in `choices`), or none.
enum class Choose : uint8_t { none, search, given };
struct Tuned {
  Choose how = Choose::none;
  bool apart = false;
  int64_t head_dim = 0;  // 0: that of tiny()
  std::string choices, report;
  int64_t rotated_back = 0, rotated_behind = 0;
  bool asks = false;  // whether layers ask for SwiGLU's gradient as an epilogue
  // Implementations that autotuning chose for GEMMs with SwiGLU, its gradient, and RoPE.
  std::string gated, gradient, rotated;
};

Outcome train(ModelType type, const EngineOptions& o, Tuned& tuned) {
  Rig rig;
  Apart ops(*rig.ops, tuned.apart);
  ModelConfig model = tiny(type);
  model.intermediate_size = 48;
  if (tuned.head_dim) model.head_dim = tuned.head_dim;
  Engine engine(model, o, {*rig.device, ops, *rig.mesh, rig.tuning});
  engine.memory();
  tuned.asks = std::ranges::count(engine.tunable().gemms, Epilogue::swiglu_gradient, &Gemm::epilogue) > 0;
  if (tuned.how == Choose::search) {
    tuned.report = rig.tuning->search(engine.tunable(), 600);
    tuned.choices = rig.tuning->export_choices();
    const auto products = engine.tunable().gemms;
    const auto way = [&](Epilogue epilogue) {
      const auto found = std::ranges::find(products, epilogue, &Gemm::epilogue);
      return found == products.end() ? std::string() : rig.tuning->time(*found, false).method.words;
    };
    tuned.gated = way(Epilogue::swiglu), tuned.gradient = way(Epilogue::swiglu_gradient);
    tuned.rotated = way(Epilogue::rope);
  }
  if (tuned.how == Choose::given) CHECK(rig.tuning->import_choices(tuned.choices).empty(), "other choices");
  engine.commit();
  engine.init_weights();
  Outcome out;
  for (int64_t s = 0; s < kSteps; ++s) {
    const testing::TinyBatch batch(s * 100, kSeq);
    PhaseClock clock;
    engine.micro_batch(batch.tokens, batch.targets, clock);
    const StepState state = engine.finish_step();
    out.losses.push_back(state.loss);
    out.norms.push_back(state.grad_norm);
  }
  tuned.rotated_back = ops.rotated_back, tuned.rotated_behind = ops.rotated_behind;
  for (const auto& unit : engine.model().params().units()) out.masters.push_back(rig.read<float>(unit->master));
  return out;
}

class Fused : public ::testing::TestWithParam<std::pair<ModelType, const char*>> {
 protected:
  void SetUp() override { set_times(true); }
  void TearDown() override { set_times(false); }
  // On the emulated GPU, makes GEMMs with an epilogue faster than those without.
  static void set_times([[maybe_unused]] bool fusing_pays) {
#ifdef ATHANOR_EMULATED_GPU
    { Rig opens_the_library; }
    auto& fake = emu::fakes::Installed<emu::fakes::FakeCublasLt>::get();
    fake.set_time(nullptr);
    if (fusing_pays)
      fake.set_time([](const cublasLtMatmulAlgo_t&, uint32_t epilogue) {
        return epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS ? 150.0 : 50.0;
      });
#endif
  }
};

TEST_P(Fused, RecomputationIsBitExact) {
  const auto [type, precision] = GetParam();
  Tuned tuned{.how = Choose::search};
  const Outcome none = train(type, options(precision, G::none), tuned);
#ifdef ATHANOR_EMULATED_GPU
  EXPECT_TRUE(std::regex_search(tuned.report, std::regex(R"( (\d+) of \1 epilogues fused)"))) << tuned.report;
  const bool gated = type == ModelType::llama;
  EXPECT_EQ(tuned.report.find("(2 by the program's own kernel)") != std::string::npos, gated) << tuned.report;
  EXPECT_EQ(tuned.gated, gated ? "the program's own kernel, tile 128x256, stages 4" : "");
  EXPECT_EQ(tuned.gradient, tuned.gated);
  EXPECT_EQ(tuned.choices.find("\"own\": true") != std::string::npos, gated);
  Tuned parts;
  EXPECT_NE(train(type, options(precision, G::none), parts), none);
#endif
  tuned.how = Choose::given;
  EXPECT_EQ(train(type, options(precision, G::none), tuned), none);
  EXPECT_EQ(train(type, options(precision, G::selective), tuned), none);
  EXPECT_EQ(train(type, options(precision, G::full), tuned), none);
}

// RoPE of Q and K fused into their GEMM, or in a separate launch: before autotuning; and with the autotuned choice
// under every recomputation.
TEST(RopeEpilogue, FusedRopeMatchesUnfusedOpsBitExactly) {
  constexpr ModelType kType = ModelType::qwen2;  // with a bias
  Tuned fused{.head_dim = 64}, apart{.apart = true, .head_dim = 64};
  const EngineOptions o = options("bf16", G::selective);
  EXPECT_EQ(train(kType, o, fused), train(kType, o, apart));
  Tuned tuned{.how = Choose::search, .head_dim = 64};
  const Outcome none = train(kType, options("bf16", G::none), tuned);
#ifdef ATHANOR_EMULATED_GPU
  EXPECT_EQ(tuned.rotated, "the program's own kernel, tile 128x256, stages 4");
#endif
  tuned.how = Choose::given;
  EXPECT_EQ(train(kType, options("bf16", G::full), tuned), none);
}

// Gradients of Q and K rotated back by the attention kernel, or by a separate launch; forward RoPE is fused into a
// GEMM, or follows QK-norm.
TEST(RopeOfAttention, FusedRopeBackwardMatchesUnfusedOpsBitExactly) {
  for (const ModelType type : {ModelType::llama, ModelType::qwen3})
    for (const G granularity : {G::none, G::selective, G::full}) {
      Tuned fused{.head_dim = 64}, apart{.apart = true, .head_dim = 64};
      const EngineOptions o = options("bf16", granularity);
      EXPECT_EQ(train(type, o, fused), train(type, o, apart));
      EXPECT_EQ(apart.rotated_back, 0);
      EXPECT_EQ(apart.rotated_behind, 2 * kSteps) << "a layer and step";
#ifdef ATHANOR_EMULATED_GPU
      EXPECT_EQ(fused.rotated_back, 2 * kSteps);
      EXPECT_EQ(fused.rotated_behind, 0);
#endif
    }
}

// Unfused GEMMs, as before autotuning, and layers that never request an epilogue.
TEST(SwigluGradient, FusedSwigluGradientMatchesUnfusedOpsBitExactly) {
  for (const G granularity : {G::none, G::selective}) {
    Tuned fused, apart{.apart = true};
    const EngineOptions o = options("bf16", granularity);
    EXPECT_EQ(train(ModelType::llama, o, fused), train(ModelType::llama, o, apart));
    EXPECT_FALSE(apart.asks);
#ifdef ATHANOR_EMULATED_GPU
    EXPECT_TRUE(fused.asks);
#endif
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Fused,
                         ::testing::Values(std::pair{ModelType::gpt2, "bf16"}, std::pair{ModelType::gpt2, "fp16"},
                                           std::pair{ModelType::llama, "bf16"}),
                         [](const auto& which) {
                           return std::string(name_of(which.param.first)) + "_" + which.param.second;
                         });

}  // namespace
}  // namespace athanor
