// Whole runs: resume is bit-exact in every precision, what is stored decides, what changed is noticed.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <optional>

#include "data/shard_writer.h"
#include "tests/files.h"
#include "tests/train/trainer_rig.h"
#include "tokenizer/load.h"

namespace athanor {
namespace {

struct Precise {
  const char* precision;
  const char* master;
  const char* moments = "fp32";
  const char* optimizer = "adamw";
};
class Resume : public TrainerTest, public ::testing::WithParamInterface<Precise> {};

TEST_P(Resume, NPlusMStepsEqualNSaveResumeM) {
  const std::vector<std::string> set = {
      cat("precision=", GetParam().precision),        cat("master_weights=", GetParam().master),
      cat("adam.exp_avg_dtype=", GetParam().moments), cat("adam.exp_avg_sq_dtype=", GetParam().moments),
      cat("optimizer=", GetParam().optimizer),        "adam.min_8bit_size=256"};
  ASSERT_EQ(run(config("whole", set)), Exit::done);
  auto first = set, second = set;
  // The schedule must not end early in the first half: it is 8 steps long in both.
  first.insert(first.end(), {"train_iters=3", "schedule.lr_decay_iters=8"});
  second.push_back("schedule.lr_decay_iters=8");
  ASSERT_EQ(run(config("parts", first)), Exit::done);
  ASSERT_EQ(run(config("parts", second)), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"})
    EXPECT_EQ(bytes("whole", 8, file), bytes("parts", 8, file)) << file;
  const auto a = history("whole"), b = history("parts");
  ASSERT_EQ(a.steps.size(), 8u);
  ASSERT_EQ(b.steps.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Precisions, Resume,
    ::testing::Values(Precise{"fp32", "fp32"}, Precise{"tf32", "fp32"}, Precise{"bf16", "fp32"},
                      Precise{"bf16", "bf16"}, Precise{"fp16", "fp32"}, Precise{"bf16", "split"},
                      Precise{"bf16", "split", "bf16"}, Precise{"bf16", "bf16", "bf16"},
                      Precise{"bf16", "split", "bf16", "normuon"}, Precise{"bf16", "fp32", "fp32", "adamw_8bit"},
                      Precise{"bf16", "bf16", "bf16", "adamw_8bit"}, Precise{"bf16", "split", "fp32", "adamw_8bit"},
                      Precise{"bf16", "bf16", "fp32", "adafactor"}, Precise{"bf16", "split", "bf16", "lamb"},
                      Precise{"fp8_tensorwise", "split"}, Precise{"mxfp8", "fp32"}, Precise{"fp8_delayed", "fp32"},
                      Precise{"fp8_delayed", "split", "bf16", "normuon"}),
    [](const auto& which) {
      const auto& p = which.param;
      return std::string(p.precision) + "_" + p.master + "_" + p.moments + "_" + p.optimizer;
    });

// A run may change between fp32 and split master weights; its checkpoints are bit-identical to those of an unchanged
// run.
TEST_F(TrainerTest, SplitMastersResumeFromFp32MastersAndBack) {
  const auto with = [&](const char* run_name, const char* master, int64_t steps) {
    return config(run_name, {"precision=bf16", cat("master_weights=", master), cat("train_iters=", steps),
                             "schedule.lr_decay_iters=8"});
  };
  ASSERT_EQ(run(with("whole", "fp32", 8)), Exit::done);
  ASSERT_EQ(run(with("split", "split", 8)), Exit::done);
  ASSERT_EQ(run(with("mixed", "fp32", 3)), Exit::done);
  ASSERT_EQ(run(with("mixed", "split", 5)), Exit::done);
  ASSERT_EQ(run(with("mixed", "fp32", 8)), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    for (const char* other : {"split", "mixed"})
      EXPECT_EQ(bytes("whole", 8, file), bytes(other, 8, file)) << other << file;
  const std::string text = error_of(with("mixed", "bf16", 9));
  EXPECT_NE(text.find("master_weights: \"fp32\" -> \"bf16\""), std::string::npos) << text;
}

TEST_F(TrainerTest, WarnsIfALongerRunRaisesTheLearningRate) {
  const auto said = [&](const std::vector<std::string>& set) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(run(config("r", set)), Exit::done);
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string first = said({});
  EXPECT_NE(first.find("a step takes "), std::string::npos) << first;
  EXPECT_NE(first.find("the 8 steps of this run "), std::string::npos) << first;
  EXPECT_NE(said({}).find("is at step 8, train_iters is 8: nothing is left to train\n"), std::string::npos);
  EXPECT_NE(said({"train_iters=5"}).find("nothing is left to train; raise train_iters"), std::string::npos);
  const std::string kept = said({"train_iters=10", "schedule.lr_decay_iters=8"});
  EXPECT_EQ(kept.find("rises"), std::string::npos) << kept;
  const std::string lifted = said({"train_iters=16"});
  EXPECT_NE(lifted.find("the learning rate of step 11 rises from 0.001 to 0.0"), std::string::npos) << lifted;
  EXPECT_NE(lifted.find("--set schedule.lr_decay_iters=8"), std::string::npos) << lifted;
}

TEST_F(TrainerTest, LongFirstStepReportsProgress) {
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  StopSignals signals;
  Trainer(config("r", {"train_iters=2", "micro_batch_size=1", "schedule.lr_warmup_iters=0"}), rig_.backend(),
          {.stop = signals, .program = {.version = "test", .command = {}, .libraries = {}}, .first_step_seconds = 0})
      .run();
  ::testing::internal::GetCapturedStdout();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("step 1: 1 of 4 micro-batches are done, about "), std::string::npos) << said;
  EXPECT_NE(said.find("step 1: 3 of 4 "), std::string::npos) << said;
  EXPECT_EQ(said.find("step 2: "), std::string::npos) << said;
}

// averaging.ema_decay and averaging.eval_weights change no bit of training; the run's evaluations with averages are
// those of what is exported.
TEST_F(TrainerTest, AveragesOfWeightsAreSavedResumedAndEvaluated) {
  for (const auto& [precision, master] :
       {std::pair{"fp32", "fp32"}, {"bf16", "fp32"}, {"bf16", "split"}, {"bf16", "bf16"}, {"fp16", "fp32"}}) {
    const std::string kind = cat(precision, "-", master, "-");
    const auto with = [&](const std::string& name, std::vector<std::string> set) {
      set.insert(set.end(),
                 {cat("precision=", precision), cat("master_weights=", master), "schedule.lr_decay_iters=8"});
      return config(kind + name, set);
    };
    const std::vector<std::string> averages = {"averaging.ema_decay=0.8"},
                                   read = {"averaging.ema_decay=0.8", "averaging.eval_weights=ema"};
    ASSERT_EQ(run(with("plain", {})), Exit::done);
    ASSERT_EQ(run(with("kept", averages)), Exit::done);
    ASSERT_EQ(run(with("read", read)), Exit::done);
    ASSERT_EQ(run(with("parts", {"averaging.ema_decay=0.8", "averaging.eval_weights=ema", "train_iters=3"})),
              Exit::done);
    ASSERT_EQ(run(with("parts", read)), Exit::done);
    for (const char* other : {"kept", "read", "parts"}) {
      EXPECT_EQ(bytes(kind + "plain", 8, "model.safetensors"), bytes(kind + other, 8, "model.safetensors")) << other;
      EXPECT_EQ(bytes(kind + "kept", 8, "optimizer.safetensors"), bytes(kind + other, 8, "optimizer.safetensors"))
          << other;
    }
    const auto last_loss = [&](const std::string& name) { return history(kind + name).evals.back().loss; };
    EXPECT_EQ(last_loss("plain"), last_loss("kept"));
    EXPECT_NE(last_loss("kept"), last_loss("read"));
    for (const bool average : {false, true}) {
      const Config c = with(average ? "read" : "kept", averages);
      const auto engine = make_engine(c, rig_.backend(), false);
      engine->commit();
      load_weights(*engine, *rig_.device, ModelFolder(c.save, average));
      const double loss =
          evaluate(*engine, open_dataset(c.valid_data, c), {.samples = c.eval_iters * c.global_batch_size}).loss;
      EXPECT_EQ(loss, last_loss(average ? "read" : "kept")) << kind << average;
    }
  }
  const std::string changed = error_of(config("fp32-fp32-read", {"averaging.ema_decay=0.9"}));
  EXPECT_NE(changed.find("averaging.ema_decay: 0.8 -> 0.9"), std::string::npos) << changed;
  try {
    const ModelFolder none(dir_.path() + "/fp32-fp32-plain", true);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("holds no averages of the weights; expected a checkpoint of a run with "
                                         "averaging.ema_decay or averaging.tail_start above 0"),
              std::string::npos)
        << e.what();
  }
}

TEST_F(TrainerTest, MomentsMayChangeTheirDtype) {
  ASSERT_EQ(run(config("r", {"train_iters=2", "schedule.lr_decay_iters=8"})), Exit::done);
  ASSERT_EQ(run(config("r", {"train_iters=4", "schedule.lr_decay_iters=8", "adam.exp_avg_dtype=bf16"})), Exit::done);
  const size_t both = bytes("r", 2, "optimizer.safetensors").size(),
               less = bytes("r", 4, "optimizer.safetensors").size();
  EXPECT_NEAR(double(less) / double(both), 0.75, 0.1);
}

// A checkpoint of format version 1, committed once: it must load for ever. To make one for a new version, run this test
// with ATHANOR_UPDATE_GOLDEN=1 and change the folder's name here.
TEST_F(TrainerTest, GoldenRunOfVersion1Resumes) {
  const fs::path golden = fs::path("tests/checkpoint/golden/run-v1") / step_folder(3),
                 here = fs::path(dir_.path()) / "golden";
  const std::vector<std::string> set = {"precision=bf16", "schedule.lr_decay_iters=8"};
  auto first = set;
  first.push_back("train_iters=3");
  if (std::getenv("ATHANOR_UPDATE_GOLDEN")) {
    ASSERT_EQ(run(config("made", first)), Exit::done);
    fs::create_directories(golden.parent_path());
    fs::copy(fs::path(dir_.path()) / "made" / step_folder(3), golden,
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  fs::create_directories(here);
  fs::copy(golden, here / step_folder(3), fs::copy_options::recursive);
  ASSERT_EQ(run(config("golden", set)), Exit::done);
  ASSERT_EQ(run(config("whole", set)), Exit::done);
  const auto a = read_run(here), b = history("whole");
  ASSERT_EQ(a.steps.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(a.steps[i].step, int64_t(i) + 4);
    EXPECT_NEAR(a.steps[i].loss, b.steps[i + 3].loss, 1e-3);  // another CPU may round otherwise
  }
}

TEST_F(TrainerTest, SupersededStepsAreMarked) {
  ASSERT_EQ(run(config("r", {"save_interval=3", "train_iters=5", "schedule.lr_decay_iters=8"})), Exit::done);
  fs::remove_all(dir_.path() + "/r/" + step_folder(5));
  ASSERT_EQ(run(config("r", {"save_interval=3", "schedule.lr_decay_iters=8"})), Exit::done);
  EXPECT_EQ(history("r").steps.size(), 8u);
  EXPECT_EQ(events("r", EventKind::resume).at(0).supersedes_from, 4);
}

TEST_F(TrainerTest, AutoMicroBatchIsStoredAndKept) {
  ASSERT_EQ(run(config("r", {"micro_batch_size=auto", "train_iters=2", "schedule.lr_decay_iters=8"})), Exit::done);
  const RunState state = read_run_state(cat(dir_.path(), "/r/", step_folder(2)));
  EXPECT_EQ(state.micro_batch_size, 4);
  ASSERT_EQ(
      run(config("r", {"micro_batch_size=auto", "train_iters=3", "schedule.lr_decay_iters=8", "memory_limit_gib=2"})),
      Exit::done);
  EXPECT_EQ(read_run_state(cat(dir_.path(), "/r/", step_folder(3))).micro_batch_size, 4);
}

TEST_F(TrainerTest, RefusesAnotherModelNamingOldAndNew) {
  ASSERT_EQ(run(config("r", {"train_iters=2", "schedule.lr_decay_iters=8"})), Exit::done);
  const std::string text = error_of(config("r", {"model.num_hidden_layers=3", "seed=5"}));
  EXPECT_NE(text.find("model.num_hidden_layers: 2 -> 3"), std::string::npos) << text;
  EXPECT_NE(text.find("seed: 1234 -> 5"), std::string::npos) << text;
}

TEST_F(TrainerTest, NoticesChangedData) {
  ASSERT_EQ(run(config("r", {"train_iters=2", "schedule.lr_decay_iters=8"})), Exit::done);
  write_shard("data.bin", 1);
  const std::string text = error_of(config("r"));
  EXPECT_NE(text.find("fingerprint"), std::string::npos) << text;
  EXPECT_EQ(run(config("r"), true), Exit::done);
}

// Stages begin in the middle of a batch of a ramp, and a later stage is configured only on resume; documents are
// reordered in every epoch. A stage that has begun cannot change.
TEST_F(TrainerTest, MixtureStagesResumeExactly) {
  write_shard("other.bin", 7);
  const auto sources = cat(R"(train_data=[{"path": ")", dir_.path(), R"(/data.bin", "dtype": "uint16", "name": "a"},
      {"path": ")",
                           dir_.path(), R"(/other.bin", "dtype": "uint16", "name": "b", "weight": 0}])");
  const std::string first = R"({"from_tokens": 97, "weights": {"b": 3}})",
                    second = R"({"from_tokens": 320, "weights": {"a": 0}})";
  const auto with = [&](const std::string& stages, const std::string& more = "fim.rate=0.5") {
    return std::vector<std::string>{sources,
                                    "train_data_stages=[" + stages + "]",
                                    "rampup_batch_size=[2, 2, 6]",
                                    "schedule.lr_decay_iters=8",
                                    "fim.rate=0.5",
                                    "fim.tokens=[46, 47, 48]",
                                    "documents.eod_token_id=49",
                                    more};
  };
  ASSERT_EQ(run(config("whole", with(first + "," + second))), Exit::done);
  ASSERT_EQ(run(config("parts", with(first, "train_iters=4"))), Exit::done);
  const std::string text = error_of(config("parts", with(R"({"from_tokens": 97, "weights": {"b": 2}})")));
  EXPECT_NE(text.find("fingerprint"), std::string::npos) << text;
  ASSERT_EQ(run(config("parts", with(first + "," + second))), Exit::done);
  ASSERT_EQ(run(config("first", with(first))), Exit::done);
  ASSERT_EQ(run(config("plain", with(first, "fim.rate=0"))), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(bytes("whole", 8, file) == bytes("parts", 8, file)) << file;
  const auto a = history("whole"), b = history("first"), c = history("plain");
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(a.steps[i].loss == b.steps[i].loss, a.steps[i].consumed_samples <= 20) << i;
  EXPECT_NE(b.steps.front().loss, c.steps.front().loss) << "documents of the first step are reordered";
}

TEST_F(TrainerTest, DivergenceStopsWithItsOwnExitCode) {
  const Config c =
      config("r", {"precision=fp16", "fp16.loss_scale=9e15", "loss_spikes.max_skipped_steps=3", "train_iters=8"});
  EXPECT_EQ(run(c), Exit::diverged);
  EXPECT_TRUE(steps("r").empty()) << "nothing that a run would go on from";
  const RunState state = read_run_state(cat(dir_.path(), "/r/", diverged_folder(3)));
  EXPECT_EQ(state.device.skipped, 3);
  EXPECT_EQ(state.device.updates, 0);
  EXPECT_EQ(state.consumed_samples, 12);  // a skipped step advances the samples
}

TEST_F(TrainerTest, LoggedLossScaleIsThatOfItsStep) {
  const std::vector<std::string> set = {"precision=fp16", "fp16.initial_loss_scale=1024", "fp16.loss_scale_window=2"};
  auto first = set;
  first.insert(first.end(), {"train_iters=4", "schedule.lr_decay_iters=8"});
  ASSERT_EQ(run(config("r", first)), Exit::done);
  ASSERT_EQ(run(config("r", set)), Exit::done);
  std::vector<double> scales;
  for (const StepMetrics& m : history("r").steps) scales.push_back(m.loss_scale);
  EXPECT_EQ(scales, (std::vector<double>{1024, 1024, 2048, 2048, 4096, 4096, 8192, 8192}));
}

TEST_F(TrainerTest, MeasuresOnePeakPerRunAndMfuIsBelowOne) {
  ASSERT_EQ(run(config("r", {"logging.peak_tflops=0", "train_iters=4", "schedule.lr_decay_iters=8"})), Exit::done);
  ASSERT_EQ(run(config("r", {"logging.peak_tflops=0"})), Exit::done);
  const auto log = history("r");
  std::vector<double> peaks;
  std::string resumed;
  for (const EventRecord& e : log.events) {
    if (e.kind != EventKind::start && e.kind != EventKind::resume) continue;
    ASSERT_TRUE(e.peak_tflops);
    peaks.push_back(*e.peak_tflops);
    resumed = e.text;
  }
  ASSERT_EQ(peaks.size(), 2u);
  if (peaks[0] != peaks[1]) {
    EXPECT_NE(resumed.find("MFU refers to"), std::string::npos) << resumed;
  }
  ASSERT_EQ(log.steps.size(), 8u);
  for (const StepMetrics& m : log.steps) EXPECT_LE(m.mfu, 1);
}

// The logged validation loss is over all windows, as in `athanor eval`, or over a sample, with its standard error.
TEST_F(TrainerTest, ValidationUsesAllWindowsOrASample) {
  ASSERT_EQ(run(config("r", {"eval_iters=0"})), Exit::done);
  const auto whole = history("r").evals.back();
  EXPECT_EQ(whole.windows, 312);  // 5,000 tokens
  EXPECT_EQ(whole.windows_all, 312);
  EXPECT_EQ(whole.tokens, 312 * 16);
  ASSERT_EQ(run(config("s", {"eval_iters=20"})), Exit::done);
  const auto sample = history("s").evals.back();
  EXPECT_EQ(sample.windows, 80);
  EXPECT_EQ(sample.windows_all, 312);
  EXPECT_GT(sample.loss_error, 0);
  EXPECT_NEAR(sample.loss_error / whole.loss_error, 312.0 / 80 / 2,
              0.5);  // the error falls with the root of the number of windows
  EXPECT_NEAR(sample.loss, whole.loss, 4 * sample.loss_error);
}

// Each entry has the loss that it has when evaluated alone. The record of the mean is last: it marks a complete
// evaluation.
TEST_F(TrainerTest, EveryValidDataEntryHasItsOwnLoss) {
  write_shard("other.bin", 7);
  const std::string a = cat(R"({"path": ")", dir_.path(),
                            R"(/data.bin", "dtype": "uint16", "name": "a", "weight": 3})"),
                    b = cat(R"({"path": ")", dir_.path(), R"(/other.bin", "dtype": "uint16"})");
  ASSERT_EQ(run(config("both", {"eval_iters=0", "valid_data=[" + a + "," + b + "]"})), Exit::done);
  ASSERT_EQ(run(config("one", {"eval_iters=0", "valid_data=[" + a + "]"})), Exit::done);
  const auto both = history("both").evals, one = history("one").evals;
  ASSERT_EQ(both.size(), 3 * one.size());
  for (size_t i = 0; i < one.size(); ++i) {
    const EvalMetrics &of_a = both[3 * i], &of_b = both[3 * i + 1], &mean = both[3 * i + 2];
    EXPECT_EQ(of_a.name, "valid/a");
    EXPECT_EQ(of_b.name, cat("valid/", dir_.path(), "/other.bin"));
    EXPECT_EQ(mean.name, "valid");
    EXPECT_EQ(of_a.step, mean.step);
    EXPECT_EQ(of_a.loss, one[i].loss);
    EXPECT_EQ(of_a.loss_error, one[i].loss_error);
    EXPECT_EQ(of_a.windows, 312);
    EXPECT_NEAR(mean.loss, (3 * of_a.loss + of_b.loss) / 4, 1e-12);
    EXPECT_EQ(mean.windows, of_a.windows + of_b.windows);
  }
}

// A step of four samples has three of `a` and one of `b`, and the first step none of `b`.
TEST_F(TrainerTest, EveryTrainDataEntryHasItsOwnLoss) {
  write_shard("other.bin", 7);
  const std::string entry = R"(", "dtype": "uint16", "name": )";
  const std::string sources =
      cat(R"(train_data=[{"path": ")", dir_.path(), "/data.bin", entry, R"("a", "weight": 3}, {"path": ")", dir_.path(),
          "/other.bin", entry, R"("b", "weight": 0}])");
  ASSERT_EQ(run(config("both", {sources, R"(train_data_stages=[{"from_tokens": 64, "weights": {"b": 1}}])"})),
            Exit::done);
  ASSERT_EQ(run(config("one")), Exit::done);
  for (const StepMetrics& m : history("one").steps) EXPECT_TRUE(m.source_losses.empty());
  for (const StepMetrics& m : history("both").steps) {
    ASSERT_EQ(m.source_losses.size(), m.step == 1 ? 1 : 2);
    const double a = m.source_losses.front().second, b = m.source_losses.back().second;
    EXPECT_EQ(m.source_losses.front().first, "a");
    EXPECT_EQ(m.source_losses.back().first, m.step == 1 ? "a" : "b");
    EXPECT_NEAR((3 * a + b) / 4, m.loss, 1e-6);
  }
}

// In fp16 a weight above 65504 is infinite: the step that makes it so is itself a good one.
TEST_F(TrainerTest, DivergedStateDoesNotReplaceAHealthyCheckpoint) {
  const std::vector<std::string> common = {
      "precision=fp16",  "fp16.loss_scale=1",          "loss_spikes.max_skipped_steps=3",
      "save_interval=1", "checkpoint.keep_latest_k=1", "schedule.lr_decay_iters=8",
      "eval_interval=0", "schedule.lr_warmup_iters=0"};
  const auto with = [&](const char* run_name, std::initializer_list<std::string> more) {
    auto set = common;
    set.insert(set.end(), more);
    return config(run_name, set);
  };
  for (const char* name : {"r", "end"}) ASSERT_EQ(run(with(name, {"train_iters=2"})), Exit::done);
  ASSERT_EQ(steps("r"), std::vector<int64_t>{2});
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(run(with("r", {"learning_rate=1e6"})), Exit::diverged);
    EXPECT_EQ(steps("r"), std::vector<int64_t>{2});
    EXPECT_EQ(list_diverged(dir_.path() + "/r").size(), 1u);
    const auto events = history("r").events;
    EXPECT_NE(
        std::find_if(events.rbegin(), events.rend(), [](const EventRecord& e) { return e.kind == EventKind::resume; })
            ->text.find(step_folder(2)),
        std::string::npos);
  }
  // The last step of a run may be the one.
  EXPECT_EQ(run(with("end", {"learning_rate=1e6", "train_iters=3"})), Exit::diverged);
  EXPECT_EQ(steps("end"), std::vector<int64_t>{2});
  EXPECT_EQ(run(with("end", {})), Exit::done) << "a smaller rate goes on";
}

TEST_F(TrainerTest, SavesDoNotReadDataOrTokenizer) {
  write_tokenizer(*make_tokenizer({}), dir_.path());
  const std::string before = read_file(dir_.path() + "/tokenizer.athanor.json", 1 << 20);
  ASSERT_EQ(run(config("r", {"save_interval=2"}), false,
                at(Activity::step, 2,
                   [&] {
                     fs::remove(dir_.path() + "/data.bin");
                     std::ofstream(dir_.path() + "/tokenizer.athanor.json") << "something else";
                   })),
            Exit::done);
  EXPECT_EQ(steps("r"), (std::vector<int64_t>{2, 4, 6, 8}));
  EXPECT_EQ(bytes("r", 8, "tokenizer.athanor.json"), before);
  for (const EventRecord& e : history("r").events)
    if (e.kind == EventKind::checkpoint) {
      EXPECT_GT(e.bytes, bytes("r", 8, "model.safetensors").size());
    }
}

TEST_F(TrainerTest, DataErrorSavesTheLastCompleteStepAndIsReported) {
  ASSERT_EQ(run(config("whole")), Exit::done);
  const std::string path = dir_.path() + "/data.bin", text = read_file(path, 1 << 20);
  const std::string error = failure_of(config("r"), at(Activity::step, 3, [&] { fs::resize_file(path, 100); }));
  EXPECT_NE(error.find("data.bin"), std::string::npos) << error;
  ASSERT_EQ(steps("r").size(), 1u) << error;
  const int64_t saved = steps("r")[0];
  EXPECT_GE(saved, 2);
  const auto told = history("r");
  EXPECT_EQ(told.steps.back().step, saved);
  ASSERT_EQ(told.events.back().kind, EventKind::error);
  EXPECT_EQ(told.events.back().step, saved);
  EXPECT_EQ(told.events.back().text, error);
  write_file(path, text);
  ASSERT_EQ(run(config("r")), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"})
    EXPECT_EQ(bytes("whole", 8, file), bytes("r", 8, file)) << file;
}

TEST_F(TrainerTest, FailedEvaluationSavesItsStep) {
  std::ofstream(dir_.path() + "/v.bin") << read_file(dir_.path() + "/data.bin", 1 << 20);
  const std::string v = cat(R"(valid_data=[{"path":")", dir_.path(), R"(/v.bin","dtype":"uint16"}])");
  const std::string error =
      failure_of(config("r", {v}), at(Activity::evaluation, 4, [&] { fs::resize_file(dir_.path() + "/v.bin", 10); }));
  EXPECT_NE(error.find("v.bin"), std::string::npos) << error;
  EXPECT_EQ(steps("r"), std::vector<int64_t>{4});
  EXPECT_EQ(history("r").events.back().kind, EventKind::error);
}

TEST_F(TrainerTest, FailedPeriodicSaveIsRetried) {
  std::optional<FileSizeLimit> limit;  // the optimizer's file does not fit, the log does
  const auto doing = [&](Activity now, int64_t step) {
    if (now != Activity::step) return;
    if (step == 2) limit.emplace(40'000);
    if (step == 5) limit.reset();
  };
  ASSERT_EQ(run(config("r", {"save_interval=2"}), false, doing), Exit::done);
  // A machine that is busy for 10 seconds between two steps sees further attempts.
  ASSERT_GE(steps("r").size(), 2u);
  EXPECT_GE(steps("r").front(), 5);
  EXPECT_EQ(steps("r").back(), 8);
  std::vector<int64_t> failed;
  for (const EventRecord& e : history("r").events)
    if (e.kind == EventKind::warn && e.text.find("optimizer.safetensors") != e.text.npos) failed.push_back(e.step);
  ASSERT_GE(failed.size(), 2u);
  EXPECT_EQ(failed.front(), 2);
  EXPECT_EQ(failed.back(), 4);
}

TEST_F(TrainerTest, FailedFinalSaveIsAnError) {
  std::optional<FileSizeLimit> limit;
  const std::string error = failure_of(config("r"), at(Activity::step, 2, [&] { limit.emplace(40'000); }));
  limit.reset();
  EXPECT_NE(error.find("optimizer.safetensors"), std::string::npos) << error;
  EXPECT_EQ(history("r").events.back().kind, EventKind::error);
  EXPECT_TRUE(steps("r").empty());
}

// A due checkpoint is saved first, the evaluation stops between two micro-batches, and a resumed run repeats it once.
TEST_F(TrainerTest, StopDuringAnEvaluationLosesNothing) {
  std::vector<int64_t> saved;
  const auto set = std::vector<std::string>{"save_interval=4", "eval_iters=50"};
  EXPECT_EQ(run(config("r", set), false,
                at(Activity::evaluation, 4,
                   [&] {
                     saved = steps("r");
                     std::raise(SIGTERM);
                   })),
            Exit::requeue);
  EXPECT_EQ(saved, std::vector<int64_t>{4});
  EXPECT_TRUE(history("r").evals.empty());
  EXPECT_EQ(history("r").steps.size(), 4u);
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(run(config("r", set)), Exit::done);
    const auto evals = history("r").evals;
    ASSERT_EQ(evals.size(), 2u);
    EXPECT_EQ(evals[0].step, 4);
    EXPECT_EQ(evals[1].step, 8);
  }
}

TEST_F(TrainerTest, LoadStepChoosesAnEarlierCheckpoint) {
  ASSERT_EQ(run(config("r", {"save_interval=2", "train_iters=6", "schedule.lr_decay_iters=8"})), Exit::done);
  const std::string at_six = bytes("r", 6, "model.safetensors");
  ASSERT_EQ(run(config("r", {"load_step=2", "train_iters=6", "schedule.lr_decay_iters=8"})), Exit::done);
  EXPECT_EQ(bytes("r", 6, "model.safetensors"), at_six);
  EXPECT_THROW(run(config("r", {"load_step=3"})), Error);
}

// A run goes back to step 2, and from then on the folder means the branch that begins there.
TEST_F(TrainerTest, RolledBackRunContinuesItsNewBranch) {
  const auto resumed_from = [&](std::vector<std::string> set, int64_t train_iters) {
    set.insert(set.end(), {"save_interval=2", "schedule.lr_decay_iters=8", cat("train_iters=", train_iters)});
    EXPECT_EQ(run(config("r", set)), Exit::done);
    const auto resumes = events("r", EventKind::resume);
    return resumes.empty() ? -1 : resumes.back().step;
  };
  const std::string rate = "learning_rate=0.02";
  EXPECT_EQ(resumed_from({}, 6), -1);
  EXPECT_EQ(resumed_from({rate, "load_step=2"}, 3), 2);
  EXPECT_EQ(resumed_from({rate, "load_step=2"}, 4), 3);  // repeating the command does not go back again
  EXPECT_EQ(resumed_from({rate}, 5), 4);
  EXPECT_EQ(resumed_from({"learning_rate=0.03", "load_step=2"}, 3), 2);  // another command does
  EXPECT_EQ(steps("r").back(), 3);
  EXPECT_EQ(resumed_from({"learning_rate=0.03", "load=" + dir_.path() + "/r/latest"}, 4), 3);
}

// `load none` restarts each time, except in a job that the batch system or the launcher of the ranks restarts.
TEST_F(TrainerTest, RequeuedJobContinuesItsRestartedRun) {
  const auto begun_at = [&] { return events("r", EventKind::resume).back().step; };
  const auto anew = [&](int64_t train_iters) {
    return config("r", {"load=none", "schedule.lr_decay_iters=8", cat("train_iters=", train_iters)});
  };
  ASSERT_EQ(run(anew(2)), Exit::done);
  ASSERT_EQ(run(anew(3)), Exit::done);
  EXPECT_EQ(begun_at(), 0);
  for (const auto& [count, done] : {std::pair{"SLURM_RESTART_COUNT", 3}, {"TORCHELASTIC_RESTART_COUNT", 4}}) {
    ::setenv(count, "1", 1);
    ASSERT_EQ(run(anew(done + 1)), Exit::done);
    ::unsetenv(count);
    EXPECT_EQ(begun_at(), done) << count;
  }
}

TEST_F(TrainerTest, GradientAccumulationStepsMustMatchTheMesh) {
  EXPECT_EQ(run(config("", {"train_iters=1", "schedule.lr_warmup_iters=0", "gradient_accumulation_steps=2"})),
            Exit::done);
  EXPECT_NE(error_of(config("", {"gradient_accumulation_steps=1"})).find("2 micro-batches"), std::string::npos);
}

// The folder of a checkpoint opens in transformers with the same logits. Needs ATHANOR_PYTHON: an interpreter with it.
TEST_F(TrainerTest, CheckpointOpensInTransformers) {
  const char* python = std::getenv("ATHANOR_PYTHON");
  if (!python || std::system(cat(python, " -c 'import torch, transformers' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "ATHANOR_PYTHON names no interpreter with torch and transformers";
  const Config c = config("r", {"train_iters=3", "schedule.lr_decay_iters=8"});
  ASSERT_EQ(run(c), Exit::done);
  const std::string folder = cat(dir_.path(), "/r/", step_folder(3));
  Engine engine(c.model, engine_options(c, false), rig_.backend());
  engine.want_logits();
  engine.commit();
  load_weights(engine, *rig_.device, ModelFolder(folder));
  std::vector<int32_t> tokens(2 * 16);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = int32_t(i * 7 % 50);
  std::vector<float> logits = engine.logits(tokens);
  const std::string file = dir_.path() + "/logits.safetensors";
  save_safetensors(file, std::vector<TensorData>{tensor_data("tokens", {tokens.data(), DType::i32, {2, 16}}),
                                                 tensor_data("logits", {logits.data(), DType::f32, {2, 16, 50}})});
  EXPECT_EQ(std::system(cat(python, " scripts/check_transformers.py ", folder, " --logits ", file).c_str()), 0);
}

TEST_F(TrainerTest, RunsWithoutASaveFolder) { EXPECT_EQ(run(config("", {"train_iters=2"})), Exit::done); }

TEST_F(TrainerTest, ModelThatCannotFitStopsBeforeTheFirstStep) {
  const std::string text = error_of(config("r", {"memory_limit_gib=0.0001", "runtime_reserve_mib=0"}));
  EXPECT_NE(text.find("memory"), std::string::npos) << text;
  EXPECT_TRUE(list_checkpoints(dir_.path() + "/r").empty());
}

TEST_F(TrainerTest, TwoRunsCannotShareAFolder) {
  const RunLock held(dir_.path() + "/r");
  EXPECT_THROW(run(config("r")), Error);
}

TEST_F(TrainerTest, DeletedRunFolderIsRecreated) {
  const std::string folder = dir_.path() + "/r";
  EXPECT_EQ(run(config("r"), false, at(Activity::step, 6, [&] { fs::remove_all(folder); })), Exit::done);
  const RunRecords log = history("r");
  ASSERT_FALSE(log.steps.empty());
  EXPECT_EQ(log.steps.back().step, 8);
  EXPECT_EQ(steps("r"), std::vector<int64_t>{8});
  EXPECT_TRUE(fs::exists(folder + "/.lock"));
}

TEST_F(TrainerTest, RunEndsIfAnotherRunOwnsItsFolder) {
  const std::string folder = dir_.path() + "/r";
  std::optional<RunLock> other;
  const auto take = [&] {
    fs::remove_all(folder);
    other.emplace(folder);
    std::ofstream(folder + "/.lock") << "host elsewhere, process 1\n";
  };
  const std::string error = failure_of(config("r"), at(Activity::step, 6, take));
  EXPECT_NE(error.find("host elsewhere, process 1"), std::string::npos) << error;
  EXPECT_TRUE(steps("r").empty()) << "nothing is saved there";
}

}  // namespace
}  // namespace athanor
