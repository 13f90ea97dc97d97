// Whole runs of a tiny model on a shard written by the test.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/rng.h"
#include "metrics/run_records.h"
#include "tests/train/harness.h"
#include "train/trainer.h"

namespace athanor {

namespace fs = std::filesystem;
using testing::Rig;
using testing::TempDir;

// A folder with data, in which runs are saved.
class RunFolder {
 protected:
  RunFolder() { write_shard("data.bin", 0); }

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
      "schedule": {"lr_warmup_iters": 2}, "precision": "fp32", "eval_interval": 4, "eval_iters": 1, "save_interval": 0, "log_interval": 1000,
      "logging": {"progress": "off", "peak_tflops": 1}, "save": ")",
            run.empty() ? "" : dir_.path() + "/" + run, R"(", "train_data": [{"path": ")", dir_.path(),
            R"(/data.bin", "dtype": "uint16"}], "valid_data": [{"path": ")", dir_.path(),
            R"(/data.bin", "dtype": "uint16"}]})");
    return parse_config(text, "test", "", set);
  }

  std::string bytes(const std::string& run, int64_t step, const std::string& file) {
    return read_file(cat(dir_.path(), "/", run, "/", step_folder(step), "/", file), 1 << 24);
  }

  // Mostly zeros, which are quickly learned; the windows of 16 tokens listed in `noise` are random.
  void write_dull_shard(const std::string& name, const std::vector<int64_t>& noise) {
    std::vector<uint16_t> tokens(24001, 0);
    for (const int64_t window : noise)
      for (int64_t i = 0; i < 16; ++i)
        tokens[size_t(window * 16 + i)] = uint16_t(1 + random_bits(9, stream_of("noise"), uint64_t(i)) % 49);
    std::ofstream(dir_.path() + "/" + name, std::ios::binary)
        .write(reinterpret_cast<const char*>(tokens.data()), std::streamsize(2 * tokens.size()));
  }

  std::vector<EventRecord> events(const std::string& run_name, EventKind kind) {
    std::vector<EventRecord> all = history(run_name).events;
    std::erase_if(all, [&](const EventRecord& e) { return e.kind != kind; });
    return all;
  }

  std::vector<int64_t> steps(const std::string& run) const {
    std::vector<int64_t> all;
    for (const CheckpointInfo& c : list_checkpoints(dir_.path() + "/" + run)) all.push_back(c.step);
    return all;
  }
  RunRecords history(const std::string& run) const { return read_run(dir_.path() + "/" + run); }

  TempDir dir_;
};

class TrainerTest : public ::testing::Test, protected RunFolder {
 protected:
  using Doing = std::function<void(Activity, int64_t step)>;
  Exit run(const Config& c, bool allow_changed_data = false, const Doing& doing = {}) {
    StopSignals signals;
    Trainer trainer(c, rig_.backend(),
                    {.stop = signals,
                     .program = {.version = "test", .command = {}, .libraries = {}},
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

  std::string error_of(const Config& c) {
    try {
      run(c);
      return "no error";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage) << e.what();
      return e.what();
    }
  }

  // The message of a run that fails.
  std::string failure_of(const Config& c, const Doing& doing) {
    try {
      run(c, false, doing);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  // Acts once, when the run begins this activity at this step.
  static Doing at(Activity activity, int64_t step, const std::function<void()>& act) {
    return [=, done = false](Activity now, int64_t n) mutable {
      if (now == activity && n == step && !std::exchange(done, true)) act();
    };
  }
  Rig rig_;
};

}  // namespace athanor
