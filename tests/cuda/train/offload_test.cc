// Master weights and optimizer states in pinned host memory on a GPU: bit-identical to a run with them in device
// memory, in whatever order the streams run, captured or not; and runs that would not fit otherwise.
#include <gtest/gtest.h>

#include <optional>

#include "config/config.h"
#include "cuda/make_cuda.h"
#include "tests/cuda/train/tiny_model.h"
#include "tests/temp_dir.h"
#include "tests/train/harness.h"
#include "train/checkpointer.h"
#include "train/setup.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/runtime/control.h"
#endif

namespace athanor {
namespace {

using testing::Rig;
using testing::tiny;

constexpr int64_t kSeq = 8, kSteps = 3;  // steps: eager, captured, replayed

EngineOptions options(RuleName rule, DType master, int64_t stretch, bool graphs = true) {
  EngineOptions o;
  o.recipe = make_recipe("bf16", master);
  o.seq_length = kSeq;
  o.micro_batch_size = o.global_batch_size = 1;
  o.graphs = graphs;
  o.schedule = {.style = DecayStyle::constant, .lr = 3e-3, .min_lr = 3e-3};
  o.clip_grad = 1;
  o.optimizer.rule = rule;
  o.optimizer.groups = default_groups(rule);
  o.optimizer.m = o.optimizer.v = DType::bf16;
  o.optimizer.ema_decay = 0.5;
  o.eval_averages = true;
  o.save_block_bytes = 1000;
  if (stretch > 0) o.states_home = {.mem = Mem::pinned, .stretch = stretch};
  return o;
}

struct Outcome {
  std::vector<double> losses;
  std::vector<float> masters;
  bool operator==(const Outcome&) const = default;
};

void step(Engine& engine, int64_t s) {
  PhaseClock clock;
  for (int64_t m = 0; m < engine.micro_batches(); ++m) {
    const testing::TinyBatch batch(s * 100 + m * 10, kSeq);
    engine.micro_batch(batch.tokens, batch.targets, clock);
  }
  engine.close_step(clock);
}

Outcome train(const EngineOptions& o) {
  Rig rig;
  Engine engine(tiny(ModelType::llama), o, rig.backend());
  engine.commit();
  engine.init_weights();
  Outcome out;
  for (int64_t s = 0; s < kSteps; ++s) {
    step(engine, s);
    while (engine.uncollected() > 1) out.losses.push_back(engine.collect().state.loss);
  }
  while (engine.uncollected() > 0) out.losses.push_back(engine.collect().state.loss);
  const testing::TinyBatch batch(0, kSeq);
  engine.use_averages();
  out.losses.push_back(engine.evaluate(batch.tokens, batch.targets));
  engine.use_weights();
  out.losses.push_back(engine.evaluate(batch.tokens, batch.targets));
  out.masters = testing::all_masters(engine, *rig.device);
  return out;
}

TEST(OffloadOnGpu, IsBitExact) {
  for (const auto& [rule, master] : {std::pair{RuleName::adamw, DType::i16}, std::pair{RuleName::adamw, DType::f32},
                                     std::pair{RuleName::muon, DType::i16}, std::pair{RuleName::lamb, DType::f32}}) {
    const Outcome want = train(options(rule, master, 0));
    EXPECT_EQ(want, train(options(rule, master, 1024))) << kRuleNames[size_t(rule)] << " " << master;
    if (rule != RuleName::adamw || master != DType::i16) continue;
    EXPECT_EQ(want, train(options(rule, master, 1024, false))) << "eager";
    EXPECT_EQ(want, train(options(rule, master, 1 << 24))) << "whole units";
  }
}

#ifdef ATHANOR_EMULATED_GPU
// Copies start as late, or as early, as their waits allow.
TEST(OffloadOnGpu, WaitsForItsCopiesInBothDirections) {
  const Outcome want = train(options(RuleName::adamw, DType::i16, 0));
  for (const emu::Schedule schedule : {emu::Schedule::kLate, emu::Schedule::kAtOnce}) {
    emu::set_schedule(schedule);
    EXPECT_EQ(want, train(options(RuleName::adamw, DType::i16, 512)));
  }
  emu::set_schedule(emu::Schedule::kMixed);
}

// A block's input is not overwritten before it is copied out, nor read before it is copied back.
TEST(OffloadOnGpu, BlockInputsInHostMemoryAreBitExact) {
  EngineOptions o = options(RuleName::adamw, DType::f32, 0);
  o.recompute = {.granularity = Recompute::Granularity::full};
  const Outcome want = train(o);
  o.offload_inputs = true;
  for (const emu::Schedule schedule : {emu::Schedule::kLate, emu::Schedule::kAtOnce}) {
    emu::set_schedule(schedule);
    EXPECT_EQ(want, train(o));
  }
  emu::set_schedule(emu::Schedule::kMixed);
  o.graphs = false;
  EXPECT_EQ(want, train(o));
}

// A unit's weights are not read before they arrive, nor overwritten in use; gradients are complete when they are copied
// out, and back before the next micro-batch adds to them.
TEST(OffloadOnGpu, UnitsInHostMemoryAreBitExact) {
  EngineOptions o = options(RuleName::adamw, DType::i16, 0);
  o.recompute = {.granularity = Recompute::Granularity::full};
  o.global_batch_size = 2;
  const Outcome want = train(o);
  o.states_home = {.mem = Mem::pinned, .stretch = 1024};
  o.offload_inputs = true;
  for (const emu::Schedule schedule : {emu::Schedule::kLate, emu::Schedule::kAtOnce}) {
    emu::set_schedule(schedule);
    o.host_units = schedule == emu::Schedule::kLate ? 100 : 2;
    EXPECT_EQ(want, train(o)) << o.host_units;
  }
  emu::set_schedule(emu::Schedule::kMixed);
  o.graphs = false;
  EXPECT_EQ(want, train(o));
}

// A configuration that is too large for the GPU trains with offload.optimizer and offload.params auto.
TEST(OffloadOnGpu, TrainsWhereTheGpuIsTooSmall) {
  const auto config = [](const char* states, const char* params) {
    return parse_config(R"({"model": {"model_type": "llama", "vocab_size": 61, "hidden_size": 32,
        "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 48,
        "max_position_embeddings": 32}, "seq_length": 8, "global_batch_size": 1, "train_iters": 8, "save": "",
        "learning_rate": 0.003, "precision": "bf16", "micro_batch_size": 1, "runtime_reserve_mib": 0,
        "recompute_granularity": "full",
        "train_data": "data/*.bin"})",
                        "test", "",
                        std::vector<std::string>{cat("offload.optimizer=", states), cat("offload.params=", params)});
  };
  int64_t units = 0;
  const auto losses = [&](const char* states, const char* params, size_t* bytes) {
    Rig rig;
    const auto engine = make_engine(config(states, params), rig.backend(), true);
    *bytes = engine->memory().total();
    units = engine->options().host_units;
    engine->commit();
    engine->init_weights();
    std::vector<double> all;
    for (int64_t s = 0; s < 2; ++s) {
      step(*engine, s);
      all.push_back(engine->collect().state.loss);
    }
    return all;
  };
  size_t whole = 0, chosen = 0;
  const std::vector<double> want = losses("auto", "auto", &whole);
  const auto planned = [&](const char* states, const char* params) {
    Rig rig;
    return make_engine(config(states, params), rig.backend(), true)->memory().total();
  };
  const size_t without_states = planned("cpu", "none"), least = planned("cpu", "cpu");
  ASSERT_LT(without_states + (size_t{100} << 10), whole);
  ASSERT_LT(least + (size_t{100} << 10), without_states);
  emu::set_memory_limit((without_states + whole) / 2);
  EXPECT_THROW(planned("none", "none"), Error);
  EXPECT_EQ(want, losses("auto", "auto", &chosen));
  EXPECT_EQ(chosen, without_states);
  EXPECT_EQ(units, 0);
  emu::set_memory_limit((least + without_states) / 2);
  EXPECT_THROW(planned("auto", "none"), Error);
  EXPECT_EQ(want, losses("auto", "auto", &chosen));
  EXPECT_TRUE(units > 0 && units < 10) << units << " of 10";
  EXPECT_LT(chosen, without_states);
  emu::set_memory_limit(emu::gpu_h200().memory_bytes);
}

TEST(OffloadOnGpu, ReportsRefusedPinnedMemory) {
  Rig rig;
  Engine engine(tiny(ModelType::llama), options(RuleName::adamw, DType::f32, 1024), rig.backend());
  engine.memory();
  emu::fail_next("cudaMallocHost", 1, cudaErrorMemoryAllocation);
  try {
    engine.commit();
    ADD_FAILURE();
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_NE(text.find(cat(engine.host_memory(), " bytes of pinned host memory were requested")), text.npos) << text;
    EXPECT_NE(text.find("offload.optimizer"), text.npos) << text;
  }
}
#endif

// Saved from host memory and loaded into it, and the reverse.
TEST(OffloadOnGpu, CheckpointsResumeWithAndWithoutOffload) {
  const testing::TempDir dir;
  const auto run = [&](int64_t stretch, const std::string& load, const std::string& save) {
    Rig rig;
    Engine engine(tiny(ModelType::llama), options(RuleName::adamw, DType::i16, stretch), rig.backend());
    engine.commit();
    if (load.empty())
      engine.init_weights();
    else
      load_checkpoint(engine, *rig.device, load);
    Outcome out;
    for (int64_t s = 0; s < 2; ++s) {
      step(engine, s);
      out.losses.push_back(engine.collect().state.loss);
    }
    if (!save.empty()) {
      RunLock lock(save);
      Checkpointer saves(engine, *rig.device, {.root = save, .lock = &lock, .control = nullptr});
      saves.begin({.step = 2, .micro_batch_size = 1, .device = engine.read_state()}, "", {}, {});
      saves.finish();
    }
    out.masters = testing::all_masters(engine, *rig.device);
    return out;
  };
  const auto saved = [&](const char* name) { return cat(dir / name, "/", step_folder(2)); };
  const Outcome first = run(0, "", dir / "device");
  EXPECT_EQ(first, run(1024, "", dir / "host"));
  const Outcome then = run(0, saved("device"), "");
  EXPECT_EQ(then, run(1024, saved("device"), ""));
  EXPECT_EQ(then, run(0, saved("host"), ""));
  EXPECT_EQ(then, run(1024, saved("host"), ""));
}

}  // namespace
}  // namespace athanor
