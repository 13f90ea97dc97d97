// DoRA: gradients match the equivalent dense matrix with norms held constant; dropout follows PEFT; new magnitudes
// change nothing; runs, their checkpoints and exported PEFT folders give the merged model.
#include <gtest/gtest.h>

#include <optional>

#include "convert/adapter_folder.h"
#include "convert/hf_folder.h"
#include "convert/model_folder.h"
#include "model/adapters.h"
#include "tests/adapters/adapted_run.h"
#include "tests/adapters/one_batch.h"
#include "tests/train/ranks_rig.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

struct DoraModule {
  std::string name;
  int64_t in, out;
  Values a, b, m, norms;  // norms: of the adapted weight's outputs
};

std::vector<std::string> adapted_modules(OneBatch& model) {
  std::vector<std::string> names;
  const std::string end = lora_a_name("");
  for (const ParamStore::Piece& p : model.engine.model().params().pieces())
    if (p.slice->name.ends_with(end)) names.push_back(p.slice->name.substr(0, p.slice->name.size() - end.size()));
  return names;
}

// B and m that are not the initial ones.
DoraModule set_module(OneBatch& adapted, const std::string& name, int64_t rank) {
  DoraModule m{.name = name, .a = adapted.value(lora_a_name(name))};
  m.in = adapted.piece(lora_a_name(name)).slice->shape[1], m.out = adapted.piece(lora_b_name(name)).slice->shape[0];
  for (int64_t i = 0; i < m.out * rank; ++i) m.b.push_back(0.1f * std::sin(float(i + 1)));
  for (int64_t i = 0; i < m.out; ++i) m.m.push_back(0.1f + 0.02f * float(i % 7));
  adapted.set(lora_b_name(name), m.b);
  adapted.set(lora_magnitude_name(name), m.m);
  return m;
}

// m (W + s B A) / |.| in the place of W; finds the norms.
Values dense_weight(DoraModule& m, Values w, const LoraOptions& lora, bool in_out) {
  const auto scale = float(lora.scale());
  const Values ba = in_out ? product(m.a, true, m.b, true, m.in, lora.rank, m.out)
                           : product(m.b, false, m.a, false, m.out, lora.rank, m.in);
  std::vector<double> squares(size_t(m.out));
  const auto output = [&](size_t i) { return in_out ? i % size_t(m.out) : i / size_t(m.in); };
  for (size_t i = 0; i < w.size(); ++i) {
    w[i] += scale * ba[i];
    squares[output(i)] += double(w[i]) * w[i];
  }
  for (const double s : squares) m.norms.push_back(float(std::sqrt(s)));
  for (size_t i = 0; i < w.size(); ++i) w[i] *= m.m[output(i)] / m.norms[output(i)];
  return w;
}

// Given dW', the gradient of the dense matrix W' = g V with g = m / |V| per output and V = W + s B A: dm = (dW' . V) /
// |V| = (dW' . W') / m, and dA and dB are those of LoRA with g dW' instead of dW.
void expect_dora_gradients_of_dense(ModelType type, Recompute::Granularity recompute, const LoraOptions& lora) {
  OneBatch adapted(type, recompute, lora), dense(type, recompute, {});
  const bool in_out = type == ModelType::gpt2;
  std::vector<DoraModule> modules;
  for (const std::string& name : adapted_modules(adapted)) {
    modules.push_back(set_module(adapted, name, lora.rank));
    dense.set(name + ".weight", dense_weight(modules.back(), dense.value(name + ".weight"), lora, in_out));
  }
  ASSERT_FALSE(modules.empty());
  const double loss = adapted.run();
  EXPECT_NEAR(loss, dense.run(), 1e-5 * loss) << name_of(type);
  for (const DoraModule& m : modules) {
    Values dw = dense.gradient(m.name + ".weight");
    const Values w = dense.value(m.name + ".weight");
    Values dm(size_t(m.out), 0);
    for (size_t i = 0; i < dw.size(); ++i) {
      const size_t o = in_out ? i % size_t(m.out) : i / size_t(m.in);
      dm[o] += dw[i] * w[i] / m.m[o];
      dw[i] *= float(lora.scale()) * m.m[o] / m.norms[o];
    }
    const Values da = product(m.b, true, dw, in_out, lora.rank, m.out, m.in);
    const Values db = product(dw, in_out, m.a, true, m.out, m.in, lora.rank);
    expect_close(da, adapted.gradient(lora_a_name(m.name)), cat(name_of(type), " A of ", m.name));
    expect_close(db, adapted.gradient(lora_b_name(m.name)), cat(name_of(type), " B of ", m.name));
    expect_close(dm, adapted.gradient(lora_magnitude_name(m.name)), cat(name_of(type), " m of ", m.name));
  }
}

TEST(Dora, GradientsMatchTheMergedDenseWeight) {
  using G = Recompute::Granularity;
  for (const ModelType type : {ModelType::gpt2, ModelType::llama, ModelType::qwen2})
    for (const G recompute : {G::none, G::full})
      expect_dora_gradients_of_dense(type, recompute, {.rank = 3, .alpha = 6, .variant = LoraVariant::dora});
  expect_dora_gradients_of_dense(ModelType::llama, G::selective,
                                 {.rank = 4,
                                  .alpha = 3,
                                  .targets = {"k_proj", "model.layers.1.mlp.up_proj", "down_proj"},
                                  .variant = LoraVariant::dora});
}

// Moves only the magnitudes: the norms do not depend on them, so finite differences give the full derivative under the
// dropout mask that forward and backward share.
TEST(Dora, MagnitudeGradientsMatchFiniteDifferencesUnderDropout) {
  const LoraOptions lora{.rank = 4, .dropout = 0.4, .variant = LoraVariant::dora};
  for (const ModelType type : {ModelType::llama, ModelType::gpt2}) {
    OneBatch at(type, Recompute::Granularity::none, lora), ahead(type, Recompute::Granularity::none, lora),
        behind(type, Recompute::Granularity::none, lora);
    const std::vector<std::string> names = adapted_modules(at);
    for (OneBatch* each : {&at, &ahead, &behind})
      for (const std::string& name : names) set_module(*each, name, lora.rank);
    at.run();
    constexpr float kStep = 2e-4f;
    double squares = 0;
    for (const std::string& name : names) {
      const Values g = at.gradient(lora_magnitude_name(name));
      Values more = at.value(lora_magnitude_name(name)), less = more;
      for (size_t i = 0; i < g.size(); ++i) {
        more[i] += kStep * g[i], less[i] -= kStep * g[i];
        squares += double(g[i]) * g[i];
      }
      ahead.set(lora_magnitude_name(name), more), behind.set(lora_magnitude_name(name), less);
    }
    const double change = (ahead.run() - behind.run()) / 32;  // tokens
    EXPECT_NEAR(change / (2 * kStep * squares), 1, 0.02) << name_of(type);
  }
}

// With magnitudes equal to the norms and B = 0, the model equals the frozen one for any dropout mask.
TEST(Dora, DropoutDoesNotAffectTheFrozenModel) {
  const LoraOptions lora{.rank = 4, .dropout = 0.5, .variant = LoraVariant::dora};
  OneBatch dropped(ModelType::qwen2, Recompute::Granularity::none, lora),
      dense(ModelType::qwen2, Recompute::Granularity::none, {});
  for (const std::string& name : adapted_modules(dropped)) {
    const Values w = dense.value(name + ".weight");
    Values norms(static_cast<size_t>(dropped.piece(lora_magnitude_name(name)).slice->shape[0]));
    const size_t in = w.size() / norms.size();
    for (size_t o = 0; o < norms.size(); ++o) {
      double sum = 0;
      for (size_t i = 0; i < in; ++i) sum += double(w[o * in + i]) * w[o * in + i];
      norms[o] = float(std::sqrt(sum));
    }
    dropped.set(lora_magnitude_name(name), norms);
  }
  const double want = dense.run();
  EXPECT_NEAR(dropped.run(), want, 1e-5 * want);
}

class DoraRun : public AdaptedRun {
 protected:
  std::vector<std::string> dora(const std::vector<std::string>& more = {}) {
    return adapted({"lora.variant=dora"}, more);
  }
  double loss_of(const std::string& folder, const std::string& run_name) {
    EXPECT_EQ(run(config(run_name, {"train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0",
                                    "eval_interval=1", "init_from=" + folder})),
              Exit::done);
    return history(run_name).evals.back().loss;
  }
};

TEST_F(DoraRun, FreshAdaptersKeepTheLossOfTheBaseModel) {
  const double want = loss_of(base(), "plain");
  ASSERT_EQ(run(config("new", dora({"train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0",
                                    "eval_interval=1"}))),
            Exit::done);
  EXPECT_NEAR(history("new").evals.back().loss, want, 1e-5 * want);
  ASSERT_EQ(run(config("rounds", dora({"train_iters=1", "learning_rate=1e-30", "schedule.lr_warmup_iters=0",
                                       "eval_interval=1", "local_updates.steps=1"}))),
            Exit::done);
  EXPECT_NEAR(history("rounds").evals.back().loss, want, 1e-5 * want) << "global weights of local updates";
}

TEST_F(DoraRun, CheckpointHoldsTheMergedModelAndResumesBitExactly) {
  for (const char* bits : {"none", "nf4"}) {
    const std::string whole = cat("whole_", bits);
    ASSERT_NO_FATAL_FAILURE(expect_resume_to_the_bit(bits, dora({cat("lora.base_precision=", bits)})));
    write_hf_folder(ModelFolder(path(whole)), path(cat("merged_", bits)), {.dtype = DType::f32});
    const double want = history(whole).evals.back().loss;
    EXPECT_NEAR(loss_of(path(cat("merged_", bits)), cat("again_", bits)), want, 2e-6 * want) << bits;
  }
}

TEST_F(DoraRun, ExportedPeftFolderLoadsAsTheSameModel) {
  ASSERT_EQ(run(config("run", dora())), Exit::done);
  const auto weights = [&](const std::string& from, const std::string& name) {
    write_hf_folder(ModelFolder(from), path(name), {.dtype = DType::f32});
    return read_file(path(name) + "/model.safetensors", 1 << 24);
  };
  write_peft_folder(ModelFolder(path("run")), path("peft"), {});
  EXPECT_EQ(weights(path("peft"), "a"), weights(path("run"), "b"));
  ASSERT_EQ(run(config("more", dora({"lora.adapter=" + path("peft"), "train_iters=1", "learning_rate=1e-30",
                                     "schedule.lr_warmup_iters=0"}))),
            Exit::done);
  EXPECT_EQ(bytes("run", 8, "model.safetensors"), bytes("more", 1, "model.safetensors"));
  const std::string refused = error_of(config("other", dora({"lora.adapter=" + path("peft"), "lora.variant=lora"})));
  EXPECT_NE(refused.find("lora.variant"), refused.npos) << refused;
}

TEST(DoraRanks, LossesMatchOneRank) {
  ranks::Setting s{.type = ModelType::llama, .lora = 3, .variant = LoraVariant::dora, .dropout = 0.2, .lr = 3e-2};
  const ranks::Curve want = ranks::train(s, 4);
  for (const int stage : {0, 3}) {
    s.shards = 3, s.stage = stage, s.accumulation = 2;
    ranks::expect_same(want, ranks::train(s, 4), 1e-5, s.name());
  }
}

}  // namespace
}  // namespace athanor
