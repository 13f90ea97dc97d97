// Parallelism: sizes that do not work together are refused with both values.
#include "tests/config/helpers.h"

namespace athanor {
namespace {

TEST(Validate, ZeroStageMustMatchDataParallelSizes) {
  accepted({"zero_stage=3", "data_parallel_shard_size=4", "data_parallel_replicate_size=2"});
  refused({"zero_stage=4"}, {"zero_stage", "4"});
  refused({"zero_stage=0", "data_parallel_shard_size=2"}, {"data_parallel_shard_size: 2", "zero_stage 0"});
  refused({"zero_stage=0", "data_parallel_replicate_size=2"}, {"data_parallel_replicate_size: 2"});
  refused({"timeouts.connect=-1"}, {"timeouts.connect"});
}

TEST(Validate, PipelineLayoutMustFitTheModelAndSchedule) {
  const SmallConfig with{{"model.n_layer=8"}};
  with.accepts({"pipeline_parallel_size=1"});
  with.accepts({"pipeline_model_parallel_size=4", "pipeline.schedule=gpipe"});
  with.accepts({"pipeline_parallel_degree=4", "pipeline.schedule=interleaved"});
  with.accepts({"pipeline_parallel_size=2", "pipeline.schedule=interleaved", "pipeline.virtual_size=4"});
  with.accepts({"pipeline_parallel_size=2", "pipeline.layout=[5,3]"});
  expect_parts(error_with({"model.n_layer=3", "pipeline_parallel_size=4"}),
               {"pipeline_parallel_size: the model's 3 blocks", "4 parts", "at most 3"});
  with.refuses({"pipeline_parallel_size=4", "pipeline.schedule=interleaved", "pipeline.virtual_size=3"},
               {"8 blocks", "12 parts", "pipeline.virtual_size 3"});
  with.refuses({"pipeline_parallel_size=2", "pipeline.virtual_size=2"},
               {"pipeline.virtual_size: 2", "pipeline.schedule 1f1b", "interleaved"});
  with.refuses({"pipeline_parallel_size=2", "pipeline.virtual_size=1", "pipeline.schedule=interleaved"},
               {"pipeline.virtual_size: 1", "pipeline.schedule interleaved"});
  with.accepts({"pipeline_parallel_size=4", "pipeline.schedule=zbv"});
  with.refuses({"pipeline_parallel_size=2", "pipeline.virtual_size=4", "pipeline.schedule=zbv"},
               {"pipeline.virtual_size: 4", "pipeline.schedule zbv", "2 parts"});
  with.refuses({"pipeline_parallel_size=2", "pipeline.schedule=zb1p", "recompute_granularity=full"},
               {"recompute_granularity: full", "pipeline.schedule zb1p", "selective"});
  with.refuses({"pipeline.virtual_size=2"}, {"pipeline.virtual_size: 2", "pipeline_parallel_size"});
  with.refuses({"pipeline.layout=[8]"}, {"pipeline.layout", "pipeline_parallel_size 1"});
  with.refuses({"pipeline_parallel_size=2", "pipeline.layout=[5,2,1]"}, {"pipeline.layout: 3 numbers", "2 parts"});
  with.refuses({"pipeline_parallel_size=2", "pipeline.layout=[5,4]"},
               {"pipeline.layout", "add up to 9", "num_hidden_layers 8"});
  with.refuses({"pipeline_parallel_size=2", "pipeline.layout=[8,0]"}, {"pipeline.layout[1]", "0"});
}

// Each names both keys.
TEST(Validate, UnsupportedPipelineOptionsAreRefused) {
  for (const auto& [setting, key] : {std::pair{"zero_stage=2", "zero_stage: 2"},
                                     {"zero_stage=3", "zero_stage: 3"},
                                     {"logging.noise_scale=true", "logging.noise_scale"},
                                     {"pruning.sparsity=0.5", "pruning.sparsity"}})
    refused({"model.n_layer=8", "pipeline_parallel_size=2", setting}, {key, "pipeline_parallel_size"});
  refused(
      {"model.n_layer=8", "pipeline_parallel_size=2", "pipeline.schedule=interleaved", "rampup_batch_size=[4,4,100]"},
      {"rampup_batch_size", "pipeline.schedule interleaved"});
  refused({"model.n_layer=8", "pipeline_parallel_size=2", "deterministic_reduction=rank_invariant",
           "micro_batch_size=1", "logical_shards=1"},
          {"deterministic_reduction: rank_invariant", "2 stages", "pipeline_parallel_size"});
}

TEST(Validate, TensorParallelSizeMustDivideHeadsAndWidths) {
  const SmallConfig with{{"model.n_head=6", "model.n_embd=48", "model.n_inner=64"}};
  with.accepts({"tensor_parallel_size=2"});
  with.accepts({"tensor_model_parallel_size=2", "optimizer=lion"});
  with.accepts({"tensor_parallel_degree=2", "zero_stage=3", "precision=bf16", "master_weights=split"});
  with.refuses({"tensor_parallel_size=0"}, {"tensor_parallel_size", "0"});
  with.refuses({"tensor_parallel_size=4"}, {"tensor_parallel_size", "num_attention_heads 6", "among 4 ranks", "1, 2"});
  with.refuses({"tensor_parallel_size=3"}, {"tensor_parallel_size", "intermediate_size 64", "1, 2"});
  const char* grouped = R"({"model_type": "llama", "vocab_size": 257, "hidden_size": 96, "num_hidden_layers": 2,
      "num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 96, "max_position_embeddings": 32})";
  EXPECT_EQ(error_in(small_config("", grouped), {"tensor_parallel_size=12"}), "");
  expect_parts(error_in(small_config("", grouped), {"tensor_parallel_size=6"}),
               {"tensor_parallel_size", "num_key_value_heads 4", "1, 2, 4, 12"});
  expect_parts(error_in(small_config("", grouped), {"tensor_parallel_size=12", "qk_clip_threshold=100"}),
               {"qk_clip_threshold", "tensor_parallel_size 12", "4 key heads", "at most 4"});
  with.accepts({"tensor_parallel_size=2", "model.vocab_size=131"});
  with.accepts({"tensor_parallel_size=2", "sequence_parallel=true"});
  with.refuses({"sequence_parallel=true"}, {"sequence_parallel", "tensor_parallel_size 1"});
  with.refuses({"tensor_parallel_size=2", "sequence_parallel=true", "seq_length=15"},
               {"sequence_parallel", "seq_length 15", "2 ranks", "a multiple of 2"});
  with.refuses({"tensor_parallel_size=2", "model.vocab_size=1"},
               {"tensor_parallel_size", "vocab_size 1", "2 ranks", "at most 1"});
  const std::string olmoe = R"({"model_type":"olmoe","vocab_size":96,"hidden_size":32,"num_hidden_layers":1,
    "num_attention_heads":4,"intermediate_size":64,"num_experts":4,"num_experts_per_tok":2,"max_position_embeddings":32})";
  with.accepts({"tensor_parallel_size=2", "sequence_parallel=true", cat("model=", olmoe)});
  const std::string shared = R"({"model_type":"qwen2_moe","vocab_size":96,"hidden_size":32,"num_hidden_layers":1,
    "num_attention_heads":4,"intermediate_size":64,"num_experts":4,"num_experts_per_tok":2,"max_position_embeddings":32,
    "moe_intermediate_size":24,"shared_expert_intermediate_size":62})";
  with.accepts({"tensor_parallel_size=2", "sequence_parallel=true", cat("model=", shared)});
  with.refuses({"tensor_parallel_size=4", "sequence_parallel=true", cat("model=", shared)},
               {"tensor_parallel_size", "shared experts 62", "among 4 ranks", "1, 2"});
  for (const char* optimizer : {"adamw", "adam", "sgd", "lion", "schedule_free_adamw", "muon", "normuon"})
    with.accepts({"tensor_parallel_size=2", cat("optimizer=", optimizer), "schedule.lr_decay_style=constant"});
  for (const char* optimizer : {"lamb", "adafactor"})
    with.refuses(
        {"tensor_parallel_size=2", cat("optimizer=", optimizer)},
        {"tensor_parallel_size: 2", cat("optimizer ", optimizer), "needs sums over the whole matrix", "adamw"});
  with.refuses({"tensor_parallel_size=2", "optimizer=adamw_8bit"},
               {"tensor_parallel_size: 2", "optimizer adamw_8bit", "a scale for each block", "adamw"});
  const auto grouped_matrices = [&](const char* optimizer) {
    return with.error({"tensor_parallel_size=2",
                       cat(R"(param_groups=[{"match":"*.h.0.*","role":"matrix","optimizer":")", optimizer, R"("}])")});
  };
  EXPECT_EQ(grouped_matrices("muon"), "");
  EXPECT_EQ(grouped_matrices("normuon"), "");
  expect_parts(grouped_matrices("lamb"), {"tensor_parallel_size: 2", "optimizer lamb", "*.h.0.*"});
  with.accepts({"tensor_parallel_size=2", "precision=mxfp8"});
  with.refuses({"tensor_parallel_size=2", "deterministic_reduction=rank_invariant", "micro_batch_size=1"},
               {"tensor_parallel_size: 2", "fixed_order"});
  with.accepts({"tensor_parallel_size=2", "averaging.ema_decay=0.9"});
  with.refuses({"tensor_parallel_size=2", "logging.noise_scale=true"},
               {"logging.noise_scale", "tensor_parallel_size to 1"});
}

TEST(Validate, OptionsUnsupportedWithExpertsAreNamed) {
  const SmallConfig with{
      {"model.model_type=mixtral", "model.num_experts=4", "model.num_experts_per_tok=2", "model.intermediate_size=64"}};
  with.accepts({});
  with.accepts({"zero_stage=3", "optimizer=muon", "precision=bf16"});
  with.refuses({"tensor_parallel_size=2"}, {"tensor_parallel_size: 2", "model.num_experts 4", "sequence_parallel"});
  with.accepts({"tensor_parallel_size=2", "sequence_parallel=true"});
  with.accepts({"precision=fp8_tensorwise"});
  with.refuses({"mup_base_width=32"}, {"mup_base_width", "model.num_experts is 4"});
  const std::vector<std::string> invariant = {"deterministic_reduction=rank_invariant", "micro_batch_size=1",
                                              "global_batch_size=8"};
  const auto balanced = [&](const char* scope, const char* coefficient) {
    std::vector<std::string> all = invariant;
    all.insert(all.end(), {cat("moe.aux_loss_scope=", scope), cat("model.router_aux_loss_coef=", coefficient)});
    return with.error(all);
  };
  EXPECT_EQ(balanced("micro_batch", "0.1"), "");
  EXPECT_EQ(balanced("global_batch", "0"), "");
  expect_parts(balanced("global_batch", "0.1"), {"moe.aux_loss_scope: global_batch", "micro_batch", "fixed_order"});
  with.accepts({"context_parallel_size=2"});
  with.accepts({"moe_expert_capacity_factor=1.25", "context_parallel_size=2", "seq_length=16"});
  refused({"moe.expert_capacity_factor=1"}, {"moe.expert_capacity_factor: 1", "model_type", "has none"});
  with.refuses({"moe.expert_capacity_factor=2"},
               {"moe.expert_capacity_factor: with 2", "model.num_experts / model.num_experts_per_tok is 2", "or to 0"});
}

TEST(Validate, ExpertParallelismAllowsMostOtherOptions) {
  const SmallConfig with{{"model.model_type=mixtral", "model.num_experts=4", "model.num_experts_per_tok=2",
                          "model.intermediate_size=64", "zero_stage=0", "expert_parallel_size=2"}};
  with.accepts({});
  with.accepts({"expert_model_parallel_size=4"});
  with.accepts({"pipeline_parallel_size=2"});
  for (const char* other : {"zero_stage=1", "zero_stage=3", "optimizer=muon"}) with.accepts({other});
  with.accepts({"context_parallel_size=2"});
  with.refuses({"expert_parallel_size=3"}, {"expert_parallel_size: 3", "model.num_experts, 4"});
  refused({"expert_parallel_size=2", "zero_stage=0"}, {"expert_parallel_size: 2", "has none"});
  with.accepts({"moe.expert_buffer_factor=1.5"});
  for (const char* few : {"0.9", "1e-09"})
    with.refuses({cat("moe.expert_buffer_factor=", few)},
                 {cat("moe.expert_buffer_factor: ", few), "1 or more, or to 0"});
  with.refuses({"moe.expert_buffer_factor=2"}, {"moe.expert_buffer_factor: 2", "expert_parallel_size 2", "or to 0"});
  with.refuses({"moe.expert_buffer_factor=1.5", "expert_parallel_size=1"},
               {"moe.expert_buffer_factor: 1.5", "expert_parallel_size is 1", "set it to 0"});
  with.refuses({"moe.expert_buffer_factor=1.5", "moe.expert_capacity_factor=1.2"},
               {"moe.expert_buffer_factor: 1.5", "moe.expert_capacity_factor, 1.2"});
  for (const char* other :
       {"local_updates.steps=4", "deterministic_reduction=rank_invariant", "logging.noise_scale=true", "optimizer=lamb",
        "optimizer=adamw_8bit", "optimizer=adafactor"}) {
    const std::string key = other, name = key.substr(0, key.find('='));
    with.refuses({other}, {"expert_parallel_size: 2 is not supported with " + name, "set expert_parallel_size to 1"});
  }
}

TEST(Validate, QuantizedGradientsAndWeightsNeedZeroStages1And2) {
  const std::string gradients = "zero_quantized_gradients=true", weights = "zero_quantized_weights=true";
  accepted({gradients, weights, "zero_stage=2", "data_parallel_replicate_size=14"});
  for (const std::string& key : {gradients, weights})
    for (const char* stage : {"0", "3"})
      refused({key, cat("zero_stage=", stage)}, {"zero_quantized_", cat("zero_stage ", stage)});
  refused({gradients, "data_parallel_replicate_size=15"},
          {"zero_quantized_gradients", "data_parallel_replicate_size 15"});
  refused({gradients, "deterministic_reduction=rank_invariant", "micro_batch_size=1"},
          {"zero_quantized_gradients", "rank_invariant"});
  refused({weights, "precision=fp32"}, {"zero_quantized_weights", "precision fp32", "bf16"});
  refused({weights, "master_weights=split"}, {"zero_quantized_weights", "master_weights split"});
  refused({weights, "offload.optimizer=auto"}, {"zero_quantized_weights", "offload.optimizer"});
  refused({weights, "local_updates.steps=4"}, {"zero_quantized_weights", "local_updates.steps 4"});
  refused({weights, "pruning.sparsity=0.5"}, {"zero_quantized_weights", "pruning.sparsity"});
}

TEST(Validate, LocalUpdatesRefuseConflictingOptions) {
  refused({"local_updates.steps=30", "averaging.ema_decay=0.9"}, {"averaging.ema_decay", "local_updates.steps 30"});
  refused({"local_updates.steps=30", "averaging.tail_start=5"}, {"averaging.tail_start", "local_updates.steps 30"});
  refused({"local_updates.steps=30", "optimizer=schedule_free_adamw", "schedule.lr_decay_style=constant"},
          {"schedule_free_adamw", "local_updates.steps 0"});
  refused({"local_updates.steps=3", "local_updates.fragments=4"}, {"local_updates.fragments: 4", "3 steps"});
  refused({"local_updates.steps=3", "local_updates.outer_delay=3"},
          {"local_updates.outer_delay: expected fewer than local_updates.steps 3", "got 3"});
  refused({"local_updates.steps=3", "local_updates.outer_delta_dtype=fp4"},
          {"local_updates.outer_delta_dtype: fp4", "data_parallel_replicate_size 1", "set it to fp32"});
  refused({"local_updates.steps=3", "local_updates.outer_delta_dtype=fp4", "data_parallel_replicate_size=16"},
          {"local_updates.outer_delta_dtype", "data_parallel_replicate_size 16", "set it to fp32"});
  accepted({"local_updates.steps=4", "local_updates.fragments=2", "local_updates.outer_delay=3",
            "local_updates.outer_mixing=0.5", "local_updates.outer_delta_dtype=fp4", "data_parallel_replicate_size=2",
            "zero_stage=0"});
  refused({"local_updates.steps=30", "data_parallel_replicate_size=2", "logging.noise_scale=true"},
          {"logging.noise_scale", "data_parallel_replicate_size to 1"});
  accepted({"local_updates.steps=30", "data_parallel_replicate_size=2", "zero_stage=0"});
}

TEST(Validate, ContextParallelSizeMustDivideTheSequence) {
  accepted({"context_parallel_size=2", "seq_length=16"});
  accepted({"context_parallel_degree=4", "seq_length=16", "zero_stage=3", "optimizer=muon"});
  accepted({"context_parallel_size=2", "tensor_parallel_size=2", "sequence_parallel=true", "seq_length=16"});
  refused({"context_parallel_size=0"}, {"context_parallel_size", "0"});
  refused({"context_parallel_size=3", "seq_length=16"},
          {"context_parallel_size", "seq_length 16", "3 ranks", "a multiple of 6", "1, 2, 4, 8"});
  refused({"context_parallel_size=2", "tensor_parallel_size=4", "sequence_parallel=true", "seq_length=12"},
          {"sequence_parallel", "6 tokens", "4 ranks", "a multiple of 8"});
  refused({"context_parallel_size=3", "tensor_parallel_size=4", "sequence_parallel=true", "seq_length=30"},
          {"sequence_parallel", "seq_length 30", "4 ranks", "a multiple of 12"});
  accepted({"context_parallel_size=2", "seq_length=16", "precision=mxfp8"});
  refused({"context_parallel_size=2", "seq_length=16", "deterministic_reduction=rank_invariant", "micro_batch_size=1"},
          {"context_parallel_size: 2", "fixed_order"});
  refused({"context_parallel_size=2", "seq_length=16", "logging.noise_scale=true"},
          {"logging.noise_scale", "context_parallel_size to 1"});
}

TEST(Validate, LogicalShardsMustBeAFittingPowerOfTwo) {
  const SmallConfig with{{"deterministic_reduction=rank_invariant", "global_batch_size=32"}};
  with.accepts({"micro_batch_size=2"});
  with.accepts({"micro_batch_size=2", "logical_shards=16"});
  with.refuses({"micro_batch_size=2", "logical_shards=6"}, {"logical_shards: 6", "power of two"});
  with.refuses({"micro_batch_size=2", "logical_shards=32"}, {"logical_shards", "32", "micro_batch_size 2"});
  with.refuses({}, {"deterministic_reduction", "micro_batch_size"});
}

TEST(Validate, OneBitAdamRefusesOptionsThatNeedFullGradients) {
  const SmallConfig with{{"optimizer=onebit_adam", "adam.freeze_step=5", "data_parallel_replicate_size=2"}};
  with.accepts({});
  with.accepts({"zero_stage=3", "context_parallel_size=2"});
  refused({"optimizer=onebit_adam"}, {"adam.freeze_step", "got 0", "15 to 25 %"});
  for (const char* other : {"tensor_parallel_size=2", "pipeline_parallel_size=2", "local_updates.steps=30",
                            "qk_clip_threshold=100", "pruning.sparsity=0.5", "adam.exp_avg_dtype=bf16",
                            "adam.exp_avg_sq_dtype=bf16", "offload.optimizer=auto", "logging.noise_scale=true"})
    with.refuses({other}, {std::string(other).substr(0, std::string(other).find('=')), "onebit_adam"});
  with.refuses({"precision=bf16", "grad_dtype=bf16"}, {"grad_dtype", "onebit_adam"});
  refused({"param_groups=[{\"match\": \"*norm*\", \"optimizer\": \"onebit_adam\"}]"},
          {"param_groups[0].optimizer", "onebit_adam", "with optimizer adamw"});
}

}  // namespace
}  // namespace athanor
