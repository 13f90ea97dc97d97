// Averages of the weights. Schedule-free AdamW: weights and averages match the authors' package, and planted mistakes
// are detected; evaluations and readers of checkpoints use the average, and a resumed run is bit-identical.
#include <gtest/gtest.h>

#include <cmath>

#include "convert/model_folder.h"
#include "infer/evaluate.h"
#include "tests/ops/optimizer_references.h"
#include "tests/train/optimizer_rig.h"
#include "tests/train/trainer_rig.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace athanor::optimizers {
namespace {

struct Averaged {
  std::vector<float> weights, averages;
};

// 20 steps with a warm-up of 8.
Averaged averaged_after_20_steps(const OptimizerOptions& o) {
  Trained t({matrix("w", {kRows, kColumns})}, o);
  t.schedule.warmup = 8;
  t.set(t.master(), values(start, kRows, kColumns, false));
  for (int step = 0; step < 20; ++step) {
    t.set(t.grad(), values([&](int64_t i) { return gradient(i, step); }, kRows, kColumns, false));
    t.step();
  }
  Averaged out{t.weights(), t.rig.read<float>(t.flat(t.params.units()[0]->states[0].t, 0))};
  for (size_t i = 0; i < out.weights.size(); ++i) out.averages[i] += out.weights[i];
  return out;
}

enum class AveragingMistake { none, equal_weights, rate_as_weight, decay_at_z, decay_at_x, no_decay, averages_swapped };

// [Defazio et al. 2024, alg. 1] with x, y and z.
std::array<std::vector<double>, 2> schedule_free_in_double(AveragingMistake mistake) {
  const double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  const size_t n = size_t(kRows * kColumns);
  std::vector<double> x(n), z(n), v(n);
  for (size_t i = 0; i < n; ++i) x[i] = z[i] = start(int64_t(i));
  double sum = 0;
  const auto y = [&](size_t i) {
    const double share = mistake == AveragingMistake::averages_swapped ? 1 - beta1 : beta1;
    return (1 - share) * z[i] + share * x[i];
  };
  for (int step = 0; step < 20; ++step) {
    const double lr = kRate * std::min(1.0, (step + 1) / 8.0);
    const double weight = mistake == AveragingMistake::equal_weights    ? 1
                          : mistake == AveragingMistake::rate_as_weight ? lr
                                                                        : lr * lr;
    sum += weight;
    for (size_t i = 0; i < n; ++i) {
      const double g = gradient(int64_t(i), step);
      const double at = mistake == AveragingMistake::decay_at_z   ? z[i]
                        : mistake == AveragingMistake::decay_at_x ? x[i]
                                                                  : y(i);
      v[i] = beta2 * v[i] + (1 - beta2) * g * g;
      const double u = g / (std::sqrt(v[i] / (1 - std::pow(beta2, step + 1))) + eps);
      z[i] -= lr * (u + (mistake == AveragingMistake::no_decay ? 0 : kDecay * at));
      x[i] += weight / sum * (z[i] - x[i]);
    }
  }
  std::array<std::vector<double>, 2> out{std::vector<double>(n), x};
  for (size_t i = 0; i < n; ++i) out[0][i] = y(i);
  return out;
}

TEST(ScheduleFree, MatchesTheAuthorsPackageAndDetectsMistakes) {
  const Averaged got = averaged_after_20_steps(with(RuleName::schedule_free_adamw));
  expect_near(got.weights, references::kScheduleFree, 1e-6, "weights");
  expect_near(got.averages, references::kScheduleFreeAverage, 1e-6, "averages");
  const auto want = schedule_free_in_double(AveragingMistake::none);
  expect_near(got.weights, want[0], 1e-6, "weights in double");
  expect_near(got.averages, want[1], 1e-6, "averages in double");
  for (const AveragingMistake mistake :
       {AveragingMistake::equal_weights, AveragingMistake::rate_as_weight, AveragingMistake::decay_at_z,
        AveragingMistake::decay_at_x, AveragingMistake::no_decay, AveragingMistake::averages_swapped}) {
    const auto wrong = schedule_free_in_double(mistake);
    double most = 0;
    for (size_t i = 0; i < got.weights.size(); ++i)
      most = std::max(most, std::abs(double(got.weights[i]) - wrong[0][i]));
    EXPECT_GT(most, 1e-5) << int(mistake);
  }
}

class AveragedRuns : public TrainerTest {
 protected:
  double loss_of(const Config& c, const ModelFolder& weights) {
    const auto engine = make_engine(c, rig_.backend(), false);
    engine->commit();
    load_weights(*engine, *rig_.device, weights);
    return evaluate(*engine, open_dataset(c.valid_data, c), {.samples = c.eval_iters * c.global_batch_size}).loss;
  }
};

TEST_F(AveragedRuns, AveragesAreEvaluatedExportedAndResumedBitExactly) {
  for (const auto& [precision, master, moments] : {std::tuple{"fp32", "fp32", "fp32"},
                                                   {"bf16", "fp32", "bf16"},
                                                   {"bf16", "split", "fp32"},
                                                   {"bf16", "bf16", "bf16"},
                                                   {"fp16", "fp32", "fp32"}}) {
    const std::string kind = cat(precision, "-", master, "-");
    const auto with = [&](const std::string& name, std::vector<std::string> set) {
      set.insert(set.end(), {"optimizer=schedule_free_adamw", "schedule.lr_decay_style=constant",
                             "schedule.lr_decay_iters=8", cat("precision=", precision), cat("master_weights=", master),
                             cat("adam.exp_avg_sq_dtype=", moments)});
      return config(kind + name, set);
    };
    const Config whole = with("whole", {});
    ASSERT_EQ(run(whole), Exit::done);
    ASSERT_EQ(run(with("unseen", {"eval_interval=0"})), Exit::done);
    for (const char* steps : {"train_iters=1", "train_iters=3", "train_iters=8"})
      ASSERT_EQ(run(with("parts", {steps})), Exit::done);
    for (const char* other : {"unseen", "parts"})
      for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"})
        EXPECT_EQ(bytes(kind + "whole", 8, file), bytes(kind + other, 8, file)) << kind << other << " " << file;
    const double told = history(kind + "whole").evals.back().loss;
    EXPECT_EQ(loss_of(whole, ModelFolder(whole.save)), told) << kind;
    EXPECT_EQ(loss_of(whole, ModelFolder(whole.save, true)), told) << kind;
    const fs::path bare = fs::path(dir_.path()) / (kind + "bare");  // only the weights, as another program reads them
    fs::create_directories(bare);
    for (const char* file : {"config.json", "model.safetensors"})
      fs::copy_file(fs::path(whole.save) / step_folder(8) / file, bare / file);
    EXPECT_NE(loss_of(whole, ModelFolder(bare.string())), told) << kind;
  }
}

// The mean of the last weights, with any optimizer: saved, resumed before and within the averaged part, evaluated and
// read.
TEST_F(AveragedRuns, TailAveragesAreSavedResumedAndEvaluated) {
  const auto with = [&](const std::string& name, std::vector<std::string> set) {
    set.insert(set.end(), {"optimizer=muon", "precision=bf16", "master_weights=split", "schedule.lr_decay_iters=8"});
    return config(name, set);
  };
  const Config whole = with("whole", {"averaging.tail_start=4", "averaging.eval_weights=average"});
  ASSERT_EQ(run(with("plain", {})), Exit::done);
  ASSERT_EQ(run(whole), Exit::done);
  for (const char* steps : {"train_iters=2", "train_iters=5", "train_iters=8"})
    ASSERT_EQ(run(with("parts", {steps, "averaging.tail_start=4"})), Exit::done);
  EXPECT_EQ(bytes("plain", 8, "model.safetensors"), bytes("whole", 8, "model.safetensors"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(bytes("whole", 8, file), bytes("parts", 8, file)) << file;
  const double told = history("whole").evals.back().loss;
  EXPECT_EQ(loss_of(whole, ModelFolder(whole.save, true)), told);
  EXPECT_EQ(loss_of(whole, ModelFolder(whole.save)), history("plain").evals.back().loss);
  EXPECT_NE(told, history("plain").evals.back().loss);
  const std::string changed = error_of(with("parts", {"averaging.tail_start=5", "train_iters=9"}));
  EXPECT_NE(changed.find("averaging.tail_start: 4 -> 5"), std::string::npos) << changed;
}

// Weights of groups with another optimizer, and frozen weights, are read without averaging.
TEST_F(AveragedRuns, AveragesMayCoverOnlySomeWeights) {
  const Config c = config("some", {"schedule.lr_decay_style=constant", R"(param_groups=[
      {"match": "*.0.mlp.*", "optimizer": "schedule_free_adamw"}, {"match": "*.1.mlp.*", "frozen": true}])"});
  ASSERT_EQ(run(c), Exit::done);
  EXPECT_EQ(loss_of(c, ModelFolder(c.save)), history("some").evals.back().loss);
  const Config frozen = config("frozen", {"schedule.lr_decay_style=constant", R"(param_groups=[
      {"match": "*.0.mlp.*", "optimizer": "schedule_free_adamw", "frozen": true}])"});
  EXPECT_EQ(run(frozen), Exit::done);
}

}  // namespace
}  // namespace athanor::optimizers
