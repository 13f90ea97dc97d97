// Adapters on ranks that share a model give the losses of one rank, and any of them resumes the checkpoints of others.
#include <gtest/gtest.h>

#include "convert/hf_folder.h"
#include "convert/model_folder.h"
#include "tests/adapters/adapted_run.h"
#include "tests/pipeline/rig.h"
#include "tests/train/trainer_ranks.h"

namespace athanor {
namespace {

pipeline::Setting of_stages(ModelType type, int stages, PipelineSchedule schedule) {
  pipeline::Setting s{.stages = stages, .schedule = schedule};
  s.of = {.type = type, .accumulation = 4, .lora = 3, .dropout = 0.2, .lr = 1e-2, .sequences = 16};
  s.of.step = s.of.sequences;
  const bool two = schedule == PipelineSchedule::interleaved || schedule == PipelineSchedule::zbv;
  if (two) s.chunks = 2;
  return s;
}

TEST(AdaptersOfStages, EveryScheduleMatchesOneRank) {
  using enum PipelineSchedule;
  for (const auto& [type, schedule] : {std::pair{ModelType::llama, gpipe},
                                       {ModelType::gpt2, one_f_one_b},
                                       {ModelType::dots1, interleaved},
                                       {ModelType::llama, zb1p},
                                       {ModelType::mixtral, zbv}})
    for (const bool tied : {false, true}) {
      pipeline::Setting s = of_stages(type, 2, schedule);
      s.of.tied = tied, s.of.nf4 = tied;
      const pipeline::Curve want = pipeline::train(s.alone());
      pipeline::expect_same(want, pipeline::train(s), 1e-5, s.name());
      s.of.shards = 2, s.of.accumulation = 2, s.of.stage = 1;
      pipeline::expect_same(want, pipeline::train(s), 1e-5, s.name());
    }
}

// The first stage alone has the adapters of a layer next to the table that the last one has, too.
TEST(AdaptersOfStages, LayersNextToATiedTableMatchOneRank) {
  std::vector<double> losses[2];
  for (const int stages : {1, 2})
    run_ranks(stages, [&](std::unique_ptr<Communicator> world) {
      const CpuBackend cpu = make_cpu({.threads = 1});
      ProcessMesh mesh(std::move(world), {.stages = stages});
      pipeline::Setting s = of_stages(ModelType::llama, stages, PipelineSchedule::one_f_one_b);
      s.of.tied = true;
      ModelConfig model = pipeline::model_of(s);
      model.model_type = ModelType::athanor, model.smear_channels = 8;
      Engine engine(model, pipeline::options_of(s), {*cpu.device, *cpu.ops, mesh});
      engine.commit();
      engine.init_weights();
      std::vector<double> mine;
      for (int64_t step = 0; step < 3; ++step) {
        ranks::accumulate(engine, step);
        mine.push_back(engine.finish_step().loss);
      }
      if (mesh.world().rank() == 0) losses[stages - 1] = mine;
    });
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses[0].at(i), losses[1].at(i), 1e-5 * losses[0].at(i));
}

TEST(AdaptersOfStages, RecomputationChangesNoBit) {
  pipeline::Setting s = of_stages(ModelType::llama, 4, PipelineSchedule::one_f_one_b);
  s.of.variant = LoraVariant::dora;
  const pipeline::Curve want = pipeline::train(s);
  for (const auto recompute : {Recompute::Granularity::selective, Recompute::Granularity::full}) {
    s.of.recompute = recompute;
    pipeline::expect_equal(want, pipeline::train(s), s.name());
  }
}

// Meshes of tensor-parallel ranks, with more ranks than key heads, and with stages and context-parallel ranks.
TEST(AdaptersOfTensorRanks, LossesMatchOneRank) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2, ModelType::dots1, ModelType::deepseek_v3,
                               ModelType::gpt_oss, ModelType::athanor})
    for (const LoraVariant variant : {LoraVariant::lora, LoraVariant::dora}) {
      ranks::Setting s{.type = type, .lora = 3, .variant = variant, .dropout = 0.2, .eps = 1e-5, .length = 8};
      s.lr = 1e-2, s.bare_end = type == ModelType::athanor;
      const ranks::Curve want = ranks::train(s, 4);
      EXPECT_GT(want.norms.front(), 0);
      for (const int tensor : {2, 4})
        for (const bool sequence : {false, true}) {
          if (has_experts(type) && !sequence) continue;             // experts need it
          if (type == ModelType::athanor && tensor == 4) continue;  // value embeddings of two key heads
          s.tensor = tensor, s.sequence = sequence, s.beside = sequence && tensor == 2;
          s.stage = tensor == 2 ? 3 : 0, s.shards = tensor == 2 ? 2 : 1;
          ranks::expect_same(want, ranks::train(s, 4), 1e-5, s.name());
        }
    }
}

TEST(AdaptersOfTensorRanks, SomeTargetsAndOtherOptimizersMatchOneRank) {
  for (const RuleName rule : {RuleName::adamw, RuleName::muon})
    for (const auto& targets : {std::vector<std::string>{"k_proj", "v_proj"}, {"q_proj", "up_proj"}, {"o_proj"}}) {
      ranks::Setting s{.lora = 3, .targets = targets, .lr = 1e-2, .eps = 1e-5, .rule = rule, .length = 8};
      const ranks::Curve want = ranks::train(s, 4);
      s.tensor = 4, s.sequence = true, s.recompute = Recompute::Granularity::full;
      ranks::expect_same(want, ranks::train(s, 4), 1e-5, cat(targets[0], " ", s.name()));
    }
}

TEST(AdaptersOfTensorRanks, RecomputationChangesNoBit) {
  for (const LoraVariant variant : {LoraVariant::lora, LoraVariant::dora})
    ranks::expect_repetition_and_recomputation_change_no_bit(
        {.shards = 2, .lora = 3, .variant = variant, .dropout = 0.2, .tensor = 2, .sequence = true, .length = 8});
}

TEST(AdaptersOfContextRanks, LossesMatchOneRank) {
  for (const bool ring : {false, true}) {
    pipeline::Setting s = of_stages(ModelType::qwen2, 1, PipelineSchedule::one_f_one_b);
    s.of.dropout = 0, s.of.length = 16, s.of.eps = 1e-5;
    const pipeline::Curve want = pipeline::train(s.alone());
    s.of.context = 2, s.of.ring = ring, s.of.stage = 1;
    pipeline::expect_same(want, pipeline::train(s), 1e-5, s.name());
    s.of.tensor = s.stages = 2, s.of.sequence = ring;
    pipeline::expect_same(want, pipeline::train(s), 1e-5, s.name());
  }
}

// Whole runs on ranks that are threads.
class AdaptedMesh : public AdaptedRun {
 protected:
  void run_on(const MeshSizes& sizes, const Config& c) {
    ::testing::internal::CaptureStdout();
    run_ranks(sizes.ranks(), [&](std::unique_ptr<Communicator> world) {
      const CpuBackend cpu = make_cpu({.threads = 1});
      ProcessMesh mesh(std::move(world), sizes);
      testing::Asked asked;
      Trainer trainer(c, Backend{*cpu.device, *cpu.ops, mesh, nullptr, &mesh.world()},
                      {.stop = asked, .program = {.version = "test", .command = {}, .libraries = {}}});
      EXPECT_EQ(trainer.run(), Exit::done);
    });
    ::testing::internal::GetCapturedStdout();
  }
  std::map<std::string, std::vector<std::byte>> saved(const std::string& run, int64_t step) {
    return ranks::tensors_of(cat(path(run), "/", step_folder(step)));
  }
  // Runs on ranks resume to the bit, and in turns with one rank within rounding; all end with the loss of one rank.
  void expect_runs_of_one_rank(const MeshSizes& sizes, const std::string& name, std::vector<std::string> options) {
    const std::string one = "one_" + name, whole = "whole_" + name, parts = "parts_" + name, turns = "turns_" + name;
    ASSERT_EQ(run(config(one, options)), Exit::done);
    const std::vector<std::string> mesh = {
        cat("tensor_parallel_size=", sizes.tensor), cat("pipeline_parallel_size=", sizes.stages),
        cat("context_parallel_size=", sizes.context), cat("sequence_parallel=", sizes.tensor > 1 ? "true" : "false")};
    const auto on_mesh = [&](std::vector<std::string> set) {
      set.insert(set.end(), mesh.begin(), mesh.end());
      return set;
    };
    run_on(sizes, config(whole, on_mesh(options)));
    options.push_back("train_iters=3");
    run_on(sizes, config(parts, on_mesh(options)));
    ASSERT_EQ(run(config(turns, options)), Exit::done);
    options.pop_back();
    run_on(sizes, config(parts, on_mesh(options)));
    run_on(sizes, config(turns, on_mesh(options)));
    EXPECT_EQ(saved(parts, 8), saved(whole, 8)) << name;
    const double want = history(one).evals.back().loss;
    for (const std::string& each : {whole, turns})
      EXPECT_NEAR(history(each).evals.back().loss, want, 1e-5 * want) << each;
    write_hf_folder(ModelFolder(path(whole)), path("merged_" + name), {.dtype = DType::f32});
    ASSERT_EQ(run(config("again_" + name, {"train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0",
                                           "eval_interval=1", "init_from=" + path("merged_" + name)})),
              Exit::done);
    EXPECT_NEAR(history("again_" + name).evals.back().loss, want, 1e-5 * want) << name;
    options.insert(options.end(),
                   {"lora.adapter=" + path(one), "train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0"});
    run_on(sizes, config("more_" + name, on_mesh(options)));
    const auto first = saved(one, 8), second = saved("more_" + name, 1);
    for (const auto& [tensor, bytes] : first)
      EXPECT_TRUE(!tensor.starts_with("model ") || second.at(tensor) == bytes) << tensor;
  }
};

TEST_F(AdaptedMesh, RunsOnStagesAreThoseOfOneRank) {
  const MeshSizes sizes{.stages = 2};
  ASSERT_NO_FATAL_FAILURE(expect_runs_of_one_rank(sizes, "dora", adapted({"lora.variant=dora"}, {})));
  ASSERT_NO_FATAL_FAILURE(
      expect_runs_of_one_rank(sizes, "one_stage", adapted({R"(lora.targets=["layers.0.self_attn.q_proj"])"}, {})));
}

TEST_F(AdaptedMesh, RunsOnTensorAndContextRanksAreThoseOfOneRank) {
  ASSERT_NO_FATAL_FAILURE(expect_runs_of_one_rank({.tensor = 2}, "tensor", adapted({"lora.dropout=0.2"}, {})));
  ASSERT_NO_FATAL_FAILURE(expect_runs_of_one_rank({.tensor = 2}, "dora", adapted({"lora.variant=dora"}, {})));
  ASSERT_NO_FATAL_FAILURE(
      expect_runs_of_one_rank({.stages = 2, .context = 2, .tensor = 2}, "all", adapted({"lora.alpha=3"}, {})));
}

}  // namespace
}  // namespace athanor
