// Whole runs: resume is bit-exact in every precision, what is stored decides, what changed is noticed.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "base/file.h"
#include "base/rng.h"
#include "data/shard_writer.h"
#include "metrics/jsonl.h"
#include "tests/metrics/file_size_limit.h"
#include "tests/train/harness.h"
#include "tokenizer/load.h"
#include "train/trainer.h"

namespace athanor {
namespace {

namespace fs = std::filesystem;
using testing::Rig;
using testing::TempDir;

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() { write_shard("data.bin", 0); }

  void write_shard(const std::string& name, uint64_t seed) {
    std::ofstream out(dir_.path() + "/" + name, std::ios::binary);
    for (uint64_t i = 0; i < 5000; ++i) {
      const auto token = uint16_t(random_bits(seed, stream_of("shard"), i) % 50 * (i % 3 ? 1 : 0));
      out.write(reinterpret_cast<const char*>(&token), 2);
    }
  }

  Config config(const std::string& run, const std::vector<std::string>& set = {}) {
    const std::string text =
        cat(R"({"model": {"model_type": "llama", "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 16},
      "seq_length": 16, "global_batch_size": 4, "micro_batch_size": 2, "train_iters": 8, "learning_rate": 0.01,
      "lr_warmup_iters": 2, "precision": "fp32", "eval_interval": 4, "eval_iters": 1, "save_interval": 0, "log_interval": 1000,
      "progress": "off", "peak_tflops": 1, "save": ")",
            run.empty() ? "" : dir_.path() + "/" + run, R"(", "train_data": [{"path": ")", dir_.path(),
            R"(/data.bin", "dtype": "uint16"}], "valid_data": [{"path": ")", dir_.path(),
            R"(/data.bin", "dtype": "uint16"}]})");
    return parse_config(text, "test", "", set);
  }

  using Doing = std::function<void(Activity, int64_t step)>;
  Exit run(const Config& c, bool allow_changed_data = false, const Doing& doing = {}) {
    Trainer trainer(c, rig_.backend(),
                    {.program = {.version = "test", .command = {}, .libraries = {}},
                     .allow_changed_data = allow_changed_data,
                     .doing = doing});
    ::testing::internal::CaptureStdout();
    try {
      const Exit code = trainer.run();
      ::testing::internal::GetCapturedStdout();
      return code;
    } catch (...) {
      ::testing::internal::GetCapturedStdout();
      throw;
    }
  }

  std::string bytes(const std::string& run, int64_t step, const std::string& file) {
    return read_file(cat(dir_.path(), "/", run, "/", step_folder(step), "/", file), 1 << 24);
  }

  std::string error_of(const Config& c) {
    try {
      run(c);
      return "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage) << e.what();
      return e.what();
    }
  }

  // What a run that fails says.
  std::string failure_of(const Config& c, const Doing& doing) {
    try {
      run(c, false, doing);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  // Once, when the run begins this.
  static Doing at(Activity activity, int64_t step, const std::function<void()>& act) {
    return [=, done = false](Activity now, int64_t n) mutable {
      if (now == activity && n == step && !std::exchange(done, true)) act();
    };
  }
  std::vector<int64_t> steps(const std::string& run) const {
    std::vector<int64_t> all;
    for (const CheckpointInfo& c : list_checkpoints(dir_.path() + "/" + run)) all.push_back(c.step);
    return all;
  }
  MetricHistory history(const std::string& run) const {
    return read_metrics(dir_.path() + "/" + run + "/metrics.jsonl");
  }

  TempDir dir_;
  Rig rig_;
};

struct Precise {
  const char* precision;
  const char* master;
  const char* moments = "fp32";
};
class Resume : public TrainerTest, public ::testing::WithParamInterface<Precise> {};

TEST_P(Resume, NPlusMStepsEqualNSaveResumeM) {
  const std::vector<std::string> set = {
      cat("precision=", GetParam().precision), cat("master_weights=", GetParam().master),
      cat("exp_avg_dtype=", GetParam().moments), cat("exp_avg_sq_dtype=", GetParam().moments)};
  ASSERT_EQ(run(config("whole", set)), Exit::done);
  auto first = set, second = set;
  // The schedule must not end early in the first half: it is 8 steps long in both.
  first.insert(first.end(), {"train_iters=3", "lr_decay_iters=8"});
  second.push_back("lr_decay_iters=8");
  ASSERT_EQ(run(config("parts", first)), Exit::done);
  ASSERT_EQ(run(config("parts", second)), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"})
    EXPECT_EQ(bytes("whole", 8, file), bytes("parts", 8, file)) << file;
  const auto a = read_metrics(dir_.path() + "/whole/metrics.jsonl"),
             b = read_metrics(dir_.path() + "/parts/metrics.jsonl");
  ASSERT_EQ(a.steps.size(), 8u);
  ASSERT_EQ(b.steps.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(a.steps[i].loss, b.steps[i].loss) << i;
}

INSTANTIATE_TEST_SUITE_P(Precisions, Resume,
                         ::testing::Values(Precise{"fp32", "fp32"}, Precise{"tf32", "fp32"}, Precise{"bf16", "fp32"},
                                           Precise{"bf16", "bf16"}, Precise{"fp16", "fp32"}, Precise{"bf16", "split"},
                                           Precise{"bf16", "split", "bf16"}, Precise{"bf16", "bf16", "bf16"}),
                         [](const auto& which) {
                           const auto& p = which.param;
                           return std::string(p.precision) + "_" + p.master + "_" + p.moments;
                         });

// A run may change between fp32 and split masters; its checkpoints have the same bits as if it had not.
TEST_F(TrainerTest, SplitMastersGoOnFromWholeOnesAndBack) {
  const auto with = [&](const char* run_name, const char* master, int64_t steps) {
    return config(run_name,
                  {"precision=bf16", cat("master_weights=", master), cat("train_iters=", steps), "lr_decay_iters=8"});
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

TEST_F(TrainerTest, MomentsMayChangeTheirDtype) {
  ASSERT_EQ(run(config("r", {"train_iters=2", "lr_decay_iters=8"})), Exit::done);
  ASSERT_EQ(run(config("r", {"train_iters=4", "lr_decay_iters=8", "exp_avg_dtype=bf16"})), Exit::done);
  const size_t both = bytes("r", 2, "optimizer.safetensors").size(),
               less = bytes("r", 4, "optimizer.safetensors").size();
  EXPECT_NEAR(double(less) / double(both), 0.75, 0.1);
}

// A checkpoint of format version 1, committed once: it must load for ever. To make one for a new version, run this test
// with ATHANOR_UPDATE_GOLDEN=1 and change the folder's name here.
TEST_F(TrainerTest, GoldenRunOfVersion1GoesOn) {
  const fs::path golden = fs::path("tests/golden/run-v1") / step_folder(3), here = fs::path(dir_.path()) / "golden";
  const std::vector<std::string> set = {"precision=bf16", "lr_decay_iters=8"};
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
  const auto a = read_metrics(here / "metrics.jsonl"), b = read_metrics(dir_.path() + "/whole/metrics.jsonl");
  ASSERT_EQ(a.steps.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(a.steps[i].step, int64_t(i) + 4);
    EXPECT_NEAR(a.steps[i].loss, b.steps[i + 3].loss, 1e-3);  // another CPU may round otherwise
  }
}

TEST_F(TrainerTest, SupersededStepsAreMarked) {
  ASSERT_EQ(run(config("r", {"save_interval=3", "train_iters=5", "lr_decay_iters=8"})), Exit::done);
  fs::remove_all(dir_.path() + "/r/" + step_folder(5));
  ASSERT_EQ(run(config("r", {"save_interval=3", "lr_decay_iters=8"})), Exit::done);
  const auto history = read_metrics(dir_.path() + "/r/metrics.jsonl");
  ASSERT_EQ(history.steps.size(), 8u);
  EXPECT_GE(history.superseded, 2);
}

TEST_F(TrainerTest, AutoMicroBatchIsStoredAndKept) {
  ASSERT_EQ(run(config("r", {"micro_batch_size=auto", "train_iters=2", "lr_decay_iters=8"})), Exit::done);
  const RunState state = read_run_state(cat(dir_.path(), "/r/", step_folder(2)));
  EXPECT_EQ(state.micro_batch_size, 4);
  ASSERT_EQ(run(config("r", {"micro_batch_size=auto", "train_iters=3", "lr_decay_iters=8", "memory_limit_gib=2"})),
            Exit::done);
  EXPECT_EQ(read_run_state(cat(dir_.path(), "/r/", step_folder(3))).micro_batch_size, 4);
}

TEST_F(TrainerTest, RefusesAnotherModelNamingOldAndNew) {
  ASSERT_EQ(run(config("r", {"train_iters=2", "lr_decay_iters=8"})), Exit::done);
  const std::string text = error_of(config("r", {"model.num_hidden_layers=3", "seed=5"}));
  EXPECT_NE(text.find("model.num_hidden_layers: 2 -> 3"), std::string::npos) << text;
  EXPECT_NE(text.find("seed: 1234 -> 5"), std::string::npos) << text;
}

TEST_F(TrainerTest, NoticesChangedData) {
  ASSERT_EQ(run(config("r", {"train_iters=2", "lr_decay_iters=8"})), Exit::done);
  write_shard("data.bin", 1);
  const std::string text = error_of(config("r"));
  EXPECT_NE(text.find("fingerprint"), std::string::npos) << text;
  EXPECT_EQ(run(config("r"), true), Exit::done);
}

TEST_F(TrainerTest, DivergenceStopsWithItsOwnCode) {
  const Config c = config("r", {"precision=fp16", "loss_scale=9e15", "max_skipped_steps=3", "train_iters=8"});
  EXPECT_EQ(run(c), Exit::diverged);
  EXPECT_TRUE(steps("r").empty()) << "nothing that a run would go on from";
  const RunState state = read_run_state(cat(dir_.path(), "/r/", diverged_folder(3)));
  EXPECT_EQ(state.device.skipped, 3);
  EXPECT_EQ(state.device.updates, 0);
  EXPECT_EQ(state.consumed_samples, 12);  // a skipped step advances the samples
}

// In fp16 a weight above 65504 is infinite: the step that makes it so is itself a good one.
TEST_F(TrainerTest, ADivergedStateCostsNoHealthyCheckpoint) {
  const std::vector<std::string> common = {"precision=fp16",  "loss_scale=1",     "max_skipped_steps=3",
                                           "save_interval=1", "keep_latest_k=1",  "lr_decay_iters=8",
                                           "eval_interval=0", "lr_warmup_iters=0"};
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

TEST_F(TrainerTest, SavesReadNothingOfDataAndTokenizer) {
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

TEST_F(TrainerTest, ADataErrorSavesTheLastWholeStepAndIsTold) {
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

TEST_F(TrainerTest, AnEvaluationThatFailsSavesItsStep) {
  std::ofstream(dir_.path() + "/v.bin") << read_file(dir_.path() + "/data.bin", 1 << 20);
  const std::string v = cat(R"(valid_data=[{"path":")", dir_.path(), R"(/v.bin","dtype":"uint16"}])");
  const std::string error =
      failure_of(config("r", {v}), at(Activity::evaluation, 4, [&] { fs::resize_file(dir_.path() + "/v.bin", 10); }));
  EXPECT_NE(error.find("v.bin"), std::string::npos) << error;
  EXPECT_EQ(steps("r"), std::vector<int64_t>{4});
  EXPECT_EQ(history("r").events.back().kind, EventKind::error);
}

TEST_F(TrainerTest, APeriodicSaveThatFailsIsTriedAgain) {
  std::optional<FileSizeLimit> limit;  // the optimizer's file does not fit, the log does
  const auto doing = [&](Activity now, int64_t step) {
    if (now != Activity::step) return;
    if (step == 2) limit.emplace(40'000);
    if (step == 5) limit.reset();
  };
  ASSERT_EQ(run(config("r", {"save_interval=2"}), false, doing), Exit::done);
  EXPECT_EQ(steps("r"), (std::vector<int64_t>{6, 8}));
  std::vector<int64_t> failed;
  for (const EventRecord& e : history("r").events)
    if (e.kind == EventKind::warn && e.text.find("optimizer.safetensors") != e.text.npos) failed.push_back(e.step);
  EXPECT_EQ(failed, (std::vector<int64_t>{2, 4}));
}

TEST_F(TrainerTest, TheLastSaveMustNotFail) {
  std::optional<FileSizeLimit> limit;
  const std::string error = failure_of(config("r"), at(Activity::step, 2, [&] { limit.emplace(40'000); }));
  limit.reset();
  EXPECT_NE(error.find("optimizer.safetensors"), std::string::npos) << error;
  EXPECT_EQ(history("r").events.back().kind, EventKind::error);
  EXPECT_TRUE(steps("r").empty());
}

// The checkpoint that is due comes first, the evaluation ends between two micro-batches, and a resumed run makes up for
// it, once.
TEST_F(TrainerTest, AStopDuringAnEvaluationLosesNothing) {
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

TEST(StopAtStart, EndsTheProcessWhateverItIsAt) {
  const auto start = [] {
    const StopSignals signals;
    const StopAtStart quick(signals, [](int signal) { std::fprintf(stderr, "last words of %d", signal); });
    std::raise(SIGTERM);
    std::this_thread::sleep_for(std::chrono::seconds(20));
  };
  EXPECT_EXIT(start(), ::testing::ExitedWithCode(85), cat("last words of ", SIGTERM));
}

TEST_F(TrainerTest, LoadStepChoosesAnEarlierCheckpoint) {
  ASSERT_EQ(run(config("r", {"save_interval=2", "train_iters=6", "lr_decay_iters=8"})), Exit::done);
  const std::string at_six = bytes("r", 6, "model.safetensors");
  ASSERT_EQ(run(config("r", {"load_step=2", "train_iters=6", "lr_decay_iters=8"})), Exit::done);
  EXPECT_EQ(bytes("r", 6, "model.safetensors"), at_six);
  EXPECT_THROW(run(config("r", {"load_step=3"})), Error);
}

TEST_F(TrainerTest, AccumulationStepsMustAgree) {
  EXPECT_EQ(run(config("", {"train_iters=1", "lr_warmup_iters=0", "gradient_accumulation_steps=2"})), Exit::done);
  EXPECT_NE(error_of(config("", {"gradient_accumulation_steps=1"})).find("2 micro-batches"), std::string::npos);
}

// The folder of a checkpoint opens in transformers with the same logits. Needs ATHANOR_PYTHON: an interpreter with it.
TEST_F(TrainerTest, CheckpointOpensInTransformers) {
  const char* python = std::getenv("ATHANOR_PYTHON");
  if (!python || std::system(cat(python, " -c 'import torch, transformers' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "ATHANOR_PYTHON names no interpreter with torch and transformers";
  const Config c = config("r", {"train_iters=3", "lr_decay_iters=8"});
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

TEST_F(TrainerTest, WhatCannotFitStopsBeforeStepOne) {
  const std::string text = error_of(config("r", {"memory_limit_gib=0.0001", "runtime_reserve_mib=0"}));
  EXPECT_NE(text.find("memory"), std::string::npos) << text;
  EXPECT_TRUE(list_checkpoints(dir_.path() + "/r").empty());
}

TEST_F(TrainerTest, TwoRunsCannotShareAFolder) {
  const RunLock held(dir_.path() + "/r");
  EXPECT_THROW(run(config("r")), Error);
}

}  // namespace
}  // namespace athanor
