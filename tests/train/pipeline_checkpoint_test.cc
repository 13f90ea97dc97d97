// Checkpoints with pipeline parallelism: any mesh resumes from any other's, and the files equal those of one rank.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/layout.h"
#include "tests/pipeline/rig.h"
#include "tests/temp_dir.h"

namespace athanor::pipeline {
namespace {

// Runs steps [from, to) from the initial weights or the checkpoint `load`, and saves the result in `save`. Returns the
// losses.
std::vector<double> run_part(const Setting& s, const std::string& load, int64_t from, int64_t to,
                             const std::string& save) {
  std::vector<double> losses;
  std::mutex mutex;
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), mesh_of(s));
    Engine engine(model_of(s), options_of(s), {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    if (load.empty())
      engine.init_weights();
    else
      load_checkpoint(engine, *cpu.device, load);
    std::vector<double> mine;
    StepState last = engine.read_state();
    for (int64_t step = from; step < to; ++step) {
      ranks::accumulate(engine, step);
      last = engine.finish_step();
      if (engine.round_ends(step + 1)) engine.end_rounds(step + 1);
      mine.push_back(last.loss);
    }
    std::optional<RunLock> lock;
    if (mesh.world().rank() == 0) lock.emplace(save);
    RunState state{.step = to, .consumed_samples = to * s.of.sequences, .micro_batch_size = 1, .device = last};
    state.workers = engine.workers();
    Checkpointer saves(engine, *cpu.device, {.root = save, .lock = lock ? &*lock : nullptr, .control = &mesh.world()});
    saves.begin(state, "", {.resolved_config = "{}", .hf_config = hf_config_json(model_of(s), "float32")}, {});
    saves.finish();
    const std::lock_guard hold(mutex);
    losses = mine;
  });
  return losses;
}

Setting grid(int stages, int shards, PipelineSchedule schedule = PipelineSchedule::one_f_one_b) {
  Setting s{.stages = stages, .schedule = schedule};
  if (schedule == PipelineSchedule::interleaved) s.chunks = 2;
  s.of.sequences = s.of.step = 16;
  s.of.accumulation = 4 / shards;
  s.of.shards = shards, s.of.stage = shards > 1 ? 1 : 0;
  s.of.tied = true;
  return s;
}

void expect_any_grid_continues_from_any_other(ModelType type) {
  std::vector<Setting> grids = {grid(1, 1), grid(2, 1), grid(2, 2, PipelineSchedule::interleaved),
                                grid(4, 1, PipelineSchedule::gpipe), grid(1, 2)};
  for (Setting& s : grids) s.of.type = type;
  const testing::TempDir dir;
  const std::vector<double> want = run_part(grids[0], "", 0, 4, dir / "whole");
  const auto files = [&](const std::string& run) { return ranks::tensors_of(cat(dir / run, "/", step_folder(2))); };
  for (size_t from = 0; from < grids.size(); ++from) {
    const std::string first = cat("from", from);
    run_part(grids[from], "", 0, 2, dir / first);
    std::vector<std::string> names;
    for (const auto& [name, bytes] : files(first)) names.push_back(name);
    std::vector<std::string> names_of_one;
    for (const auto& [name, bytes] : files("from0")) names_of_one.push_back(name);
    EXPECT_EQ(names, names_of_one);
    for (const auto& [name, bytes] : files(first))
      if (name.ends_with("e_score_correction_bias")) {
        EXPECT_EQ(bytes, files("from0").at(name)) << grids[from].name() << " " << name;
        EXPECT_TRUE(std::ranges::any_of(bytes, [](std::byte b) { return b != std::byte{0}; })) << name;
      }
    const Setting& to = grids[(from + 1) % grids.size()];
    const std::vector<double> got = run_part(to, cat(dir / first, "/", step_folder(2)), 2, 4, dir / cat("then", from));
    for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(got[i], want[2 + i], 1e-5 * want[2 + i]) << to.name();
  }
}

TEST(PipelineCheckpoint, AnyMeshResumesFromAnyOther) {
  expect_any_grid_continues_from_any_other(ModelType::llama);
  expect_any_grid_continues_from_any_other(ModelType::dots1);  // router biases are on every stage
}

// The first stage saves what belongs to a tied table, and the last one has the amax of the head.
TEST(PipelineCheckpoint, TiedHeadKeepsItsAmaxHistory) {
  Setting s = grid(2, 1);
  s.of.precision = "fp8_delayed", s.of.high_head = false, s.of.intermediate = 32;
  const testing::TempDir dir;
  const std::vector<double> want = run_part(s, "", 0, 4, dir / "whole");
  run_part(s, "", 0, 2, dir / "part");
  const std::vector<double> got = run_part(s, cat(dir / "part", "/", step_folder(2)), 2, 4, dir / "then");
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(got[i], want[2 + i]) << i;
  EXPECT_EQ(ranks::tensors_of(cat(dir / "then", "/", step_folder(4))),
            ranks::tensors_of(cat(dir / "whole", "/", step_folder(4))));
}

// With local updates, each worker may be a pipeline, and resume as a single rank.
TEST(PipelineCheckpoint, WorkersMayBePipelines) {
  const auto workers = [](int stages) {
    Setting s = grid(stages, 1);
    s.of.workers = 2, s.of.accumulation = 2, s.of.outer = {.steps = 2};
    return s;
  };
  const testing::TempDir dir;
  const std::vector<double> want = run_part(workers(1), "", 0, 5, dir / "one");
  const std::vector<double> got = run_part(workers(2), "", 0, 3, dir / "two");
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]) << i;
  const std::vector<double> then = run_part(workers(1), cat(dir / "two", "/", step_folder(3)), 3, 5, dir / "then");
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(then[i], want[3 + i], 1e-5 * want[3 + i]) << i;
}

}  // namespace
}  // namespace athanor::pipeline
