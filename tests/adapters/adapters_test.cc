// Low-rank adapters: gradients match the equivalent dense matrix; frozen weights have no gradient, master weights or
// optimizer state; a run resumes bit-exactly; a checkpoint that holds only adapters is read as the merged model.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <optional>

#include "convert/adapter_folder.h"
#include "convert/hf_folder.h"
#include "convert/model_folder.h"
#include "tests/adapters/adapted_run.h"
#include "tests/adapters/one_batch.h"
#include "tests/expect_error.h"
#include "tests/tiny_model.h"
#include "tests/train/ranks_rig.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

// With W + s B A in the place of W, loss and gradient dW of the dense model give those of the adapters: dA = s B^T dW,
// dB = s dW A^T.
void expect_gradients_of_dense(ModelType type, Recompute::Granularity recompute, const LoraOptions& lora) {
  OneBatch adapted(type, recompute, lora), dense(type, recompute, {});
  struct Module {
    std::string name;
    Values a, b;
    int64_t in, out;
  };
  std::vector<Module> modules;
  const bool in_out = type == ModelType::gpt2;
  const auto scale = float(lora.scale());
  for (const ParamStore::Piece& p : adapted.engine.model().params().pieces()) {
    const std::string& name = p.slice->name;
    if (!name.ends_with(".lora_A.weight")) continue;
    Module m{.name = name.substr(0, name.size() - 14), .a = adapted.value(name)};
    m.in = p.slice->shape[1], m.out = adapted.piece(m.name + ".lora_B.weight").slice->shape[0];
    for (int64_t i = 0; i < m.out * lora.rank; ++i) m.b.push_back(0.1f * std::sin(float(i + 1)));
    adapted.set(m.name + ".lora_B.weight", m.b);
    Values w = dense.value(m.name + ".weight");
    const Values ba = in_out ? product(m.a, true, m.b, true, m.in, lora.rank, m.out)
                             : product(m.b, false, m.a, false, m.out, lora.rank, m.in);
    for (size_t i = 0; i < w.size(); ++i) w[i] += scale * ba[i];
    dense.set(m.name + ".weight", w);
    modules.push_back(std::move(m));
  }
  ASSERT_FALSE(modules.empty());
  const double loss = adapted.run();
  EXPECT_NEAR(loss, dense.run(), 1e-5 * loss) << name_of(type);
  for (const Module& m : modules) {
    Values dw = dense.gradient(m.name + ".weight");
    for (float& x : dw) x *= scale;
    const Values da = product(m.b, true, dw, in_out, lora.rank, m.out, m.in);
    const Values db = product(dw, in_out, m.a, true, m.out, m.in, lora.rank);
    expect_close(da, adapted.gradient(m.name + ".lora_A.weight"), cat(name_of(type), " A of ", m.name));
    expect_close(db, adapted.gradient(m.name + ".lora_B.weight"), cat(name_of(type), " B of ", m.name));
  }
}

TEST(Adapters, GradientsMatchTheMergedDenseWeight) {
  using G = Recompute::Granularity;
  for (const ModelType type : {ModelType::gpt2, ModelType::llama, ModelType::qwen2, ModelType::qwen3})
    for (const G recompute : {G::none, G::selective, G::full})
      expect_gradients_of_dense(type, recompute, {.rank = 3, .alpha = 6});
}

// The gradient of the router's losses passes through frozen routers, too.
TEST(Adapters, GradientsMatchTheMergedDenseWeightBetweenExperts) {
  using G = Recompute::Granularity;
  for (const ModelType type : {ModelType::mixtral, ModelType::qwen2_moe, ModelType::qwen3_moe, ModelType::olmoe,
                               ModelType::dots1, ModelType::deepseek_v2, ModelType::gpt_oss})
    for (const G recompute : {G::none, G::full}) expect_gradients_of_dense(type, recompute, {.rank = 3, .alpha = 6});
  expect_gradients_of_dense(ModelType::dots1, G::selective, {.rank = 2, .targets = {"gate_proj", "o_proj"}});
}

TEST(Adapters, GradientsMatchWithRsloraAndSelectedTargets) {
  expect_gradients_of_dense(ModelType::llama, Recompute::Granularity::none,
                            {.rank = 4,
                             .alpha = 3,
                             .targets = {"q_proj", "v_proj", "model.layers.1.mlp.up_proj"},
                             .variant = LoraVariant::rslora});
  expect_gradients_of_dense(ModelType::gpt2, Recompute::Granularity::selective, {.rank = 2, .targets = {"mlp.c_proj"}});
}

TEST(Adapters, OnlyAdaptersHaveGradientsMasterWeightsAndStates) {
  Rig rig;
  Engine engine(small(ModelType::llama), options_of(Recompute::Granularity::none, {.rank = 2}), rig.backend());
  int64_t elements = 0;
  for (const auto& unit : engine.model().params().units()) {
    const bool trained = unit->name.find("lora") != std::string::npos || !unit->frozen;
    EXPECT_EQ(bool(unit->master.shape.rank), trained) << unit->name;
    EXPECT_EQ(bool(unit->grad.shape.rank), trained) << unit->name;
    if (trained) elements += unit->layout.numel;
  }
  const MemoryPlan& plan = engine.memory();
  EXPECT_EQ(plan.total(MemoryKind::gradients), size_t(elements) * 4);
  EXPECT_EQ(plan.total(MemoryKind::masters), size_t(elements) * 4);
  EXPECT_EQ(plan.total(MemoryKind::optimizer), size_t(elements) * 8);
  for (const Launch& launch : engine.micro_launches()) EXPECT_STRNE(launch.op, "embedding_bwd");
}

// Adapters are moved along their gradient and against it: the loss changes by what the gradient says, so that backward
// has forward's mask.
TEST(AdapterDropout, GradientsMatchFiniteDifferencesUnderTheSameMask) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    const LoraOptions lora{.rank = 4, .dropout = 0.4};
    std::optional<double> loss;
    for (const auto recompute : {Recompute::Granularity::none, Recompute::Granularity::full}) {
      OneBatch at(type, recompute, lora), ahead(type, recompute, lora), behind(type, recompute, lora);
      std::vector<std::string> names;
      for (const ParamStore::Piece& p : at.engine.model().params().pieces())
        if (p.slice->name.find(".lora_") != std::string::npos) names.push_back(p.slice->name);
      for (OneBatch* each : {&at, &ahead, &behind})
        for (const std::string& name : names) {
          Values x = each->value(name);
          for (size_t i = 0; i < x.size(); ++i) x[i] += 0.05f * std::sin(float(i + name.size()));
          each->set(name, x);
        }
      const double before = at.run();
      EXPECT_EQ(loss.value_or(before), before) << "with every recomputation";
      loss = before;
      constexpr float kStep = 2e-3f;
      double squares = 0;
      for (const std::string& name : names) {
        const Values g = at.gradient(name);
        Values more = ahead.value(name), less = more;
        for (size_t i = 0; i < g.size(); ++i) {
          more[i] += kStep * g[i], less[i] -= kStep * g[i];
          squares += double(g[i]) * g[i];
        }
        ahead.set(name, more), behind.set(name, less);
      }
      const double change = (ahead.run() - behind.run()) / 32;  // tokens
      EXPECT_NEAR(change / (2 * kStep * squares), 1, 0.02) << name_of(type);
    }
  }
}

TEST(AdapterDropout, AppliesOnlyInTrainingAndDiffersPerStep) {
  const LoraOptions none{.rank = 4}, half{.rank = 4, .dropout = 0.5};
  OneBatch whole(ModelType::llama, Recompute::Granularity::none, none);
  OneBatch dropped(ModelType::llama, Recompute::Granularity::none, half);
  for (OneBatch* each : {&whole, &dropped})
    for (const ParamStore::Piece& p : each->engine.model().params().pieces())
      if (p.slice->name.ends_with(".lora_B.weight"))
        each->set(p.slice->name, Values(size_t(p.slice->shape.numel()), 0.1f));
  const std::vector<int32_t> tokens(32, 3), targets(32, 4);
  EXPECT_EQ(whole.engine.evaluate(tokens, targets), dropped.engine.evaluate(tokens, targets));
  const double first = dropped.run();
  EXPECT_NE(first, whole.run());
  dropped.engine.finish_step();  // at a rate that moves nothing
  EXPECT_NE(dropped.run(), first);
}

TEST(Adapters, LossesMatchOneRank) {
  for (const ModelType type : {ModelType::llama, ModelType::gpt2, ModelType::athanor}) {
    ranks::Setting s{.type = type, .tied = type != ModelType::llama, .lora = 3, .dropout = 0.2, .lr = 3e-2};
    if (type == ModelType::athanor) {
      s.bare_end = true;  // the model's units end with the last block's, and those of adapters follow
      s.lr = 1e-2;        // norms of small outputs amplify rounding
    }
    const ranks::Curve want = ranks::train(s, 4);
    EXPECT_GT(want.norms.front(), 0);
    for (const int stage : {0, 1, 2, 3}) {
      s.shards = 3, s.stage = stage, s.accumulation = 2;
      ranks::expect_same(want, ranks::train(s, 4), 1e-5, s.name());
    }
  }
}

class AdapterRun : public AdaptedRun {
 protected:
  std::vector<std::string> lora(const std::vector<std::string>& more = {}) { return adapted({}, more); }
};

TEST_F(AdapterRun, NPlusMStepsEqualNSaveResumeM) {
  for (const char* precision : {"fp32", "bf16"})
    ASSERT_NO_FATAL_FAILURE(expect_resume_to_the_bit(precision, lora({cat("precision=", precision)})));
}

// The loss that the run had is that of the weights that its checkpoint is read as.
TEST_F(AdapterRun, CheckpointHoldsTheMergedModel) {
  ASSERT_EQ(run(config("run", lora())), Exit::done);
  const std::string folder = cat(dir_.path(), "/run/", step_folder(8));
  EXPECT_LT(fs::file_size(folder + "/model.safetensors"), fs::file_size(base() + "/model.safetensors"));
  write_hf_folder(ModelFolder(folder), dir_.path() + "/merged", {});
  ASSERT_EQ(run(config("again", {"train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0",
                                 "eval_interval=1", "init_from=" + dir_.path() + "/merged"})),
            Exit::done);
  const double want = history("run").evals.back().loss, got = history("again").evals.back().loss;
  EXPECT_NE(want, history("base").evals.back().loss);
  EXPECT_NEAR(got, want, 1e-6 * want);
}

// The run evaluates the averages, which --average reads from its checkpoints.
TEST_F(AdapterRun, AveragesOfAdaptersAreReadAsTheMergedModel) {
  for (const char* average : {"averaging.ema_decay=0.7", "averaging.tail_start=2"}) {
    const std::string name = cat("run_", average), merged = path(cat("merged_", average));
    ASSERT_NO_FATAL_FAILURE(expect_resume_to_the_bit(name, lora({average, "averaging.eval_weights=average"})));
    const std::string folder = path("whole_" + name);
    write_hf_folder(ModelFolder(folder, true), merged, {.dtype = DType::f32});
    ASSERT_EQ(run(config("again_" + name, {"train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0",
                                           "eval_interval=1", "init_from=" + merged})),
              Exit::done);
    const double want = history("whole_" + name).evals.back().loss;
    EXPECT_NEAR(history("again_" + name).evals.back().loss, want, 1e-6 * want) << average;
    write_peft_folder(ModelFolder(folder, true), path("peft_" + name), {});
    write_hf_folder(ModelFolder(path("peft_" + name)), merged + "_peft", {.dtype = DType::f32});
    EXPECT_EQ(read_file(merged + "_peft/model.safetensors", 1 << 24),
              read_file(merged + "/model.safetensors", 1 << 24));
    write_hf_folder(ModelFolder(folder), merged + "_current", {.dtype = DType::f32});
    EXPECT_NE(read_file(merged + "_current/model.safetensors", 1 << 24),
              read_file(merged + "/model.safetensors", 1 << 24));
  }
  ASSERT_EQ(run(config("none", lora())), Exit::done);
  EXPECT_ERROR(ModelFolder(path("none"), true), "holds no averages of the weights");
}

// Adapters of frozen groups have no averages and are read as they are.
TEST_F(AdapterRun, AveragesAreReadNextToFrozenAdapters) {
  ASSERT_EQ(run(config("run", lora({"averaging.ema_decay=0.7", "averaging.eval_weights=average",
                                    R"(param_groups=[{"match": "*down_proj*", "frozen": true}])"}))),
            Exit::done);
  write_hf_folder(ModelFolder(path("run"), true), path("merged"), {.dtype = DType::f32});
  ASSERT_EQ(run(config("again", {"train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0",
                                 "eval_interval=1", "init_from=" + path("merged")})),
            Exit::done);
  const double want = history("run").evals.back().loss;
  EXPECT_NEAR(history("again").evals.back().loss, want, 1e-6 * want);
}

TEST_F(AdapterRun, ExportedPeftFolderLoadsAsTheSameModel) {
  ASSERT_EQ(run(config("run", lora({R"(lora.targets=["q_proj", "layers.1.mlp.down_proj"])"}))), Exit::done);
  const std::string folder = dir_.path() + "/peft", config_file = folder + "/adapter_config.json";
  const auto weights = [&](const std::string& from, const std::string& name) {
    write_hf_folder(ModelFolder(from), dir_.path() + "/" + name, {.dtype = DType::f32});
    return read_file(dir_.path() + "/" + name + "/model.safetensors", 1 << 24);
  };
  write_file(base() + "/tokenizer.athanor.json", R"({"type": "byte", "vocab_size": 257, "eod_id": 256})");
  write_peft_folder(ModelFolder(dir_.path() + "/run"), folder, {});
  EXPECT_EQ(tokenizer_folder(ModelFolder(folder)), base()) << "PEFT's folder has none";
  EXPECT_EQ(weights(folder, "a"), weights(dir_.path() + "/run", "b"));
  const std::string json = read_file(config_file, 1 << 20);
  EXPECT_NE(json.find("\"model.layers.1.mlp.down_proj\""), std::string::npos) << "not all layers have it: " << json;
  const auto refused = [&](const std::string& what, const std::string& by) {
    std::string changed = json;
    changed.replace(changed.find(what), what.size(), by);
    write_file(config_file, changed);
    try {
      const ModelFolder opened(folder);
      return std::string("no error");
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_NE(refused("\"use_dora\": false", "\"use_dora\": true").find("lora_magnitude_vector"), std::string::npos);
  EXPECT_NE(refused("\"bias\": \"none\"", "\"bias\": \"all\"").find("bias"), std::string::npos);
  EXPECT_NE(refused("\"revision\": null", "\"alora_invocation_tokens\": [7]").find("alora"), std::string::npos);
  const std::string init = "\"init_lora_weights\": ";
  EXPECT_NE(refused(init + "true", init + "\"pissa_niter_4\"").find("pissa_niter_4"), std::string::npos);
  EXPECT_EQ(refused(init + "true", init + "\"gaussian\""), "no error");
  EXPECT_NE(refused("\"r\": 3", "\"r\": 4").find("rank 4"), std::string::npos);
  EXPECT_NE(refused("\"r\": 3", "\"r\": \"x\"").find("r:"), std::string::npos);
  EXPECT_NE(refused(base(), folder).find("adapters of adapters"), std::string::npos);
}

// Other programs open the base folder that a PEFT folder names by its own files.
TEST_F(AdapterRun, FoldersKnowWhetherTheyStoreWhatTheyRead) {
  ASSERT_EQ(run(config("run", lora())), Exit::done);
  ASSERT_EQ(run(config("free", {"optimizer=schedule_free_adamw", "schedule.lr_decay_style=constant"})), Exit::done);
  EXPECT_TRUE(ModelFolder(base()).stores_what_it_reads());
  EXPECT_FALSE(ModelFolder(dir_.path() + "/run").stores_what_it_reads());
  EXPECT_FALSE(ModelFolder(dir_.path() + "/free").stores_what_it_reads());
}

TEST_F(AdapterRun, ResumeRefusesChangedBaseWeights) {
  ASSERT_EQ(run(config("run", lora({"train_iters=3"}))), Exit::done);
  fs::rename(base(), dir_.path() + "/away");
  ASSERT_EQ(run(config("other", {"train_iters=5", "schedule.lr_decay_iters=5"})), Exit::done);
  write_hf_folder(ModelFolder(dir_.path() + "/other"), base(), {.dtype = DType::f32});
  EXPECT_NE(error_of(config("run", lora())).find("adapters of other weights"), std::string::npos);
}

TEST_F(AdapterRun, NewRunStartsFromSavedAdapters) {
  ASSERT_EQ(run(config("first", lora())), Exit::done);
  const std::string from = "lora.adapter=" + dir_.path() + "/first";
  ASSERT_EQ(run(config("second", lora({from, "train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0"}))),
            Exit::done);
  EXPECT_EQ(bytes("first", 8, "model.safetensors"), bytes("second", 1, "model.safetensors"));
  ASSERT_EQ(run(config("rounds", lora({from, "train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0",
                                       "local_updates.steps=1"}))),
            Exit::done);
  EXPECT_EQ(bytes("first", 8, "model.safetensors"), bytes("rounds", 1, "model.safetensors"))
      << "the global weights of local updates start as other adapters";
  EXPECT_NE(error_of(config("third", lora({from, "lora.rank=2"}))).find("lora.rank 2"), std::string::npos);
  EXPECT_NE(error_of(config("third", lora({from, R"(lora.targets=["q_proj"])"}))).find("lora.targets"),
            std::string::npos);
  EXPECT_NE(error_of(config("third", lora({from, "init_from=" + dir_.path() + "/first"}))).find("other weights"),
            std::string::npos);
  const std::string step = dir_.path() + "/first/step-00000008", file = step + "/model.safetensors";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('\x42');
  EXPECT_ERROR(run(config("third", lora({"lora.adapter=" + step}))), "is damaged: model.safetensors");
}

TEST_F(AdapterRun, UnsupportedOptionsAreRefusedByName) {
  const auto refused = [&](std::vector<std::string> more) {
    try {
      const Config c = config("", lora(std::move(more)));
      return error_of(c);
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_NE(refused({"lora.base_precision=nf4", "tensor_parallel_size=2"}).find("lora.base_precision: nf4"),
            std::string::npos);
  EXPECT_NE(refused({"optimizer=schedule_free_adamw", "schedule.lr_decay_style=constant"}).find("lora.rank: 3"),
            std::string::npos);
  EXPECT_NE(refused({"lora.dropout=0.1", "context_parallel_size=2"}).find("lora.dropout: 0.1"), std::string::npos);
  for (const auto& [set, key] : {std::pair{"precision=fp8_tensorwise", "precision fp8_tensorwise"},
                                 {"init_from=", "init_from"},
                                 {"lora.targets=[]", "lora.targets"},
                                 {R"(lora.targets=["qproj"])", "qproj"}}) {
    const std::string why = refused({set});
    EXPECT_NE(why.find("lora."), std::string::npos) << set << ": " << why;
    EXPECT_NE(why.find(key), std::string::npos) << set << ": " << why;
  }
}

}  // namespace
}  // namespace athanor
