// Peak memory of runs that save: the plan, the copy for the background save, and little more. For every update rule, on
// one rank and on several with every ZeRO stage.
#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <mutex>

#include "comm/threads.h"
#include "cpu/make_cpu.h"
#include "tests/sanitized.h"
#include "tests/tiny_model.h"
#include "tests/train/harness.h"
#include "train/checkpointer.h"
#include "train/setup.h"

namespace athanor {
namespace {

constexpr int64_t kSlack = int64_t{3} << 20;  // per rank: file buffers, objects of the engine

// The value of a line of /proc/self/status, in bytes.
int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) << 10;
  return -1;
}
bool reset_peak() { return bool(std::ofstream("/proc/self/clear_refs") << "5" << std::flush); }

struct Saver {
  RuleName rule;
  DType master = DType::f32;
  std::string label() const { return cat(kRuleNames[size_t(rule)], master == DType::i16 ? "_split" : ""); }
};
std::vector<Saver> all_savers() {
  std::vector<Saver> all{{RuleName::adamw, DType::i16}};
  for (size_t i = 0; i < std::size(kRuleNames); ++i) all.push_back({RuleName(i)});
  return all;
}

class SaveMemory : public ::testing::TestWithParam<Saver> {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "sanitizers keep memory of their own";
    if (!reset_peak()) GTEST_SKIP() << "/proc/self/clear_refs cannot be written here";
    mallopt(M_MMAP_THRESHOLD, 64 << 10);  // freed memory is returned to the system
  }

  static EngineOptions options(const Saver& saver, int ranks, int stage) {
    EngineOptions o;
    o.recipe = make_recipe("bf16", saver.master);
    o.seq_length = 8;
    o.micro_batch_size = 1;
    o.global_batch_size = ranks;
    o.zero_stage = stage;
    o.optimizer.rule = saver.rule;
    o.optimizer.groups = default_groups(saver.rule);
    o.schedule = {.style = DecayStyle::constant, .lr = 1e-3, .min_lr = 1e-3};
    return o;
  }

  void expect_as_planned(int ranks, int stage, bool background) {
    const Saver saver = GetParam();
    const ModelConfig model = testing::tiny_model(
        ModelType::llama, {.vocab = 256, .hidden = 192, .heads = 4, .intermediate = 384, .positions = 8});
    std::mutex mutex;
    int64_t planned = 0;
    malloc_trim(0);
    ASSERT_TRUE(reset_peak());
    const int64_t before = status_bytes("VmRSS");
    run_ranks(ranks, [&](std::unique_ptr<Communicator> world) {
      const CpuBackend cpu = make_cpu({.threads = 1});
      ProcessMesh mesh(std::move(world), {.shards = ranks});
      Engine engine(model, options(saver, ranks, stage), {*cpu.device, *cpu.ops, mesh});
      {
        const std::lock_guard lock(mutex);
        planned += int64_t(engine.memory().total());
        if (background) planned += int64_t(snapshot_bytes(engine.model().params(), ranks));
      }
      engine.commit();
      engine.init_weights();
      PhaseClock clock;
      engine.micro_batch(std::vector<int32_t>(8, 3), std::vector<int32_t>(8, 5), clock);
      engine.finish_step();
      std::optional<RunLock> lock;
      if (engine.rank() == 0) lock.emplace(dir_.path());
      mesh.world().barrier();
      Checkpointer saves(
          engine, *cpu.device,
          {.root = dir_.path(), .lock = lock ? &*lock : nullptr, .control = &mesh.world(), .background = background});
      saves.begin({.step = 1, .micro_batch_size = 1}, "", {}, {});
      saves.finish();
      EXPECT_FALSE(saves.take_failed());
    });
    EXPECT_LT(status_bytes("VmHWM") - before, planned + ranks * kSlack)
        << ranks << " ranks, stage " << stage << (background ? ", in the background" : "");
  }
  testing::TempDir dir_;
};

TEST_P(SaveMemory, SaveMemoryIsPlanned) {
  expect_as_planned(1, 0, false);
  for (const int stage : {1, 2, 3}) expect_as_planned(2, stage, false);
}

TEST_P(SaveMemory, CopyForBackgroundSavesIsPlanned) {
  expect_as_planned(1, 0, true);
  expect_as_planned(2, 2, true);
}

INSTANTIATE_TEST_SUITE_P(Rules, SaveMemory, ::testing::ValuesIn(all_savers()),
                         [](const auto& which) { return which.param.label(); });

// A run whose copy for saving does not fit is refused before it starts, and accepted without that copy.
TEST(SaveMemoryPlan, RefusesACopyThatDoesNotFit) {
  testing::Rig rig;
  if (!rig.device->unified()) GTEST_SKIP() << "the copy is in host memory, which has no configured limit";
  const auto made = [&](const std::string& async_save, size_t limit, int memory_interval = 0) {
    const std::vector<std::string> set{cat("checkpoint.async_save=", async_save),
                                       cat("checkpoint.memory_interval=", memory_interval),
                                       cat("memory_limit_gib=", double(limit) / double(size_t{1} << 30))};
    const Config c = parse_config(
        R"({"model": {"model_type": "llama", "vocab_size": 256, "hidden_size": 192, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 384, "max_position_embeddings": 8},
            "seq_length": 8, "global_batch_size": 1, "micro_batch_size": 1, "train_iters": 8, "learning_rate": 0.01,
            "precision": "bf16", "save": "run", "train_data": "data/*.bin", "runtime_reserve_mib": 1})",
        "test", "", set);
    return make_engine(c, rig.backend(), true);
  };
  const auto engine = made("off", size_t{1} << 30);
  const size_t plan = engine->memory().total() + (size_t{1} << 20);
  const size_t copy = snapshot_bytes(engine->model().params(), 1);
  EXPECT_EQ(copy, 12 * size_t(engine->model().params().parameter_count()));
  EXPECT_NO_THROW(made("off", plan + 1024));
  EXPECT_NO_THROW(made("on", plan + copy + 1024));
  EXPECT_NO_THROW(made("off", plan + 2 * copy + 1024, 5));
  EXPECT_THROW(made("off", plan + 2 * copy - copy / 2, 5), Error) << "two checkpoints in memory";
  try {
    made("on", plan + copy / 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("set checkpoint.async_save to \"off\""), std::string::npos) << e.what();
    EXPECT_EQ(e.code(), Exit::usage);
  }
}

}  // namespace
}  // namespace athanor
