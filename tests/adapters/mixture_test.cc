// Adapters of models with experts: routers and routed experts are frozen, without gradients; ranks that share experts
// match one rank, also with experts in NF4; runs resume bit-exactly, and their checkpoints are read as merged models.
#include <gtest/gtest.h>

#include <algorithm>

#include "convert/adapter_folder.h"
#include "convert/floats.h"
#include "convert/hf_folder.h"
#include "convert/model_folder.h"
#include "tests/adapters/adapted_run.h"
#include "tests/adapters/one_batch.h"
#include "tests/expect_error.h"
#include "tests/train/ranks_rig.h"

namespace athanor {
namespace {

TEST(MixtureAdapters, RoutersAndExpertsHaveNoGradientMasterOrState) {
  for (const ModelType type : {ModelType::mixtral, ModelType::dots1}) {
    const auto weight_gradients = [&](int64_t rank) {
      Rig rig;
      Engine engine(small(type), options_of(Recompute::Granularity::none, {.rank = rank}), rig.backend());
      int64_t elements = 0, count = 0;
      for (const auto& unit : engine.model().params().units()) elements += unit->frozen ? 0 : unit->layout.numel;
      EXPECT_EQ(engine.memory().total(MemoryKind::gradients), size_t(elements) * 4) << name_of(type);
      EXPECT_EQ(engine.memory().total(MemoryKind::optimizer), size_t(elements) * 8) << name_of(type);
      const ModelConfig m = small(type);
      for (const Launch& launch : engine.micro_launches()) {
        const bool grouped = launch.op == std::string_view("grouped_gemm");
        count += grouped && launch.shape[0] == m.num_experts * m.hidden_size;
        count += !grouped && launch.shape == Shape{m.num_experts, m.hidden_size};
      }
      EXPECT_EQ(engine.expert_count_bytes() > 0, type == ModelType::dots1 && rank == 0);
      return count;
    };
    EXPECT_EQ(weight_gradients(0), type == ModelType::dots1 ? 2 : 4) << "of the layers' down and router";
    EXPECT_EQ(weight_gradients(7), 0) << name_of(type);
  }
}

TEST(MixtureAdapters, LossesMatchOneRank) {
  for (const ModelType type : {ModelType::mixtral, ModelType::dots1})
    for (const bool nf4 : {false, true}) {
      ranks::Setting s{.type = type, .lora = 3, .dropout = 0.2, .nf4 = nf4, .lr = 1e-2, .balance = 0.1};
      if (type == ModelType::mixtral) s.sequences = s.step = 90;
      const ranks::Curve want = ranks::train(s, 4);
      EXPECT_GT(want.norms.front(), 0);
      s.shards = type == ModelType::mixtral ? 5 : 3, s.accumulation = 2;
      for (const int stage : {0, 2, 3}) {
        s.stage = stage, s.experts = stage == 2 ? 1 : s.shards;
        s.recompute = stage == 3 ? Recompute::Granularity::full : Recompute::Granularity::none;
        ranks::expect_same(want, ranks::train(s, 4), 1e-5, s.name());
      }
    }
}

TEST(MixtureAdapters, RecomputationChangesNoBit) {
  ranks::Setting s{.type = ModelType::dots1, .shards = 2, .stage = 3, .lora = 2, .dropout = 0.2, .experts = 2};
  ranks::expect_repetition_and_recomputation_change_no_bit(s);
}

class MixtureRun : public AdaptedRun {
 protected:
  std::vector<std::string> model(const std::string& type) {
    std::vector<std::string> set = {"model.model_type=" + type, "model.num_experts=4", "model.num_experts_per_tok=2"};
    if (type == "mixtral") return set;
    set.insert(set.end(), {"model.moe_intermediate_size=8", "model.n_shared_experts=1", "model.first_k_dense_replace=1",
                           "model.num_key_value_heads=2"});
    return set;
  }
  std::vector<std::string> of(const std::string& type, const std::vector<std::string>& more = {}) {
    model_ = model(type);
    return adapted(model_, more);
  }
  std::vector<float> values(const std::string& folder, const std::string& name) {
    return AdaptedRun::values(ModelFolder(folder), name);
  }
};

TEST_F(MixtureRun, NPlusMStepsEqualNSaveResumeM) {
  ASSERT_NO_FATAL_FAILURE(expect_resume_to_the_bit("plain", of("dots1")));
  ASSERT_NO_FATAL_FAILURE(expect_resume_to_the_bit("nf4", of("dots1", {"lora.base_precision=nf4"})));
}

// The loss that the run had is that of the weights that its checkpoint is read as. Frozen weights, with the biases of
// routers, are those of the base.
TEST_F(MixtureRun, CheckpointHoldsTheMergedModel) {
  for (const char* base_precision : {"none", "nf4"}) {
    const std::string name = cat("run_", base_precision), merged = path(cat("merged_", base_precision));
    ASSERT_EQ(run(config(name, of("dots1", {cat("lora.base_precision=", base_precision)}))), Exit::done);
    write_hf_folder(ModelFolder(path(name)), merged, {.dtype = DType::f32});
    std::vector<std::string> once = model("dots1");
    once.insert(once.end(), {"train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0", "eval_interval=1",
                             "moe.router_bias_update_rate=0", "init_from=" + merged});
    ASSERT_EQ(run(config("again_" + name, once)), Exit::done);
    const double want = history(name).evals.back().loss;
    EXPECT_NEAR(history("again_" + name).evals.back().loss, want, 1e-6 * want) << base_precision;
    const std::string gate = "model.layers.1.mlp.gate.", expert = "model.layers.1.mlp.experts.3.up_proj.weight";
    for (const std::string& frozen : {gate + "weight", gate + "e_score_correction_bias"})
      EXPECT_EQ(values(merged, frozen), values(base(), frozen)) << frozen;
    EXPECT_EQ(values(merged, expert) == values(base(), expert), base_precision == std::string("none"));
    const std::string shared = "model.layers.1.mlp.shared_experts.up_proj.weight";
    EXPECT_NE(values(merged, shared), values(base(), shared));
  }
  EXPECT_NE(values(base(), "model.layers.1.mlp.gate.e_score_correction_bias"), std::vector<float>(4, 0.0f));
}

TEST_F(MixtureRun, ExportedPeftFolderLoadsAsTheSameModel) {
  ASSERT_EQ(run(config("run", of("dots1", {R"(lora.targets=["q_proj", "gate_proj"])"}))), Exit::done);
  write_peft_folder(ModelFolder(path("run")), path("peft"), {});
  const std::string json = read_file(path("peft") + "/adapter_config.json", 1 << 20);
  EXPECT_NE(json.find("\"model.layers.1.mlp.shared_experts.gate_proj\""), json.npos)
      << "the suffix gate_proj would also name routed experts: " << json;
  for (const char* name : {"model.layers.0.mlp.gate_proj.weight", "model.layers.1.self_attn.q_proj.weight"})
    EXPECT_EQ(values(path("peft"), name), values(path("run"), name)) << name;
}

TEST(MixtureAdapters, TargetsThatAreExpertsOrRoutersAreRefused) {
  for (const auto& [type, target] : {std::pair{ModelType::mixtral, "w1"},
                                     {ModelType::mixtral, "block_sparse_moe.gate"},
                                     {ModelType::qwen3_moe, "gate_proj"},
                                     {ModelType::dots1, "experts.0.gate_proj"}}) {
    Rig rig;
    const EngineOptions options = options_of(Recompute::Granularity::none, {.rank = 2, .targets = {target}});
    EXPECT_ERROR(Engine(small(type), options, rig.backend()),
                 cat("lora.targets: \"", target, "\" matches only routers or routed experts, which stay frozen"));
    EXPECT_ERROR(Engine(small(type), options, rig.backend()), "o_proj, q_proj");
  }
}

}  // namespace
}  // namespace athanor
