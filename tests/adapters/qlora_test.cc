// A frozen model in NF4: steps match the dequantized weights bit for bit; ranks share quantized records; also
// checkpoints, resuming, merging, folders written by bitsandbytes, and refused options.
#include <gtest/gtest.h>

#include "convert/floats.h"
#include "convert/hf_folder.h"
#include "convert/model_folder.h"
#include "tests/adapters/adapted_run.h"
#include "tests/tiny_model.h"
#include "tests/train/ranks_rig.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

class QloraRun : public AdaptedRun {
 protected:
  // The folder of the base model in NF4, in the format of bitsandbytes.
  std::string nf4_base(bool nested) {
    const std::string folder = path(nested ? "nested" : "single");
    write_hf_folder(ModelFolder(base()), folder, {.dtype = DType::f32, .nested_nf4 = nested});
    return folder;
  }
  std::vector<std::string> qlora(const std::vector<std::string>& more = {}) {
    return adapted({"lora.base_precision=nf4"}, more);
  }
};

// A run on NF4 and a run on a plain folder with the dequantized values give the same bits in f32.
TEST_F(QloraRun, StepsMatchTrainingOnTheDequantizedWeights) {
  for (const bool nested : {true, false}) {
    const std::string plain = path(nested ? "plain_nested" : "plain_single"), name = nested ? "a" : "b";
    write_hf_folder(ModelFolder(nf4_base(nested)), plain, {.dtype = DType::f32});
    const std::string kind = cat("lora.base_double_quant=", nested ? "true" : "false");
    ASSERT_EQ(run(config("nf4_" + name, qlora({kind}))), Exit::done);
    ASSERT_EQ(run(config("plain_" + name, qlora({"lora.base_precision=none", "init_from=" + plain}))), Exit::done);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(bytes("nf4_" + name, 8, file), bytes("plain_" + name, 8, file)) << file << nested;
    EXPECT_NE(values(ModelFolder(plain), "model.layers.0.mlp.up_proj.weight"),
              values(ModelFolder(base()), "model.layers.0.mlp.up_proj.weight"));
  }
}

// The bytes of a folder are used unchanged: quantizing the dequantized weights again would give other bytes.
TEST_F(QloraRun, Nf4FoldersAreLoadedBitExactly) {
  for (const bool nested : {true, false}) {
    const ModelFolder original(base()), stored(nf4_base(nested));
    for (const ModelFolder::Weight& w : original.weights()) {
      if (w.role != Role::matrix) {
        EXPECT_EQ(values(original, w.name), values(stored, w.name)) << w.name;
        continue;
      }
      const std::vector<std::byte> bytes = stored.nf4_record(stored.at(w.name), nested);
      EXPECT_EQ(bytes, original.nf4_record(w, nested)) << w.name;
      std::vector<float> whole(size_t(w.shape.numel()));
      dequantize_nf4(bytes.data(), nf4_absmax(bytes, {w.shape.numel(), nested}), 0, w.shape.numel(), whole.data());
      EXPECT_EQ(values(stored, w.name), whole) << w.name;
      std::vector<std::byte> part;
      stored.read_run(stored.at(w.name), 65, 127, part);
      EXPECT_EQ(std::memcmp(part.data(), whole.data() + 65, part.size()), 0) << w.name;
    }
    const std::string again = path(nested ? "nested again" : "single again");
    write_hf_folder(stored, again, {.dtype = DType::f32, .nested_nf4 = nested});
    EXPECT_EQ(read_file(again + "/model.safetensors", 1 << 24),
              read_file(stored.path() + "/model.safetensors", 1 << 24));
    const std::string name = nested ? "a" : "b", kind = cat("lora.base_double_quant=", nested ? "true" : "false");
    ASSERT_EQ(run(config("file_" + name, qlora({kind, "init_from=" + stored.path()}))), Exit::done);
    ASSERT_EQ(run(config("made_" + name, qlora({kind}))), Exit::done);
    EXPECT_EQ(bytes("file_" + name, 8, "model.safetensors"), bytes("made_" + name, 8, "model.safetensors"));
  }
}

TEST_F(QloraRun, NPlusMStepsEqualNSaveResumeM) {
  for (const char* precision : {"fp32", "bf16"})
    ASSERT_NO_FATAL_FAILURE(expect_resume_to_the_bit(precision, qlora({cat("precision=", precision)})));
}

// The loss that the run had is that of the weights that its checkpoint is read as, layers without adapters included.
TEST_F(QloraRun, CheckpointHoldsTheMergedModel) {
  ASSERT_EQ(run(config("run", qlora({R"(lora.targets=["q_proj"])"}))), Exit::done);
  write_hf_folder(ModelFolder(path("run")), path("merged"), {.dtype = DType::f32});
  ASSERT_EQ(run(config("again", {"train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0",
                                 "eval_interval=1", "init_from=" + path("merged")})),
            Exit::done);
  const double want = history("run").evals.back().loss;
  EXPECT_NEAR(history("again").evals.back().loss, want, 1e-6 * want);
}

TEST(Qlora, FrozenLayersTakeFourBitsPerWeight) {
  const auto planned = [](BasePrecision base, bool double_quant) {
    Rig rig;
    EngineOptions o;
    o.recipe = make_recipe("bf16", DType::f32);
    o.seq_length = 16;
    o.micro_batch_size = o.global_batch_size = 2;
    o.lora = {.rank = 2, .base = base, .double_quant = double_quant};
    const ModelConfig model = testing::tiny_model(
        ModelType::llama,
        {.vocab = 50, .hidden = 256, .heads = 4, .kv_heads = 2, .intermediate = 512, .positions = 16});
    Engine engine(model, o, rig.backend());
    return engine.memory().total(MemoryKind::weights);
  };
  int64_t matrices = 0;
  const auto model = make_model(testing::tiny_model(
      ModelType::llama, {.vocab = 50, .hidden = 256, .heads = 4, .kv_heads = 2, .intermediate = 512, .positions = 16}));
  for (const ParamSpec& spec : model->params().specs())
    if (spec.role == Role::matrix) matrices += spec.shape.numel();
  const double saved = double(planned(BasePrecision::none, false) - planned(BasePrecision::nf4, false));
  EXPECT_NEAR(saved / double(matrices), 2 - 0.5 - 4.0 / 64, 0.01) << "bytes per weight";
  const double nested = double(planned(BasePrecision::none, false) - planned(BasePrecision::nf4, true));
  EXPECT_NEAR(nested / double(matrices), 2 - 0.5 - 1.0 / 64, 0.05);
}

TEST(Qlora, LossesMatchOneRank) {
  ranks::Setting s{.type = ModelType::llama, .lora = 3, .nf4 = true, .lr = 3e-2};
  const ranks::Curve want = ranks::train(s, 4);
  ranks::Setting plain = s;
  plain.nf4 = false;
  EXPECT_NE(want.losses.front(), ranks::train(plain, 1).losses.front());
  for (const int stage : {0, 1, 2, 3}) {
    s.shards = 3, s.stage = stage, s.accumulation = 2;
    ranks::expect_same(want, ranks::train(s, 4), 1e-5, s.name());
  }
}

TEST_F(QloraRun, InvalidOptionsAreRefusedByName) {
  const auto refused = [&](const std::vector<std::string>& set) {
    try {
      return error_of(config("", set));
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  const std::string trained = refused({"lora.base_precision=nf4", "init_from=" + base()});
  EXPECT_NE(trained.find("lora.base_precision"), trained.npos) << trained;
  EXPECT_NE(trained.find("lora.rank"), trained.npos) << trained;
  const std::string other = refused(qlora({"init_from=" + nf4_base(false)}));
  EXPECT_NE(other.find("lora.base_double_quant"), other.npos) << other;
  ASSERT_EQ(run(config("run", qlora({"train_iters=3"}))), Exit::done);
  const std::string resumed = error_of(config("run", qlora({"lora.base_precision=none"})));
  EXPECT_NE(resumed.find("lora.base_precision"), resumed.npos) << resumed;
}

TEST_F(QloraRun, DamagedFoldersAreRefused) {
  const std::string folder = nf4_base(true), file = folder + "/model.safetensors";
  const std::string whole = read_file(file, 1 << 24);
  const auto refused = [&](const std::string& what, const std::string& by) {
    std::string changed = whole;
    const size_t at = changed.find(what);
    EXPECT_NE(at, changed.npos) << what;
    changed.replace(at, what.size(), by);
    write_file(file, changed);
    try {
      const ModelFolder opened(folder);
      return std::string("no error");
    } catch (const Error& e) {
      return std::string(e.what());
    }
  };
  EXPECT_NE(refused(R"("blocksize":64)", R"("blocksize":32)").find("blocksize is 32"), std::string::npos);
  EXPECT_NE(refused(R"("quant_type":"nf4")", R"("quant_type":"fp4")").find("quant_type"), std::string::npos);
  EXPECT_NE(refused("q_proj.weight.absmax", "q_proj.weight.absmix").find("q_proj.weight.absmax is missing"),
            std::string::npos);
  EXPECT_NE(refused(R"("nested_offset")", R"("nested_affset")").find("absmax"), std::string::npos);
}

}  // namespace
}  // namespace athanor
