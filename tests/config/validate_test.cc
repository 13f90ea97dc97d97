// Combinations that cannot work are refused with both values; what follows from other keys is filled in.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/config/helpers.h"

namespace athanor {
namespace {

TEST(Validate, BatchSizesMustDivide) {
  refused({"micro_batch_size=3"}, {"run.json: global_batch_size: 8", "micro_batch_size 3"});
  refused({"seq_length=33"}, {"seq_length: 33", "max_position_embeddings 32"});
  refused({"gradient_accumulation_steps=3"}, {"gradient_accumulation_steps: 3", "8"});
  refused({"gradient_accumulation_steps=4", "micro_batch_size=4"}, {"4 times micro_batch_size 4"});
  accepted({"gradient_accumulation_steps=2", "micro_batch_size=4"});
  accepted({"gradient_accumulation_steps=2", "micro_batch_size=2"});  // two devices
  refused({"gradient_accumulation_steps=2147483648", "micro_batch_size=8"}, {"does not divide"});
  refused({"global_batch_size=2147483648", "model.n_positions=2147483647"}, {"too many"});
}

TEST(Validate, KeysWithoutEffectAreNamed) {
  using Lines = std::vector<std::string>;
  const auto told = [](Lines overrides) {
    Lines notices;
    parse(small_config(), std::move(overrides), &notices);
    return notices;
  };
  EXPECT_EQ(told({}), Lines{});
  EXPECT_EQ(told({"fp16.initial_loss_scale=8", "precision=bf16"}),
            Lines{"fp16.initial_loss_scale has no effect: it is for precision fp16 with fp16.loss_scale 0"});
  EXPECT_EQ(told({"fp16.initial_loss_scale=8", "precision=fp16"}), Lines{});
  EXPECT_EQ(told({"sgd.momentum=0.5", "muon.nesterov=false", "schedule.lr_wsd_decay_style=linear"}).size(), 3u);
  EXPECT_EQ(told({"muon.nesterov=false", "optimizer=muon"}), Lines{});
  EXPECT_EQ(told({"muon.nesterov=false", "muon.normuon_beta2=0.9", "optimizer=normuon"}), Lines{});
  EXPECT_EQ(told({"muon.normuon_beta2=0.9", "optimizer=muon"}),
            Lines{"muon.normuon_beta2 has no effect: it is for optimizer normuon"});
  for (const char* rule : {"optimizer=sgd", "optimizer=lion", "optimizer=adafactor"})
    EXPECT_EQ(told({"adam.beta1=0.8", "adam.beta2=0.9", "adam.eps=1e-6", "adam.exp_avg_sq_dtype=bf16", rule}).size(),
              4u)
        << rule;
  EXPECT_EQ(told({"adam.beta1=0.8", "adam.eps=1e-6", "optimizer=muon"}), Lines{});
  EXPECT_EQ(told({"adam.beta1=0.8", "optimizer=sgd", "param_groups=[{\"match\":\"*\",\"optimizer\":\"adamw\"}]"}),
            Lines{});
  EXPECT_EQ(told({"averaging.tail_start=9", "train_iters=10"}), Lines{});
  EXPECT_EQ(told({"averaging.tail_start=10", "train_iters=10"}),
            Lines{"averaging.tail_start has no effect: it is for runs of more train_iters"});
  const std::string has_no_effect = " has no effect: it is for ";
  EXPECT_EQ(told({"pruning.end=5"}),
            Lines{cat("pruning.end", has_no_effect,
                      "pruning.sparsity above 0 with pruning.method magnitude and without pruning.mask_from")});
  EXPECT_EQ(told({"pruning.end=5", "pruning.sparsity=0.5"}), Lines{});
  EXPECT_EQ(told({"pruning.start=5", "pruning.sparsity=0.5"}), Lines{});
  EXPECT_EQ(told({"logging.routing_interval=7"}),
            Lines{cat("logging.routing_interval", has_no_effect, "models with experts")});
  EXPECT_EQ(told({"logical_shards=4"}),
            Lines{cat("logical_shards", has_no_effect, "deterministic_reduction rank_invariant")});
  EXPECT_EQ(told({"loss_spikes.max_consecutive=5"}).size(), 1u);
  EXPECT_EQ(told({"loss_spikes.max_consecutive=5", "loss_spikes.zscore=6", "schedule.lr_decay_style=constant"}).size(),
            0u);
  EXPECT_EQ(told({"schedule.min_lr=1e-9", "schedule.lr_decay_style=constant"}).size(), 1u);
  EXPECT_EQ(told({"fim.spm_rate=0.1", "fim.tokens=[1, 2, 3]", "fim.level=character"}).size(), 3u);
  const auto from = [](int64_t tokens) {
    return cat("train_data_stages=[{\"from_tokens\":", tokens, ",\"weights\":{}}]");
  };
  EXPECT_EQ(told({from(2528)}), Lines{});  // 80 sequences of 32 tokens
  EXPECT_EQ(told({from(2529)}),
            Lines{"train_data_stages[0] has no effect: it begins after 2529 tokens, and the run has 2560"});
}

TEST(Validate, MixtureStagesAreOrderedAndNameSources) {
  const std::string sources =
      R"(train_data=[{"path": "web_*.bin", "name": "web", "weight": 9}, {"path": "code.bin"}, {"path": "m.bin", "weight": 0}])";
  const auto error = [&](const std::string& stages) { return error_with({sources, "train_data_stages=" + stages}); };
  const Config c = parse(small_config(), {sources, R"(train_data_stages=[{"from_tokens": 65, "weights": {"m.bin": 5}},
      {"from_tokens": 96, "weights": {"web": 0, "code.bin": 2}}])"});
  EXPECT_EQ(source_weights(c, 0), (std::vector<double>{9, 1, 0}));
  EXPECT_EQ(source_weights(c, 1), (std::vector<double>{9, 1, 5}));
  EXPECT_EQ(source_weights(c, 2), (std::vector<double>{0, 2, 5}));
  EXPECT_EQ(first_sample_of(c, c.train_data_stages[0]), 3) << "the third sequence of 32 has token 65";
  EXPECT_EQ(first_sample_of(c, c.train_data_stages[1]), 3);
  EXPECT_EQ(dump_resolved(parse_config(dump_resolved(c), "again", ".")), dump_resolved(c));
  refused({sources}, {"train_data: the weight of \"m.bin\" is 0"});
  expect_parts(error(R"([{"from_tokens": 1, "weights": {"web_*.bin": 1, "m.bin": 1}}])"),
               {"train_data_stages[0].weights", "\"web_*.bin\"", "web, code.bin, m.bin"});
  expect_parts(error(R"([{"from_tokens": 9, "weights": {"m.bin": 1}}, {"from_tokens": 9, "weights": {}}])"),
               {"train_data_stages[1].from_tokens: 9", "list stages in ascending order"});
  expect_parts(error(R"([{"from_tokens": 9, "weights": {"web": 0, "code.bin": 0, "m.bin": 0}}])"),
               {"train_data_stages[0].weights", "are 0"});
  expect_parts(error(R"([{"from_tokens": 9, "weights": {"web": -1}}])"), {"train_data_stages[0].weights.web", "-1"});
  expect_parts(error(R"([{"from_tokens": 0, "weights": {}}])"), {"train_data_stages[0].from_tokens", "0"});
  refused({R"(train_data=[{"path": "a.bin", "name": "b.bin"}, {"path": "b.bin"}])"},
          {"train_data: two entries have the name \"b.bin\""});
  refused({R"(valid_data=[{"path": "a.bin", "weight": 0}])"}, {"valid_data", "\"a.bin\" is 0"});
}

TEST(Validate, FillInTheMiddleNeedsThreeDistinctTokens) {
  accepted({"fim.rate=0.5", "fim.tokens=[250, \"<mid>\", 252]"});
  refused({"fim.rate=0.5"}, {"fim.rate: 0.5 needs fim.tokens"});
  refused({"fim.rate=0.5", "fim.tokens=[255, 256, 257]"}, {"fim.tokens: 257", "vocab_size 257"});
  refused({"fim.rate=0.5", "fim.tokens=[255, 256, 255]"}, {"fim.tokens", "three different"});
  refused({"fim.tokens=[255, 256]"}, {"fim.tokens", "list of three"});
  refused({"fim.rate=0.5", "fim.tokens=[1, 2, 3]", "distillation.teacher_logits=cache"},
          {"fim.rate: 0.5", "distillation.teacher_logits"});
}

TEST(Validate, RunLengthIsGivenOnceAndDoesNotOverflow) {
  const Config c = parse(small_config(), {"train_tokens=1000000"});
  EXPECT_EQ(c.train_iters, 3907);  // 256 tokens a step, rounded up
  EXPECT_EQ(c.train_tokens, 0);
  expect_parts(error_in(small_config("\"train_tokens\": 5,\n")), {"train_tokens: 5", "train_iters 10", "keep one"});
  refused({"train_iters=0"}, {"train_iters is required"});
  refused({"train_iters=9007199254740991", "model.n_positions=100000"}, {"overflow"});
}

TEST(Validate, LearningRateSchedulesMustBeConsistent) {
  refused({"schedule.min_lr=1"}, {"schedule.min_lr: 1", "learning_rate 0.001"});
  refused({"schedule.lr_warmup_iters=11"}, {"schedule.lr_warmup_iters: 11", "schedule.lr_decay_iters 10"});
  refused({"schedule.lr_wsd_decay_iters=2"}, {"schedule.lr_wsd_decay_iters: 2", "cosine"});
  refused({"schedule.lr_decay_style=WSD", "schedule.lr_warmup_iters=5", "schedule.lr_wsd_decay_iters=6"},
          {"6 steps", "5"});
  EXPECT_EQ(parse(small_config(), {"schedule.lr_decay_style=WSD", "train_iters=100"}).lr_wsd_decay_iters, 10);
  EXPECT_EQ(parse(small_config(), {"schedule.lr_decay_style=WSD", "schedule.lr_warmup_iters=10"}).lr_wsd_decay_iters,
            0);
  EXPECT_EQ(parse(small_config(), {"schedule.min_lr=0"}).min_lr, 0.0);
}

TEST(Validate, WsdDecaysAtLeastFourStepsOfShortRuns) {
  for (const auto& [steps, decay] : {std::pair{10, 4}, {39, 4}, {41, 4}, {50, 5}, {3, 3}})
    EXPECT_EQ(parse(small_config(), {"schedule.lr_decay_style=WSD", cat("train_iters=", steps)}).lr_wsd_decay_iters,
              decay)
        << steps;
}

TEST(Validate, OneCycleHasPyTorchDefaults) {
  const Config c = parse(small_config(), {"schedule.lr_decay_style=1cycle", "train_iters=50", "learning_rate=0.5"});
  EXPECT_EQ(c.lr_warmup_iters, 15);
  EXPECT_DOUBLE_EQ(c.lr_warmup_init, 0.02);
  EXPECT_DOUBLE_EQ(c.min_lr, 2e-6);
  refused({"schedule.lr_decay_style=1cycle", "schedule.momentum_warmup_iters=2"},
          {"schedule.momentum_warmup_iters: 2", "1cycle"});
  refused({"schedule.lr_decay_style=1cycle", "schedule.low_momentum=0.95"},
          {"schedule.low_momentum: 0.95", "adam.beta1 0.9"});
}

TEST(Validate, ExponentialDecayNeedsWarmupInit) {
  refused({"schedule.lr_decay_style=exponential"}, {"schedule.lr_warmup_init", "more than 0", "exponential"});
  accepted({"schedule.lr_decay_style=exponential", "schedule.lr_warmup_init=1e-8"});
}

TEST(Validate, WarmUpAndWeightDecaySchedulesMustBeConsistent) {
  EXPECT_EQ(parse(small_config()).lr_warmup_init, 0);
  EXPECT_EQ(parse(small_config(), {"weight_decay=0.2"}).end_weight_decay, 0.2);
  refused({"schedule.lr_warmup_init=10"}, {"schedule.lr_warmup_init: 10", "learning_rate"});
  refused({"schedule.end_weight_decay=0.5"}, {"schedule.end_weight_decay: 0.5", "schedule.weight_decay_style"});
  refused({"schedule.weight_decay_style=linear", "weight_decay=0"}, {"weight_decay: 0", "schedule.weight_decay_style"});
  accepted({"schedule.weight_decay_style=cosine", "schedule.end_weight_decay=0.5"});
}

TEST(Validate, StopAtLossAndRollbackNeedTheirKeys) {
  refused({"stop_at_loss=2", "valid_data=[]"}, {"stop_at_loss: 2", "valid_data"});
  refused({"loss_spikes.rollback=true", "save="}, {"rollback", "`save`"});
}

// DeepSpeed's CurriculumScheduler, fixed_linear: depends on the steps, counted from 1, and not on their batch sizes.
TEST(Validate, SequenceLengthWarmUpMatchesDeepSpeed) {
  for (const std::string& ramp : {std::string("rampup_batch_size=null"), std::string("rampup_batch_size=[4,4,60]")}) {
    const Config c = parse(small_config(),
                           {"global_batch_size=16", "micro_batch_size=2", ramp, "curriculum.total_curriculum_step=13",
                            "curriculum.min_difficulty=8", "curriculum.difficulty_step=4"});
    const auto t = double(c.seq_length);
    int64_t consumed = 0;
    for (int64_t step = 1; step < 20; ++step) {
      auto want = int64_t(std::floor(double(step) / 13 * (t - 8) + 8));
      want = std::min(want - want % 4, c.seq_length);
      const int64_t batch = batch_size_at(c, consumed);
      EXPECT_EQ(chunk_length_at(c, consumed), want) << step;
      EXPECT_EQ(chunk_length_at(c, consumed + batch - 1), want) << step;
      consumed += batch;
    }
    EXPECT_EQ(max_chunks(c), c.seq_length / 8);
  }
  const Config plain = parse(small_config());
  EXPECT_EQ(chunk_length_at(plain, 0), plain.seq_length);
  EXPECT_EQ(max_chunks(plain), 1);
  const auto with = [](const std::string& set) {
    return error_with(
        {"curriculum.total_curriculum_step=13", "curriculum.min_difficulty=8", "curriculum.difficulty_step=4", set});
  };
  EXPECT_EQ(with("curriculum.difficulty_step=8"), "");
  expect_parts(with("curriculum.min_difficulty=4096"), {"curriculum.min_difficulty: 4096", "seq_length"});
  expect_parts(with("curriculum.min_difficulty=6"), {"curriculum.difficulty_step: curriculum.min_difficulty 6", "4"});
  expect_parts(with("curriculum.difficulty_step=3"), {"curriculum.difficulty_step", "not a multiple of 3"});
  const auto idle = keys_without_effect(parse(small_config(), {"curriculum.min_difficulty=16"}));
  ASSERT_EQ(idle.size(), 1U);
  expect_parts(idle[0], {"curriculum.min_difficulty has no effect", "curriculum.total_curriculum_step"});
}

TEST(Validate, SlidingWindowScheduleCoversAllStepsInOrder) {
  const std::string text = small_config("", llama_json().dump());
  const SmallConfig with{{"model.model_type=mistral", "model.sliding_window=8"}, text};
  with.accepts({"sliding_window_schedule=[[0,2],[5,8]]"});
  const Config c =
      parse(text, {"model.model_type=mistral", "model.sliding_window=8", "sliding_window_schedule=[[0,2],[5,8]]"});
  for (const auto& [step, tokens] : {std::pair{0, 2}, {4, 2}, {5, 8}, {100, 8}})
    EXPECT_EQ(sliding_window_at(c, step), tokens);
  with.refuses({"sliding_window_schedule=[[1,8]]"}, {"sliding_window_schedule: begins with step 1", "expected 0"});
  with.refuses({"sliding_window_schedule=[[0,2],[5,4],[5,8]]"},
               {"sliding_window_schedule[2]: step 5 does not follow step 5"});
  with.refuses({"sliding_window_schedule=[[0,2]]"}, {"sliding_window_schedule: ends with 2", "model.sliding_window 8"});
  with.refuses({"sliding_window_schedule=[[0]]"}, {"sliding_window_schedule[0]", "pair [first step, tokens]"});
  with.refuses({"sliding_window_schedule=[[0,8]]", "model.sliding_window=0"},
               {"sliding_window_schedule", "model.sliding_window is 0"});
  with.refuses({"sliding_window_schedule=[[0,8]]", "context_parallel_size=2"},
               {"sliding_window_schedule", "context_parallel_size 2"});
  with.refuses({"sliding_window_schedule=[[0,8]]", "attention=cudnn"}, {"sliding_window_schedule", "attention cudnn"});
}

TEST(Validate, StochasticDepthIsBelowOne) {
  refused({"dropout.stochastic_depth=1"}, {"dropout.stochastic_depth"});
  const auto idle = keys_without_effect(parse(small_config(), {"dropout.stochastic_depth_mode=uniform"}));
  ASSERT_EQ(idle.size(), 1U);
  expect_parts(idle[0], {"dropout.stochastic_depth_mode has no effect", "dropout.stochastic_depth above 0"});
}

TEST(Validate, PruningKeysMustBeConsistent) {
  refused({"pruning.sparsity=1"}, {"pruning.sparsity"});
  refused({"pruning.sparsity=0.6", "pruning.pattern=2:4"}, {"pruning.sparsity: 0.6", "2:4"});
  refused({"pruning.sparsity=0.5", "pruning.start=20", "pruning.end=10"}, {"pruning.end: 10", "pruning.start 20"});
  refused({"pruning.sparsity=0.5", "pruning.end=100000"}, {"pruning.end", "100000", "train_iters"});
  const auto srste = [](const char* more) {
    return error_with({"pruning.sparsity=0.5", "pruning.pattern=2:4", "pruning.method=srste", more});
  };
  EXPECT_EQ(srste("precision=bf16"), "");
  expect_parts(srste("pruning.pattern=unstructured"), {"pruning.method", "pruning.pattern", "unstructured"});
  expect_parts(srste("precision=fp16"), {"pruning.method", "precision", "fp16"});
  expect_parts(srste("pruning.mask_from=x"), {"pruning.mask_from: x", "pruning.method"});
  expect_parts(srste(R"(param_groups=[{"match": "*q_proj*", "frozen": true}])"),
               {"pruning.method", "frozen", "q_proj"});
  refused({"pruning.mask_from=runs/dense"}, {"pruning.mask_from: ", "runs/dense", "pruning.sparsity"});
  refused({"pruning.sparsity=0.5", "tensor_parallel_size=2"}, {"pruning.sparsity", "tensor_parallel_size"});
}

TEST(Validate, HiddenDropoutRefusesContextParallelismAndExperts) {
  refused({"dropout.hidden=1"}, {"dropout.hidden"});
  refused({"dropout.hidden=0.1", "context_parallel_size=2"}, {"dropout.hidden: 0.1", "context_parallel_size 2"});
  refused({"dropout.hidden=0.1", "model.model_type=mixtral", "model.intermediate_size=64", "model.num_experts=4",
           "model.num_experts_per_tok=2"},
          {"dropout.hidden: 0.1", "mixtral"});
}

TEST(Validate, MultiTokenPredictionNeedsWeightsAndDecayRanges) {
  const auto with = [](const std::string& entries, std::vector<std::string> more = {}) {
    more.push_back("multi_token_prediction=" + entries);
    return error_with(more);
  };
  expect_parts(with("[{}]"), {"multi_token_prediction[0].weight is required"});
  expect_parts(with(R"([{"weight": 0}])"), {"multi_token_prediction[0].weight"});
  expect_parts(with(R"([{"weight": 1, "decay_start": 5, "decay_end": 5}])"), {"decay_start 5", "decay_end 5"});
  expect_parts(with(R"([{"weight": 1, "decay_start": 5}])"), {"decay_start 5", "decay_end 0"});
  expect_parts(with(R"([{"weight": 1}])", {"distillation.teacher=folder"}),
               {"multi_token_prediction", "teacher folder"});
  const Config c =
      parse(small_config(),
            {R"(multi_token_prediction=[{"weight": 0.5, "decay_start": 10, "decay_end": 20}, {"weight": 0.25}])"});
  for (const auto& [step, want] : {std::pair{0, 0.5f}, {10, 0.5f}, {15, 0.25f}, {20, 0.0f}, {99, 0.0f}})
    EXPECT_EQ(ahead_weights_at(c, step), (std::vector<float>{want, 0.25f})) << step;
}

TEST(Validate, DistillationKeysMustBeConsistent) {
  refused({"distillation.teacher=folder", "distillation.loss=uld"},
          {"distillation.loss: uld", "folder", "distillation.teacher_logits"});
  refused({"distillation.teacher_logits=cache", "distillation.loss=uld", "tensor_parallel_size=2"},
          {"distillation.loss: uld", "tensor_parallel_size 2"});
  refused({"distillation.teacher=folder", "distillation.teacher_logits=cache"},
          {"distillation.teacher_logits: cache", "teacher folder"});
  refused({"distillation.teacher_logits=cache", "documents.packing=best_fit"},
          {"packing", "distillation.teacher_logits"});
  refused({"distillation.teacher_logits=cache", "curriculum.total_curriculum_step=5", "curriculum.min_difficulty=8"},
          {"curriculum.total_curriculum_step", "distillation.teacher_logits"});
}

// The table of Zhu & Gupta's equation for four prunings.
TEST(Pruning, SparsityFollowsTheCubicSchedule) {
  const Config c = parse(small_config(), {"train_iters=60", "pruning.sparsity=0.9", "pruning.start=10",
                                          "pruning.end=50", "pruning.interval=10"});
  const double want[] = {0, 0.5203125, 0.7875, 0.8859375, 0.9};
  for (int i = 0; i <= 4; ++i) {
    EXPECT_NEAR(sparsity_after(c, 10 + 10 * i), want[i], 1e-12) << i;
    EXPECT_NEAR(sparsity_after(c, 19 + 10 * i), want[i], 1e-12) << i;
    EXPECT_TRUE(prunes_after(c, 10 + 10 * i));
    EXPECT_FALSE(prunes_after(c, 11 + 10 * i));
  }
  EXPECT_EQ(sparsity_after(c, 9), 0);
  EXPECT_FALSE(prunes_after(c, 60));
  const Config once = parse(small_config(), {"train_iters=60", "pruning.sparsity=0.5"});
  EXPECT_TRUE(prunes_after(once, 0));
  EXPECT_FALSE(prunes_after(once, 100));
  EXPECT_EQ(sparsity_after(once, 0), 0.5);
}

TEST(Validate, BatchSizeRampsUpInIncrements) {
  const std::vector<std::string> ramp = {"global_batch_size=16", "micro_batch_size=2", "rampup_batch_size=[4,4,60]"};
  const Config c = parse(small_config(), ramp);
  // Three increments, of 20 sequences each: 4 x 5, 8 x 3 (to 44 > 40), 12 x 2 (to 68 > 60).
  EXPECT_EQ(batch_size_at(c, 0), 4);
  EXPECT_EQ(batch_size_at(c, 16), 4);
  EXPECT_EQ(batch_size_at(c, 20), 8);
  EXPECT_EQ(batch_size_at(c, 36), 8);
  EXPECT_EQ(batch_size_at(c, 44), 12);
  EXPECT_EQ(batch_size_at(c, 68), 16);
  EXPECT_EQ(batch_size_at(c, 68000), 16);
  int64_t consumed = 0;
  for (int64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(samples_after(c, step), consumed);
    EXPECT_EQ(steps_for(c, consumed), step);
    EXPECT_EQ(steps_for(c, consumed + 1), step + 1);
    consumed += batch_size_at(c, consumed);
  }
  EXPECT_EQ(common_batch_size(c), 4);
  auto with = [&](const std::string& set) {
    std::vector<std::string> all = ramp;
    all.push_back(set);
    return error_with(all);
  };
  expect_parts(with("rampup_batch_size=[16,4,60]"), {"rampup_batch_size", "16", "global_batch_size 16"});
  expect_parts(with("rampup_batch_size=[4,5,60]"), {"rampup_batch_size", "increments of 5"});
  expect_parts(with("rampup_batch_size=[3,1,60]"), {"rampup_batch_size", "micro_batch_size 2"});
  expect_parts(with("rampup_batch_size=[4,4]"), {"rampup_batch_size", "[start, increment, samples]"});
  expect_parts(with("rampup_batch_size=[4,0,60]"), {"rampup_batch_size[1]", "1"});
  EXPECT_EQ(with("rampup_batch_size=null"), "");
  const Config plain = parse(small_config());
  EXPECT_EQ(batch_size_at(plain, 1000), plain.global_batch_size);
  EXPECT_EQ(samples_after(plain, 3), 3 * plain.global_batch_size);
}

TEST(Validate, PrecisionAndMemoryOptionsMustBeConsistent) {
  refused({"fp16.loss_scale=128"}, {"loss_scale: 128", "bf16"});
  accepted({"fp16.loss_scale=128", "precision=fp16"});
  refused({"fp16.min_loss_scale=1e6"}, {"fp16.min_loss_scale", "65536"});
  refused({"master_weights=bf16", "precision=fp32"}, {"master_weights: bf16", "fp32"});
  refused({"master_weights=split", "precision=fp16"}, {"master_weights: split", "bf16", "fp16"});
  accepted({"grad_dtype=bf16", "precision=bf16"});
  accepted({"grad_dtype=bf16", "precision=nvfp4", "optimizer=muon"});
  for (const char* precision : {"fp32", "tf32", "fp16"})
    refused({"grad_dtype=bf16", cat("precision=", precision)}, {"grad_dtype: bf16", precision, "fp32"});
  refused({"grad_dtype=bf16", "precision=bf16", "deterministic_reduction=rank_invariant", "micro_batch_size=1"},
          {"grad_dtype: bf16", "deterministic_reduction rank_invariant", "fp32"});
  for (const char* rule : {"lamb", "adafactor"})
    refused({"grad_dtype=bf16", "precision=bf16", cat("optimizer=", rule)}, {"grad_dtype: optimizer ", rule, "fp32"});
  refused({"grad_dtype=bf16", "precision=bf16", "adam.update_clip_threshold=1"},
          {"grad_dtype: adam.update_clip_threshold 1", "fp32"});
  accepted({"master_weights=split", "adam.exp_avg_dtype=bf16", "adam.exp_avg_sq_dtype=bf16"});
  accepted({"precision=fp8_blockwise", "master_weights=split", "fp8.format=hybrid", "fp8.min_size=8",
            "fp8.power_of_two_scales=true", "fp8.exclude=[\"*.c_proj.*\"]", "fp8.num_layers_at_start_in_bf16=1",
            "fp8.num_layers_at_end_in_bf16=1"});
  for (const char* option :
       {"fp8.format=e4m3", "fp8.min_size=8", "fp8.lm_head=true", "fp8.power_of_two_scales=true", "fp8.exclude=[\"*\"]",
        "fp8.num_layers_at_start_in_bf16=1", "fp8.num_layers_at_end_in_bf16=1", "logging.quantization_interval=1"})
    refused({option}, {std::string(option, std::strcspn(option, "=")), "8 bits", "not bf16"});
  accepted({"precision=fp8_delayed", "fp8.amax_history_len=16", "fp8.margin=1", "fp8.format=hybrid"});
  accepted({"precision=fp8_delayed", "fp8.amax_compute_algo=most_recent"});
  for (const char* set : {"fp8.amax_history_len=16", "fp8.amax_compute_algo=most_recent", "fp8.margin=1"})
    refused({"precision=fp8_tensorwise", set}, {"only with precision fp8_delayed, not fp8_tensorwise"});
  refused({"precision=nvfp4", "fp8.format=e4m3"}, {"fp8.format: e4m3", "nvfp4"});
  refused({"precision=nvfp4", "fp8.power_of_two_scales=true"}, {"fp8.power_of_two_scales", "nvfp4"});
  const auto last_blocks = [](int64_t blocks, const char* precision) {
    return parse(small_config(), {cat("model.n_layer=", blocks), cat("precision=", precision)})
        .num_layers_at_end_in_bf16;
  };
  EXPECT_EQ(last_blocks(1, "nvfp4"), 0);
  EXPECT_EQ(last_blocks(2, "nvfp4"), 1);
  EXPECT_EQ(last_blocks(40, "nvfp4"), 6);
  EXPECT_EQ(last_blocks(40, "mxfp8"), 0);
  EXPECT_EQ(parse(small_config(), {"precision=nvfp4", "fp8.num_layers_at_end_in_bf16=0"}).num_layers_at_end_in_bf16, 0);
  refused({"precision=mxfp8", "fp8.exclude=[1]"}, {"fp8.exclude[0]", "pattern of names"});
  refused({"adam.exp_avg_dtype=fp16"}, {"adam.exp_avg_dtype", "fp16", "bf16"});
  refused({"recompute_num_layers=2"}, {"recompute_num_layers: 2", "recompute_granularity full, not none"});
  refused({"recompute_num_layers=2", "recompute_granularity=selective"}, {"full, not selective"});
  refused({"recompute_num_layers=3", "recompute_granularity=full"}, {"model.num_hidden_layers 2"});
  refused({"memory_limit_gib=0.1"}, {"runtime_reserve_mib: 256", "0.1"});
  refused({"memory_limit_gib=0.3", "runtime_reserve_mib=400"}, {"runtime_reserve_mib: 400", "0.3"});
  accepted({"memory_limit_gib=0.3", "runtime_reserve_mib=auto"});
  refused({"offload.optimizer=cpu", "device=cpu"}, {"offload.optimizer: cpu", "auto or none", "cuda"});
  accepted({"offload.optimizer=auto", "device=cpu"});
  accepted({"offload.optimizer=cpu", "offload.host_memory_limit_gib=4"});
  accepted({"offload.activations=cpu", "recompute_granularity=full", "offload.host_memory_limit_gib=4"});
  refused({"offload.activations=cpu"}, {"offload.activations: cpu", "recompute_granularity", "none"});
  refused({"offload.activations=cpu", "recompute_granularity=full", "device=cpu"},
          {"offload.activations: cpu", "auto or none", "cuda"});
  refused({"offload.host_memory_limit_gib=4"}, {"offload.host_memory_limit_gib: 4", "offload.optimizer", "none"});
}

TEST(Validate, OffloadParamsRefusesUnsupportedOptions) {
  accepted({"offload.params=cpu", "offload.host_memory_limit_gib=4"});
  accepted({"offload.params=auto", "device=cpu"});
  refused({"offload.params=cpu", "device=cpu"}, {"offload.params: cpu", "auto or none", "cuda"});
  const auto never_with_params = [](const std::vector<std::string>& with, const std::vector<std::string>& parts) {
    for (const char* how : {"cpu", "auto"}) {
      std::vector<std::string> sets = with, named = parts;
      sets.push_back(cat("offload.params=", how)), named.push_back(cat("offload.params: ", how));
      refused(sets, named);
      sets.back() = "offload.params=none";
      EXPECT_EQ(error_with(sets), "") << with.front();
    }
  };
  never_with_params({"data_parallel_shard_size=2"}, {"data_parallel_shard_size is 2", "to 1"});
  never_with_params({"pipeline_parallel_size=2"}, {"pipeline_parallel_size is 2", "to 1"});
  never_with_params({"precision=fp8_rowwise_gw_hp"}, {"precision fp8_rowwise_gw_hp", "bf16"});
  for (const char* optimizer : {"muon", "lamb", "adafactor"})
    never_with_params({cat("optimizer=", optimizer)}, {cat("optimizer ", optimizer), "adamw", "none"});
  never_with_params({"adam.update_clip_threshold=1"}, {"adam.update_clip_threshold", "to 0"});
  never_with_params({"deterministic_reduction=rank_invariant", "micro_batch_size=1"},
                    {"rank_invariant", "fixed_order"});
  never_with_params({"logging.noise_scale=true"}, {"logging.noise_scale", "false"});
  never_with_params({"pruning.sparsity=0.5"}, {"pruning.sparsity", "to 0"});
}

TEST(Validate, ValidDataIsUniqueAndLoadConsistent) {
  refused({"valid_data=[\"a\",\"b\",\"a\"]"}, {"valid_data: a is listed twice", "weight"});
  refused({"load="}, {"load: expected auto"});
  refused({"load=none", "load_step=3"}, {"load_step: 3", "none"});
}

TEST(Validate, MupSetsParamGroupsAndInitialWeights) {
  const Config c = parse(small_config("\"mup_base_width\": 16, \"weight_decay\": 0.25,\n"));
  const double width = double(c.model.hidden_size) / 16;
  ASSERT_NE(width, 1);
  EXPECT_EQ(c.model.mup_width, width);
  ASSERT_EQ(c.param_groups.size(), 3U);
  EXPECT_EQ(c.param_groups[0],
            (ParamGroupConfig{.match = "transformer.ln_f.*", .lr_factor = 1 / width, .weight_decay = 0.0}));
  EXPECT_EQ(c.param_groups[1],
            (ParamGroupConfig{.role = Role::matrix, .lr_factor = 1 / width, .weight_decay = 0.25 * width}));
  EXPECT_EQ(c.param_groups[2], default_param_groups({})[0]);
  EXPECT_EQ(parse_config(dump_resolved(c), "resolved", ".").param_groups, c.param_groups);
  for (const char* optimizer : {"sgd", "adamw_8bit", "adafactor"})
    refused({"mup_base_width=16", cat("optimizer=", optimizer)}, {"mup_base_width", "adamw", optimizer});
  refused({"mup_base_width=16", "optimizer=muon"}, {"mup_base_width", "match_rms", "spectral"});
  const auto group = [](const char* given, const char* scale) {
    return error_with({"mup_base_width=16", cat("muon.scale=", scale), cat("param_groups=[", given, "]")});
  };
  expect_parts(group(R"({"match": "*.mlp.*", "optimizer": "lamb"})", "spectral"),
               {"mup_base_width", "got lamb of param_groups[0]"});
  expect_parts(group(R"({"match": "*wpe*"}, {"match": "*.mlp.*", "optimizer": "muon"})", "match_rms"),
               {"mup_base_width", "match_rms", "param_groups[1]", "expected spectral"});
  EXPECT_EQ(group(R"({"match": "*.mlp.*", "optimizer": "lion"})", "match_rms"), "");
}

TEST(Validate, QkClipNeedsAttentionLogitsAndNoQkNorm) {
  accepted({"qk_clip_threshold=100", "optimizer=muon", "attention=builtin"});
  refused({"qk_clip_threshold=100", "attention=cudnn"},
          {"qk_clip_threshold: 100", "attention cudnn", "auto or builtin"});
  refused({"qk_clip_threshold=100", "model.model_type=qwen3", "model.intermediate_size=64"},
          {"qk_clip_threshold: 100", "model.qk_norm", "set it to 0"});
}

TEST(Validate, UpdateClippingRequiresAdamW) {
  accepted({"adam.update_clip_threshold=1"});
  EXPECT_EQ(error_with({"adam.update_clip_threshold=1", "optimizer=muon"}), "") << "embeddings are adamw's";
  refused({"adam.update_clip_threshold=1", "optimizer=lion"},
          {"adam.update_clip_threshold: 1", "no weights with optimizer lion", "expected 0, or optimizer adamw"});
  refused({"adam.update_clip_threshold=-1"}, {"adam.update_clip_threshold", ">= 0"});
}

TEST(Validate, ParamGroupsEndWithTheDefaults) {
  const Config plain = parse(small_config());
  ASSERT_EQ(plain.param_groups, default_param_groups({}));
  EXPECT_EQ(plain.param_groups.back(), (ParamGroupConfig{.role = Role::vector, .weight_decay = 0.0}));
  EXPECT_EQ(parse(small_config("\"optimizer\": \"muon\",\n")).param_groups,
            default_param_groups({.optimizer = RuleName::muon}));
  const Config given = parse(small_config(
      R"("optimizer": "muon", "param_groups": [{"match": "*wpe*", "optimizer": "lion", "lr_factor": 0.5, "beta2": 0.98}],
)"));
  ASSERT_EQ(given.param_groups.size(), 3U);
  EXPECT_EQ(given.param_groups[0],
            (ParamGroupConfig{.match = "*wpe*", .optimizer = RuleName::lion, .lr_factor = 0.5, .beta2 = 0.98}));
  const std::string resolved = dump_resolved(given);
  EXPECT_NE(resolved.find("\"role\": \"vector\""), std::string::npos);
  EXPECT_EQ(parse_config(resolved, "resolved", ".").param_groups, given.param_groups);
}

TEST(Validate, EvalWeightsNeedAnAverage) {
  EXPECT_EQ(parse(small_config("\"averaging\": {\"ema_decay\": 0.99, \"eval_weights\": \"ema\"},\n")).eval_weights,
            EvalWeights::ema);
  accepted({"averaging.tail_start=2", "train_iters=3", "averaging.eval_weights=average"});
  for (const char* word : {"ema", "average"})
    refused(
        {cat("averaging.eval_weights=", word)},
        {cat("averaging.eval_weights: ", word, " needs an averaging.ema_decay above 0, or an averaging.tail_start")});
  refused({"averaging.ema_decay=0.9", "averaging.tail_start=1"},
          {"averaging.tail_start: 1", "averaging.ema_decay 0.9", "two averages", "one of them to 0"});
  refused({"averaging.ema_decay=1"}, {"averaging.ema_decay", "1"});
}

TEST(Validate, ScheduleFreeRefusesDecayAndOtherAverages) {
  const SmallConfig with{{"optimizer=schedule_free_adamw", "schedule.lr_decay_style=constant"}};
  with.accepts({"schedule.lr_warmup_iters=3"});
  with.accepts({"schedule.lr_decay_style=exponential", "schedule.lr_warmup_init=1e-6"});  // athanor lr-find
  for (const char* style : {"linear", "cosine", "WSD", "inverse_sqrt", "1cycle"})
    with.refuses({cat("schedule.lr_decay_style=", style)},
                 {cat("schedule.lr_decay_style: ", style), "schedule_free_adamw",
                  "set it to constant, with schedule.lr_warmup_iters"});
  refused({R"(param_groups=[{"role": "embedding", "optimizer": "schedule_free_adamw"}])"},
          {"schedule.lr_decay_style: cosine", "schedule_free_adamw"});
  with.refuses({"schedule.momentum_warmup_iters=3"},
               {"schedule.momentum_warmup_iters: 3", "adam.beta1", "set it to 0"});
  with.refuses({"averaging.ema_decay=0.9"}, {"averaging.ema_decay", "second average", "set it to 0"});
  with.refuses({"averaging.tail_start=2"}, {"averaging.tail_start", "second average", "set it to 0"});
  with.refuses({"mup_base_width=16"}, {"mup_base_width", "got schedule_free_adamw"});
}

TEST(Validate, CautiousDecayNeedsDecoupledWeightDecay) {
  EXPECT_TRUE(
      parse(small_config("\"optimizer\": \"normuon\", \"cautious_weight_decay\": true,\n")).cautious_weight_decay);
  refused({"cautious_weight_decay=true", "optimizer=sgd"},
          {"cautious_weight_decay: optimizer sgd adds the decay to the gradient", "adamw"});
  refused({"cautious_weight_decay=true", R"(param_groups=[{"match": "*", "optimizer": "adam"}])"},
          {"cautious_weight_decay: optimizer adam of param_groups[0]"});
}

TEST(Validate, ResumeIgnoresParamGroupsUntilTheyDiffer) {
  Config now = parse(small_config());
  std::string old = dump_resolved(now);
  EXPECT_TRUE(resume_changes(old, now).empty());
  const size_t at = old.find("\"param_groups\""), end = old.find("],", at);
  ASSERT_NE(at, std::string::npos);
  old.erase(at, end + 2 - at);  // as runs before there were groups stored it
  EXPECT_TRUE(resume_changes(old, now).empty());
  now.param_groups[0].weight_decay = 0.5;
  const auto changes = resume_changes(old, now);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].rule, OnResume::refused);
}

TEST(Validate, PruningWithANewMaskMayStartOnResume) {
  const Config dense = parse(small_config());
  const auto refused = [](const Config& was, const Config& now) {
    std::vector<std::string> keys;
    for (const ConfigChange& c : resume_changes(dump_resolved(was), now))
      if (c.rule == OnResume::refused) keys.push_back(c.key);
    return keys;
  };
  const Config ticket = parse(small_config(), {"pruning.sparsity=0.2", "pruning.mask_from=runs/dense"});
  const Config next = parse(small_config(), {"pruning.sparsity=0.36", "pruning.mask_from=runs/ticket", "seed=7"});
  EXPECT_TRUE(refused(dense, ticket).empty());
  EXPECT_EQ(refused(ticket, next), std::vector<std::string>{"seed"});
  EXPECT_EQ(refused(ticket, dense).size(), 2U) << "pruning.sparsity and pruning.mask_from";
  EXPECT_EQ(refused(ticket, parse(small_config(), {"pruning.sparsity=0.3", "pruning.mask_from=runs/dense"})),
            std::vector<std::string>{"pruning.sparsity"});
}

TEST(Validate, InvalidParamGroupsAreNamed) {
  refused({R"(param_groups=[{"macth": "*"}])"}, {"param_groups[0].macth", "match"});
  refused({R"(param_groups=[{"optimizer": "lio"}])"}, {"param_groups[0].optimizer", "lion"});
  refused({R"(param_groups=[{"weight_decay": -1}])"}, {"param_groups[0].weight_decay", ">= 0"});
  refused({"param_groups=adamw"}, {"param_groups", "list of groups"});
}

TEST(Validate, ChecksStructsNotReadFromFiles) {
  Config c;
  expect_parts(error_of([&] { validate(c); }), {"model.vocab_size"});
  c.model = model_defaults(ModelType::gpt2);
  c.model.vocab_size = 10, c.model.hidden_size = 8, c.model.num_hidden_layers = 1, c.model.num_attention_heads = 2;
  c.model.max_position_embeddings = 4;
  c.learning_rate = 1, c.train_iters = 1, c.global_batch_size = 1;
  c.train_data.push_back({.path = "a"});
  EXPECT_EQ(error_of([&] { validate(c); }), "");
  EXPECT_EQ(c.model.head_dim, 4);
  c.seq_length = -1;
  expect_parts(error_of([&] { validate(c); }), {"seq_length"});
}

}  // namespace
}  // namespace athanor
