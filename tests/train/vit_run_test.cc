// Whole runs of a vision transformer: accuracy in evaluations, and a resumed run with the bits of one that was not
// stopped.
#include <cmath>
#include <csignal>

#include "convert/model_folder.h"
#include "data/image_file.h"
#include "tests/train/trainer_rig.h"

namespace athanor {
namespace {

class VitRun : public TrainerTest {
 protected:
  VitRun() {
    write("train.bin", 0, 96);
    write("val.bin", 1000, 24);
  }

  // Class c has its brightest row at c.
  void write(const std::string& name, int64_t first, int64_t count) {
    ImageWriter writer(dir_ / name, {.classes = 4, .channels = 1, .height = 4, .width = 4});
    for (int64_t i = first; i < first + count; ++i) {
      std::vector<uint8_t> pixels(16);
      for (size_t p = 0; p < 16; ++p)
        pixels[p] = uint8_t(random_bits(2, stream_of("pixels"), uint64_t(i) * 16 + p) % 100);
      for (size_t x = 0; x < 4; ++x) pixels[size_t(i % 4) * 4 + x] += 120;
      writer.append(i % 4, pixels);
    }
    writer.finish();
  }

  Config vit(const std::string& run, std::vector<std::string> set = {}) {
    const std::string text = cat(
        R"({"model": {"model_type": "vit", "num_labels": 4, "image_size": 4, "patch_size": 2, "num_channels": 1,
      "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
      "global_batch_size": 8, "micro_batch_size": 4, "train_iters": 60, "learning_rate": 0.01,
      "schedule": {"lr_warmup_iters": 5}, "precision": "fp32", "eval_interval": 30, "eval_iters": 3,
      "save_interval": 20, "log_interval": 1000, "images": {"horizontal_flip": true},
      "logging": {"progress": "off", "peak_tflops": 1}, "save": ")",
        dir_ / run, R"(", "train_data": ")", dir_ / "train.bin", R"(", "valid_data": ")", dir_ / "val.bin", "\"}");
    return parse_config(text, "test", "", set);
  }
};

TEST_F(VitRun, LearnsClassesAndReportsAccuracy) {
  ASSERT_EQ(run(vit("r", {"train_iters=200", "eval_interval=100"})), Exit::done);
  const auto evals = history("r").evals;
  ASSERT_EQ(evals.size(), 2u);
  EXPECT_GT(evals.back().accuracy, 0.9);
  EXPECT_LT(evals.back().loss, 0.6);
  EXPECT_EQ(evals.back().windows, 24);
  EXPECT_EQ(evals.back().tokens, 24) << "one target per image";
  EXPECT_TRUE(std::isnan(evals.back().bits_per_byte));
}

TEST_F(VitRun, ResumedRunHasTheBitsOfAnUninterruptedOne) {
  ASSERT_EQ(run(vit("whole")), Exit::done);
  ASSERT_EQ(run(vit("parts"), false, at(Activity::step, 25, [] { std::raise(SIGTERM); })), Exit::requeue);
  ASSERT_EQ(run(vit("parts")), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(bytes("parts", 60, file), bytes("whole", 60, file)) << file;
}

// Patches have weights [C, 1, p, p] and positions [1, N, C] in files, which these optimizers see as matrices.
TEST_F(VitRun, OptimizersOfMatricesTrain) {
  for (const std::string rule : {"adafactor", "muon", "lamb"}) {
    ASSERT_EQ(run(vit(rule, {"optimizer=" + rule})), Exit::done) << rule;
    EXPECT_LT(history(rule).evals.back().loss, std::log(4.0)) << rule;
  }
}

TEST_F(VitRun, AdaptersAreMergedWhenTheirCheckpointIsRead) {
  ASSERT_EQ(run(vit("base")), Exit::done);
  ASSERT_EQ(run(vit("lora", {"init_from=" + (dir_ / "base"), "lora.rank=2"})), Exit::done);
  const ModelFolder merged(dir_ / "lora");
  const auto adapted = [](const ModelFolder::Weight& w) { return w.adapted; };
  EXPECT_EQ(std::ranges::count_if(merged.weights(), adapted), 2 * 6) << "q, k, v, out, up and down of two blocks";
}

TEST_F(VitRun, ChangedImagesAreRefusedOnResume) {
  ASSERT_EQ(run(vit("r"), false, at(Activity::step, 25, [] { std::raise(SIGTERM); })), Exit::requeue);
  write("train.bin", 7, 96);
  EXPECT_NE(failure_of(vit("r"), {}).find("train_data"), std::string::npos) << failure_of(vit("r"), {});
}

}  // namespace
}  // namespace athanor
