// Schedules over whole runs: learning rate, batch ramps, branches, spikes and rollback, stopping at a loss.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "tests/train/trainer_rig.h"

namespace athanor {
namespace {

// Schedules of the learning rate, momentum, weight decay and batch size, and the window of spike detection.
TEST_F(TrainerTest, SchedulesResumeBitExactly) {
  const std::vector<std::string> set = {"schedule.lr_decay_style=1cycle", "schedule.weight_decay_style=linear",
                                        "schedule.end_weight_decay=0.5",  "z_loss=0.01",
                                        "loss_spikes.zscore=6",           "schedule.lr_decay_iters=8",
                                        "rampup_batch_size=[2,2,8]"};
  const auto with = [&](const std::string& name, int64_t steps) {
    auto all = set;
    all.push_back(cat("train_iters=", steps));
    return config(name, all);
  };
  ASSERT_EQ(run(with("whole", 8)), Exit::done);
  for (const int64_t steps : {3, 5, 8}) ASSERT_EQ(run(with("parts", steps)), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "state.json"})
    EXPECT_EQ(bytes("whole", 8, file), bytes("parts", 8, file)) << file;
  const RunState state = read_run_state(cat(dir_.path(), "/whole/", step_folder(8)));
  EXPECT_EQ(state.consumed_samples, 4 * 2 + 4 * 4);
  ASSERT_TRUE(state.window);
  EXPECT_EQ(state.window->count, 8);
  const auto log = history("whole");
  EXPECT_EQ(log.steps[3].global_batch_size, 2);
  EXPECT_EQ(log.steps[4].global_batch_size, 4);
  EXPECT_NEAR(log.steps[0].momentum.value_or(0), 0.9, 1e-12);
  EXPECT_NEAR(log.steps[1].momentum.value_or(0), 0.85, 1e-12);
  EXPECT_NEAR(log.steps[4].weight_decay.value_or(0), 0.3, 1e-12);
}

// Half of global_batch_size is a power of two smaller, so that not even rounding distinguishes the two runs.
TEST_F(TrainerTest, BatchRampUsesTheSamplesOfSmallBatches) {
  ASSERT_EQ(run(config("small", {"global_batch_size=2", "train_iters=4", "schedule.lr_decay_iters=8"})), Exit::done);
  ASSERT_EQ(run(config("ramp", {"rampup_batch_size=[2,2,8]", "train_iters=4", "schedule.lr_decay_iters=8"})),
            Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(bytes("small", 4, file), bytes("ramp", 4, file)) << file;
}

// Chunks of 4, 8, 8, 12 and 12 tokens, then whole sequences of 16.
TEST_F(TrainerTest, SequenceLengthWarmsUp) {
  const std::vector<std::string> warm_up = {"curriculum.total_curriculum_step=6", "curriculum.min_difficulty=4",
                                            "curriculum.difficulty_step=4", "schedule.lr_decay_iters=8"};
  const auto with = [&](const std::string& name, int64_t steps, std::vector<std::string> more = {}) {
    more.insert(more.begin(), warm_up.begin(), warm_up.end());
    more.push_back(cat("train_iters=", steps));
    return config(name, more);
  };
  ASSERT_EQ(run(with("whole", 8)), Exit::done);
  for (const int64_t steps : {2, 3, 5, 8}) ASSERT_EQ(run(with("parts", steps)), Exit::done);
  std::vector<int64_t> lengths;
  for (const StepMetrics& m : history("parts").steps) lengths.push_back(m.chunk_length.value_or(0));
  EXPECT_EQ(lengths, (std::vector<int64_t>{4, 8, 8, 12, 12, 16, 16, 16}));
  ASSERT_EQ(run(with("warm", 5)), Exit::done);  // the next step uses whole sequences
  ASSERT_EQ(run(with("warm", 8, {"curriculum.total_curriculum_step=0"})), Exit::done);
  ASSERT_EQ(run(with("cold", 4)), Exit::done);
  ASSERT_EQ(run(with("cold", 8, {"curriculum.total_curriculum_step=0"})), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(bytes("whole", 8, file), bytes("parts", 8, file)) << file;
    EXPECT_EQ(bytes("whole", 8, file), bytes("warm", 8, file)) << file;
    EXPECT_NE(bytes("whole", 8, file), bytes("cold", 8, file)) << file;  // its fifth step should have used chunks
  }
}

// Sliding-window layers attend to 2 tokens for three steps, to 5 for three more, then to 8; also after a resume.
TEST_F(TrainerTest, SlidingWindowsGrow) {
  const auto with = [&](const std::string& name, int64_t steps, const std::string& schedule, int window) {
    return config(name, {"model.model_type=mistral", cat("model.sliding_window=", window), "schedule.lr_decay_iters=8",
                         cat("train_iters=", steps), "sliding_window_schedule=" + schedule});
  };
  const std::string grows = "[[0,2],[3,5],[6,8]]";
  ASSERT_EQ(run(with("whole", 8, grows, 8)), Exit::done);
  for (const int64_t steps : {2, 3, 4, 8}) ASSERT_EQ(run(with("parts", steps, grows, 8)), Exit::done);
  ASSERT_EQ(run(with("narrow", 3, "null", 2)), Exit::done);
  ASSERT_EQ(run(with("wide", 8, "null", 8)), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    EXPECT_EQ(bytes("whole", 8, file), bytes("parts", 8, file)) << file;
    EXPECT_EQ(bytes("narrow", 3, file), bytes("parts", 3, file)) << file;
    EXPECT_NE(bytes("whole", 8, file), bytes("wide", 8, file)) << file;
  }
  EXPECT_EQ(history("whole").evals.back().loss, history("parts").evals.back().loss);
}

// The weight of the second token ahead decreases per step to zero, also after a resume.
TEST_F(TrainerTest, MultiTokenWeightsDecay) {
  const auto with = [&](const std::string& name, int64_t steps, const std::string& entries) {
    return config(name, {"schedule.lr_decay_iters=8", cat("train_iters=", steps), "multi_token_prediction=" + entries});
  };
  const std::string falls = R"([{"weight": 0.5, "decay_start": 2, "decay_end": 6}])";
  ASSERT_EQ(run(with("whole", 8, falls)), Exit::done);
  for (const int64_t steps : {3, 5, 7, 8}) ASSERT_EQ(run(with("parts", steps, falls)), Exit::done);
  ASSERT_EQ(run(with("stays", 3, R"([{"weight": 0.5}])")), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(bytes("whole", 8, file), bytes("parts", 8, file)) << file;
  EXPECT_EQ(bytes("stays", 3, "model.safetensors"), bytes("parts", 3, "model.safetensors")) << "step 3 has the whole";
  ASSERT_EQ(run(with("stays", 5, R"([{"weight": 0.5}])")), Exit::done);
  EXPECT_NE(bytes("stays", 5, "model.safetensors"), bytes("parts", 5, "model.safetensors"));
}

// Evaluations always use whole sequences, and the number of tokens per step does not change.
TEST_F(TrainerTest, EvaluationsUseFullSequencesDuringWarmUp) {
  const std::vector<std::string> still = {"learning_rate=1e-30", "schedule.min_lr=0", "train_iters=4",
                                          "schedule.lr_decay_iters=8"};
  ASSERT_EQ(run(config("without", still)), Exit::done);
  auto chunks = still;
  chunks.insert(chunks.end(), {"curriculum.total_curriculum_step=100", "curriculum.min_difficulty=4",
                               "curriculum.difficulty_step=4"});
  ASSERT_EQ(run(config("with", chunks)), Exit::done);
  const RunRecords a = history("without"), b = history("with");
  ASSERT_FALSE(a.evals.empty());
  ASSERT_EQ(a.evals.size(), b.evals.size());
  for (size_t i = 0; i < a.evals.size(); ++i) EXPECT_EQ(a.evals[i].loss, b.evals[i].loss) << i;
  for (size_t i = 0; i < a.steps.size(); ++i) {
    EXPECT_NE(a.steps[i].loss, b.steps[i].loss) << i;
    EXPECT_FALSE(a.steps[i].chunk_length);
    EXPECT_EQ(a.steps[i].consumed_tokens, b.steps[i].consumed_tokens) << i;
  }
}

TEST_F(TrainerTest, StopAtLossEndsTheRun) {
  ASSERT_EQ(run(config("r", {"stop_at_loss=100"})), Exit::done);
  const RunState state = read_run_state(cat(dir_.path(), "/r/", step_folder(4)));
  EXPECT_GT(state.reached_loss.value_or(0), 0);
  const EventRecord end = events("r", EventKind::end).back();
  EXPECT_EQ(end.step, 4);
  EXPECT_EQ(end.tokens.value_or(0), 4 * 4 * 16);
  EXPECT_GT(end.first_step_seconds.value_or(0), 0);
  EXPECT_GT(end.seconds, end.first_step_seconds.value_or(0));
  EXPECT_NE(end.text.find("stop_at_loss 100"), std::string::npos) << end.text;
  ASSERT_EQ(run(config("r", {"stop_at_loss=100"})), Exit::done);  // nothing is left to do
  EXPECT_EQ(list_checkpoints(dir_.path() + "/r").back().step, 4);
  ASSERT_EQ(run(config("r", {"stop_at_loss=1e-9"})), Exit::done);
  EXPECT_EQ(list_checkpoints(dir_.path() + "/r").back().step, 8);
}

TEST_F(TrainerTest, StopAtLossSurvivesAFailureBeforeTheSave) {
  const Config c = config("r", {"stop_at_loss=100", "save_interval=4"});
  const std::string failure = failure_of(c, [saves = 0](Activity now, int64_t) mutable {
    if (now == Activity::saving && ++saves == 2) throw Error("killed");  // the first one precedes the evaluation
  });
  EXPECT_EQ(failure, "killed");
  ASSERT_EQ(run(c), Exit::done);
  EXPECT_EQ(steps("r"), std::vector<int64_t>{4});
  EXPECT_EQ(history("r").evals.size(), 1u);
}

TEST_F(TrainerTest, QuantizationStatisticsAreLoggedAndChangeNothing) {
  const std::vector<std::string> set = {"precision=fp8_tensorwise", "model.intermediate_size=32", "train_iters=5"};
  auto with = set;
  with.push_back("logging.quantization_interval=2");
  ASSERT_EQ(run(config("without", set)), Exit::done);
  ASSERT_EQ(run(config("with", with)), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(bytes("without", 5, file), bytes("with", 5, file)) << file;
  EXPECT_TRUE(history("without").quantized.empty());
  std::map<int64_t, int64_t> weights;  // by step
  for (const QuantizedMetrics& m : history("with").quantized) {
    EXPECT_EQ(m.dtype, m.operand.ends_with("_dy") ? "f8_e5m2" : "f8_e4m3") << m.operand;
    if (m.operand == "forward_w") weights[m.step] += m.values;
  }
  // Two blocks of 16 x 32 (q, k, v), 16 x 16, 16 x 64 and 32 x 16; weights are quantized once per step.
  const int64_t once = 2 * (16 * 32 + 16 * 16 + 16 * 64 + 32 * 16);
  EXPECT_EQ(weights, (std::map<int64_t, int64_t>{{2, 2 * once}, {4, 2 * once}, {5, once}}));
}

// The run resumes between two records.
TEST_F(TrainerTest, QuantizationStatisticsContinueAfterAResume) {
  const std::vector<std::string> set = {"precision=fp8_tensorwise", "model.intermediate_size=32", "eval_interval=0",
                                        "logging.quantization_interval=5", "save_interval=3"};
  ASSERT_EQ(run(config("whole", set)), Exit::done);
  auto resumed = set;
  resumed.push_back(cat("load=", dir_.path(), "/whole/", step_folder(3)));
  ASSERT_EQ(run(config("parts", resumed)), Exit::done);
  const auto records = [&](const char* name) {
    std::vector<std::tuple<int64_t, std::string, std::string, int64_t, int64_t, double>> all;
    for (const QuantizedMetrics& m : history(name).quantized)
      all.emplace_back(m.step, m.layer, m.operand, m.values, m.underflowed, m.amax);
    return all;
  };
  EXPECT_EQ(records("parts"), records("whole"));
  EXPECT_EQ(std::get<0>(records("whole").front()), 5);
  EXPECT_EQ(bytes("parts", 6, "state.json"), bytes("whole", 6, "state.json"));

  auto silent = resumed;
  silent.push_back("logging.quantization_interval=0");
  ASSERT_EQ(run(config("silent", silent)), Exit::done);
  EXPECT_EQ(bytes("silent", 6, "state.json").find("quantized"), std::string::npos);
}

// The run resumes between two records, after an alarm.
TEST_F(TrainerTest, RoutingStatisticsContinueAfterAResume) {
  const std::vector<std::string> set = {"model.model_type=olmoe",      "model.num_key_value_heads=2",
                                        "model.num_experts=5",         "model.num_experts_per_tok=1",
                                        "model.initializer_range=0.5", "eval_interval=0",
                                        "logging.routing_interval=2",  "save_interval=3"};
  ASSERT_EQ(run(config("whole", set)), Exit::done);
  auto resumed = set;
  resumed.push_back(cat("load=", dir_.path(), "/whole/", step_folder(3)));
  ASSERT_EQ(run(config("parts", resumed)), Exit::done);
  const auto records = [&](const char* name) {
    std::vector<std::tuple<int64_t, int64_t, int64_t, double, double, double, double>> all;
    for (const RoutingMetrics& m : history(name).routing)
      if (m.step > 3) all.emplace_back(m.step, m.layer, m.tokens, m.largest_share, m.entropy, m.balance_loss, m.z_loss);
    return all;
  };
  ASSERT_FALSE(records("whole").empty());
  EXPECT_EQ(std::get<2>(records("whole").front()), 2 * 4 * 16) << "tokens of two steps";
  EXPECT_EQ(records("parts"), records("whole"));
  for (const int64_t step : {6, 8}) EXPECT_EQ(bytes("parts", step, "state.json"), bytes("whole", step, "state.json"));

  auto silent = resumed;
  silent.push_back("logging.routing_interval=0");
  ASSERT_EQ(run(config("silent", silent)), Exit::done);
  EXPECT_EQ(bytes("silent", 6, "state.json").find("routing"), std::string::npos);
}

TEST_F(TrainerTest, RoutingStatisticsOfAnotherModelAreRefused) {
  ASSERT_EQ(run(config("r", {"train_iters=2"})), Exit::done);
  const std::string file = cat(dir_.path(), "/r/", step_folder(2), "/state.json");
  RunState state = read_run_state(cat(dir_.path(), "/r/", step_folder(2)));
  state.routing = {1, 2, 3};
  EXPECT_EQ(parse_state(state_json(state), file).routing, state.routing);
  std::ofstream(file) << state_json(state);
  Rig rig;
  const Config c = config("r");
  Engine engine(
      c.model,
      {.recipe = make_recipe("fp32", DType::f32), .seq_length = 16, .micro_batch_size = 1, .global_batch_size = 1},
      rig.backend());
  engine.commit();
  std::string text;
  try {
    load_checkpoint(engine, *rig.device, fs::path(file).parent_path().string());
  } catch (const Error& e) {
    text = e.what();
  }
  EXPECT_NE(text.find("state.json: routing has 3 sums, expected 0"), text.npos) << text;
}

TEST_F(TrainerTest, RunWithoutSpikeDetectionLeavesARowOfSpikes) {
  ASSERT_EQ(run(config("r", {"train_iters=2"})), Exit::done);
  const std::string folder = cat(dir_.path(), "/r/", step_folder(2));
  RunState state = read_run_state(folder);
  state.device.spikes = state.device.spikes_in_row = 2;
  state.window = SpikeWindow{};
  std::ofstream(folder + "/state.json") << state_json(state);
  for (const double deviations : {0.0, 6.0}) {
    Rig rig;
    Engine engine(config("r").model,
                  {.recipe = make_recipe("fp32", DType::f32),
                   .seq_length = 16,
                   .micro_batch_size = 1,
                   .global_batch_size = 1,
                   .spikes = {.deviations = deviations, .most_in_row = 3}},
                  rig.backend());
    engine.commit();
    const RunState loaded = load_checkpoint(engine, *rig.device, folder);
    EXPECT_EQ(loaded.device.spikes, 2);
    EXPECT_EQ(loaded.device.spikes_in_row, deviations > 0 ? 2 : 0);
    EXPECT_EQ(engine.read_state().spikes_in_row, loaded.device.spikes_in_row);
    EXPECT_EQ(loaded.window.has_value(), deviations > 0);
  }
}

TEST(RunState, StoresNonFiniteValues) {
  RunState state{.micro_batch_size = 1};
  state.device.loss_scale = 1;
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  state.quantized[{"a", "x"}] = {3, 2, 1, kInf};
  state.quantized[{"a", "w"}] = {6, 5, 4, kNan};
  auto read = parse_state(state_json(state), "here").quantized;
  ASSERT_EQ(read.size(), 2);
  const QuantizeStatistics x = read[{"a", "x"}];
  EXPECT_EQ(std::tuple(x.values, x.saturated, x.underflowed, x.amax), std::tuple(3.0, 2.0, 1.0, kInf));
  EXPECT_TRUE(std::isnan(read[{"a", "w"}].amax));
}

TEST_F(TrainerTest, NoiseScaleIsLoggedAndChangesNothing) {
  const std::vector<std::string> set = {"micro_batch_size=1", "train_iters=4"};
  ASSERT_EQ(run(config("without", set)), Exit::done);
  ASSERT_EQ(run(config("with", {set[0], set[1], "logging.noise_scale=true"})), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(bytes("without", 4, file), bytes("with", 4, file)) << file;
  EXPECT_FALSE(history("without").steps.back().noise_scale);
  const auto steps = history("with").steps;
  EXPECT_TRUE(
      std::any_of(steps.begin(), steps.end(), [](const StepMetrics& m) { return m.noise_scale.value_or(0) > 0; }));
  ASSERT_EQ(run(config("one", {"micro_batch_size=4", "logging.noise_scale=true", "train_iters=4"})), Exit::done);
  EXPECT_FALSE(history("one").steps.back().noise_scale);
  EXPECT_NE(events("one", EventKind::warn).at(0).text.find("logging.noise_scale"), std::string::npos);
}

TEST_F(TrainerTest, NoiseScaleOfAResumedRunMatchesAnUninterruptedOne) {
  const std::vector<std::string> set = {"micro_batch_size=1", "logging.noise_scale=true", "schedule.lr_decay_iters=8"};
  ASSERT_EQ(run(config("whole", set)), Exit::done);
  for (const char* steps : {"train_iters=3", "train_iters=8"})
    ASSERT_EQ(run(config("parts", {set[0], set[1], set[2], steps})), Exit::done);
  EXPECT_EQ(bytes("whole", 8, "state.json"), bytes("parts", 8, "state.json"));
  const auto whole = history("whole").steps, parts = history("parts").steps;
  ASSERT_EQ(parts.size(), 8u);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(whole[i].noise_scale, parts[i].noise_scale) << i;
  EXPECT_NE(read_run_state(cat(dir_.path(), "/whole/", step_folder(8))).noise_scale.noise(), 0);
  ASSERT_EQ(run(config("parts", {set[0], set[2], "train_iters=9"})), Exit::done);
  EXPECT_EQ(read_run_state(cat(dir_.path(), "/parts/", step_folder(9))).noise_scale.noise(), 0) << "was switched off";
}

TEST_F(TrainerTest, AttentionLogitsAreLoggedAndClipped) {
  const auto scores = [&](const char* run) {
    std::vector<double> all;
    for (const StepMetrics& m : history(run).steps) all.push_back(m.max_attention_logit.value_or(0));
    return all;
  };
  const auto with = [&](const char* run, const char* threshold) {
    return config(run, {"train_iters=4", cat("qk_clip_threshold=", threshold)});
  };
  ASSERT_EQ(run(config("off", {"train_iters=4"})), Exit::done);
  ASSERT_EQ(run(with("watched", "1e9")), Exit::done);
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_EQ(bytes("off", 4, file), bytes("watched", 4, file)) << file;
  EXPECT_EQ(scores("off"), std::vector<double>(4));
  const std::vector<double> free = scores("watched");
  EXPECT_GT(free[0], 0);
  ASSERT_EQ(run(with("clipped", cat(free[0] / 2).c_str())), Exit::done);
  EXPECT_EQ(scores("clipped")[0], free[0]);
  EXPECT_LT(scores("clipped")[1], 0.9 * free[1]);
}

TEST_F(TrainerTest, ChangedDecayHorizonIsABranch) {
  ASSERT_EQ(run(config("r", {"train_iters=4"})), Exit::done);
  ASSERT_EQ(run(config("r", {"train_iters=6"})), Exit::done);
  ASSERT_EQ(run(config("r", {"train_iters=7", "schedule.lr_decay_iters=6"})),
            Exit::done);  // longer, with the same schedule
  const auto branches = events("r", EventKind::branch);
  ASSERT_EQ(branches.size(), 1u);
  EXPECT_EQ(branches[0].step, 4);
  EXPECT_NE(branches[0].text.find(step_folder(4)), std::string::npos) << branches[0].text;
  const RunState state = read_run_state(cat(dir_.path(), "/r/", step_folder(7)));
  ASSERT_EQ(state.branches.size(), 1u);
  EXPECT_EQ(state.branches[0].step, 4);
  EXPECT_EQ(state.branches[0].parent, cat(dir_.path(), "/r/", step_folder(4)));
  EXPECT_EQ(state.branches[0].old_decay_iters, 4);
  EXPECT_EQ(state.branches[0].new_decay_iters, 6);
  EXPECT_FALSE(state.branches[0].parent_config.empty());
}

TEST_F(TrainerTest, SpikesAreSkippedAndLogged) {
  write_dull_shard("data.bin", {900, 901, 902});
  ASSERT_EQ(run(config("r", {"train_iters=280", "loss_spikes.zscore=6", "eval_interval=0"})), Exit::done);
  const auto log = history("r");
  const auto skips = events("r", EventKind::skip);
  ASSERT_FALSE(skips.empty());
  for (const EventRecord& e : skips) {
    EXPECT_TRUE(log.steps[size_t(e.step) - 1].skipped) << e.step;
    EXPECT_NE(e.text.find("standard deviations above"), std::string::npos) << e.text;
  }
  EXPECT_EQ(log.steps.back().spikes.value_or(0), int64_t(skips.size()));
  EXPECT_EQ(log.steps.back().skipped_steps, int64_t(skips.size()));
}

TEST_F(TrainerTest, RollbackSkipsTheDataOnceAndStopsOnRepetition) {
  write_dull_shard("data.bin", {900, 901, 902});
  const std::vector<std::string> set = {"train_iters=370",           "loss_spikes.zscore=6",
                                        "eval_interval=0",           "loss_spikes.max_consecutive=1",
                                        "loss_spikes.rollback=true", "save_interval=50"};
  const Exit code = run(config("r", set));
  const auto log = history("r");
  const auto skips = events("r", EventKind::skip);
  const auto back = events("r", EventKind::resume);
  ASSERT_EQ(skips.size(), 2u) << "the second spike, for which no rollback is left";
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].step, skips[0].step / 50 * 50);
  EXPECT_NE(back[0].text.find("rollback from step"), std::string::npos) << back[0].text;
  EXPECT_EQ(log.steps[size_t(back[0].step)].consumed_samples, 4 * (skips[0].step + 1));
  EXPECT_EQ(code, Exit::diverged);
  const RunState state = read_run_state(list_checkpoints(dir_.path() + "/r").back().path);
  EXPECT_EQ(state.rollbacks, 1);
  EXPECT_EQ(state.consumed_samples, 4 * (state.step + skips[0].step - back[0].step));
}

// The variance that compressed momentum is divided by would otherwise stay 0, and with it all updates.
TEST_F(TrainerTest, SkippedStepsDoNotCountAsWarmUpOfOneBitAdam) {
  const auto with = [&](const std::string& name, int64_t steps) {
    return config(name, {"optimizer=onebit_adam", "adam.freeze_step=2", "learning_rate=1e-4", "weight_decay=0",
                         "schedule.lr_warmup_iters=0", "precision=fp16", "fp16.hysteresis=1",
                         "fp16.initial_loss_scale=268435456", cat("train_iters=", steps)});
  };
  ASSERT_EQ(run(with("first", 1)), Exit::done);
  ASSERT_EQ(run(with("all", 16)), Exit::done);
  const int64_t skipped = history("all").steps.back().skipped_steps;
  ASSERT_GT(skipped, 2) << "the initial scale is too small to overflow";
  ASSERT_LT(skipped, 12) << "the initial scale is too large";
  EXPECT_NE(bytes("first", 1, "model.safetensors"), bytes("all", 16, "model.safetensors"));
}

TEST_F(TrainerTest, ResumedRunTakesAConstantLossScale) {
  ASSERT_EQ(run(config("r", {"precision=fp16", "train_iters=2"})), Exit::done);
  EXPECT_GT(history("r").steps.back().loss_scale, 128);
  ASSERT_EQ(run(config("r", {"precision=fp16", "train_iters=4", "fp16.loss_scale=128"})), Exit::done);
  EXPECT_EQ(history("r").steps.back().loss_scale, 128);
}

TEST_F(TrainerTest, RollbackNeedsAHealthyCheckpoint) {
  const std::vector<std::string> set = {
      "learning_rate=1e30", "schedule.lr_decay_style=constant", "schedule.lr_warmup_iters=0",
      "save_interval=0",    "loss_spikes.max_skipped_steps=2",  "loss_spikes.rollback=true"};
  EXPECT_EQ(run(config("r", set)), Exit::diverged);
  EXPECT_TRUE(events("r", EventKind::resume).empty());
}

// The checkpoint to which the run returns is older than the change of the horizon.
TEST_F(TrainerTest, RollbackKeepsTheBranches) {
  ASSERT_EQ(run(config("r", {"train_iters=2"})), Exit::done);
  EXPECT_EQ(run(config("r", {"learning_rate=1e30", "schedule.lr_decay_style=constant", "save_interval=0",
                             "loss_spikes.max_skipped_steps=2", "loss_spikes.rollback=true"})),
            Exit::diverged);
  ASSERT_EQ(steps("r"), std::vector<int64_t>{2});
  const RunState state = read_run_state(cat(dir_.path(), "/r/", step_folder(2)));
  EXPECT_EQ(state.rollbacks, 1);
  ASSERT_EQ(state.branches.size(), 1u);
  EXPECT_EQ(state.branches[0].new_decay_iters, 8);
}

TEST_F(TrainerTest, RollbackTakesNoCheckpointOfAnEarlierRunInTheFolder) {
  ASSERT_EQ(run(config("r", {"train_iters=2", "save_interval=1"})), Exit::done);
  ASSERT_EQ(steps("r"), (std::vector<int64_t>{1, 2}));
  const std::string before = bytes("r", 1, kManifestName);
  EXPECT_EQ(run(config("r", {"load=none", "seed=99", "learning_rate=1e30", "schedule.lr_decay_style=constant",
                             "schedule.lr_warmup_iters=0", "save_interval=0", "loss_spikes.max_skipped_steps=2",
                             "loss_spikes.rollback=true"})),
            Exit::diverged);
  for (const EventRecord& e : events("r", EventKind::resume)) EXPECT_EQ(e.text.find("rollback"), e.text.npos) << e.text;
  EXPECT_EQ(bytes("r", 1, kManifestName), before);
}

TEST_F(TrainerTest, RestartedRunTakesNoCheckpointOfAnEarlierRunForItsRollback) {
  ASSERT_EQ(run(config("r", {"train_iters=2", "save_interval=1"})), Exit::done);
  ASSERT_EQ(run(config("r", {"load=none", "seed=99", "train_iters=2"})), Exit::done);
  ASSERT_EQ(steps("r"), (std::vector<int64_t>{1, 2}));
  const auto lose_own = at(Activity::step, 3, [&] { fs::remove_all(cat(dir_.path(), "/r/", step_folder(2))); });
  EXPECT_EQ(run(config("r", {"seed=99", "learning_rate=1e30", "schedule.lr_decay_style=constant", "save_interval=0",
                             "loss_spikes.max_skipped_steps=2", "loss_spikes.rollback=true"}),
                false, lose_own),
            Exit::diverged);
  for (const EventRecord& e : events("r", EventKind::resume)) EXPECT_EQ(e.text.find("rollback"), e.text.npos) << e.text;
}

}  // namespace
}  // namespace athanor
