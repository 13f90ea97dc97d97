// Trains a tiny model for some steps on pipeline stages that are threads.
#pragma once
#include <map>

#include "tests/train/ranks_rig.h"

namespace athanor::pipeline {

struct Setting {
  ranks::Setting of = {};  // its accumulation: micro-batches of a rank's step
  int stages = 1, chunks = 1;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::vector<int> layout = {};
  int64_t layers = 8;
  int ranks() const { return stages * of.ranks(); }
  std::string name() const {
    return cat("schedule ", int(schedule), " stages ", stages, " chunks ", chunks, ": ", of.name());
  }
  Setting alone() const {
    Setting one = *this;
    one.stages = one.chunks = one.of.accumulation = one.of.replicas = one.of.shards = one.of.tensor = one.of.context =
        one.of.experts = 1;
    one.schedule = PipelineSchedule::one_f_one_b;
    one.layout.clear();
    one.of.sequence = one.of.ring = false;
    one.of.stage = 0;
    return one;
  }
};

inline ModelConfig model_of(const Setting& s) {
  ModelConfig m = ranks::tiny(s.of);
  m.num_hidden_layers = s.layers;
  return m;
}

inline EngineOptions options_of(const Setting& s) {
  EngineOptions o = ranks::options(s.of);
  o.pipeline = {.schedule = s.schedule, .chunks = s.chunks, .layout = s.layout};
  return o;
}

inline MeshSizes mesh_of(const Setting& s) {
  MeshSizes sizes = s.of.mesh();
  sizes.stages = s.stages;
  return sizes;
}

struct Curve {
  std::vector<double> losses, norms, distilled;
  double evaluation = 0;
  std::map<std::string, std::vector<float>> masters;  // by the name in files
  std::vector<size_t> planned, activations;           // bytes, by rank
};

using Wrap = std::unique_ptr<Communicator> (*)(std::unique_ptr<Communicator>);

inline Curve train(const Setting& s, int64_t steps = 3, Wrap wrap = nullptr) {
  Curve curve;
  std::mutex mutex;
  curve.planned.resize(size_t(s.ranks()));
  curve.activations.resize(size_t(s.ranks()));
  run_ranks(s.ranks(), [&](std::unique_ptr<Communicator> world) {
    const CpuBackend cpu = make_cpu({.threads = 1});
    if (wrap) world = wrap(std::move(world));
    ProcessMesh mesh(std::move(world), mesh_of(s));
    Engine engine(model_of(s), options_of(s), {*cpu.device, *cpu.ops, mesh});
    engine.commit();
    engine.init_weights();
    if (engine.teacher()) ranks::fill_teacher(engine.teacher()->params(), *cpu.device);
    std::optional<ranks::LoneTeacher> teacher;
    if (s.of.top_k > 0) teacher.emplace(s.of, engine.options().micro_batch_size);
    std::vector<double> losses, norms, distilled;
    for (int64_t step = 0; step < steps; ++step) {
      engine.set_step_sequences(step == 0 ? s.of.step : s.of.sequences);
      ranks::accumulate(engine, step, s.of.masked, teacher ? &*teacher : nullptr);
      const StepState state = engine.finish_step();
      losses.push_back(state.loss / state.loss_targets), norms.push_back(state.grad_norm);
      distilled.push_back(state.distill / state.loss_targets);
    }
    std::vector<int32_t> tokens, targets;
    for (int64_t row = 0; row < engine.options().micro_batch_size; ++row)
      ranks::append_sample(row, tokens, targets, false, s.of.vocab, s.of.length);
    if (engine.has_averages()) engine.use_averages();
    const double evaluation = engine.evaluate(tokens, targets);
    if (engine.has_averages()) engine.use_weights();
    const auto masters = testing::masters_by_name(engine, *cpu.device);
    const std::lock_guard lock(mutex);
    if (curve.losses.empty()) curve.losses = losses, curve.norms = norms, curve.distilled = distilled;
    EXPECT_EQ(curve.distilled, distilled);
    if (engine.stage().has_head()) curve.evaluation = evaluation / double(engine.options().micro_batch_size);
    EXPECT_EQ(curve.losses, losses) << "all ranks report one loss";
    EXPECT_EQ(curve.norms, norms);
    curve.planned[size_t(mesh.world().rank())] = engine.memory().total();
    curve.activations[size_t(mesh.world().rank())] = engine.memory().total(MemoryKind::activations);
    for (const auto& [name, values] : masters)
      EXPECT_EQ(curve.masters.emplace(name, values).first->second, values) << name << ": of another rank";
  });
  return curve;
}

inline void expect_same(const Curve& want, const Curve& got, double tolerance, const std::string& what) {
  ASSERT_EQ(want.losses.size(), got.losses.size());
  for (size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance * want.losses[i]) << what << " step " << i;
    EXPECT_NEAR(got.norms[i], want.norms[i], 20 * tolerance * want.norms[i]) << what << " step " << i;
    EXPECT_NEAR(got.distilled[i], want.distilled[i], tolerance * want.distilled[i]) << what << " step " << i;
  }
}

inline void expect_equal(const Curve& want, const Curve& got, const std::string& what) {
  EXPECT_EQ(want.losses, got.losses) << what;
  EXPECT_EQ(want.norms, got.norms) << what;
  EXPECT_EQ(want.masters, got.masters) << what;
}

}  // namespace athanor::pipeline
