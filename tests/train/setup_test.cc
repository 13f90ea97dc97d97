// Conversion of a configuration to engine options: errors that no curve of a short run would show.
#include "train/setup.h"

#include <gtest/gtest.h>

#include "comm/threads.h"
#include "cpu/make_cpu.h"

namespace athanor {
namespace {

TEST(EngineOptions, LossScaleIsDynamicUnlessGiven) {
  Config config;
  config.precision = Precision::fp16;
  EXPECT_TRUE(engine_options(config, true).scaling.dynamic);
  EXPECT_EQ(engine_options(config, true).loss_scale, config.initial_loss_scale);
  config.loss_scale = 128;
  EXPECT_FALSE(engine_options(config, true).scaling.dynamic);
  EXPECT_EQ(engine_options(config, true).loss_scale, 128);
}

// Llama-3.1-8B at 8192: 57.9 GFLOP per token in full, 51.5 causal (as published throughputs imply). GPT-2 has the tied
// head 50257 x 768 and 12 x 12 x 768^2 in the blocks; biases, norms and embeddings do not multiply matrices.
TEST(FlopsPerToken, MatchPublishedModels) {
  const auto count = [](const char* model, int64_t seq_length) {
    return flops_per_token(*make_model(parse_model_config(model, "test")), seq_length);
  };
  const FlopCount llama = count(R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
      "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
      "max_position_embeddings": 8192, "tie_word_embeddings": false})",
                                8192);
  EXPECT_NEAR(llama.full / 1e9, 57.9, 0.05);
  EXPECT_NEAR(llama.causal / 1e9, 51.5, 0.05);
  const FlopCount gpt2 = count(R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12,
      "n_head": 12, "n_positions": 1024})",
                               1024);
  const double n = 6.0 * (12.0 * 12 * 768 * 768 + 50257.0 * 768);
  EXPECT_DOUBLE_EQ(gpt2.causal, n + 6.0 * 12 * 1024 * 768);
  EXPECT_DOUBLE_EQ(gpt2.full, n + 12.0 * 12 * 1024 * 768);
  // ViT-B/16: 17.6 G multiplications forward per image, as published; here the classifier reads all
  // tokens.
  const FlopCount vit = count(R"({"model_type": "vit", "num_labels": 1000, "image_size": 224, "patch_size": 16,
      "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12})",
                              197);
  EXPECT_NEAR((vit.full / 6 - 1000 * 768) * 197 / 1e9, 17.55, 0.05);
  EXPECT_EQ(vit.causal, vit.full);
}

// The FLOPs of a step are those of a run that has the step's window throughout.
TEST(FlopsOfStep, FollowTheScheduleOfWindows) {
  Config c = parse_config(R"({"model": {"model_type": "athanor", "vocab_size": 257, "hidden_size": 64,
      "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 256,
      "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]}, "seq_length": 256,
      "global_batch_size": 8, "train_iters": 10, "save": "", "learning_rate": 0.01, "train_data": "data/*.bin"})",
                          "test", "", std::vector<std::string>{});
  const auto whole = [&](int64_t window) {
    ModelConfig m = c.model;
    m.sliding_window = window;
    return flops_per_token(*make_model(m), 256);
  };
  const FlopCount last = whole(128), first = whole(16);
  ASSERT_LT(first.causal, last.causal);
  EXPECT_EQ(flops_of_step(c, last, 0).causal, last.causal);
  c.sliding_window_schedule = {{.from_step = 0, .tokens = 16}, {.from_step = 2, .tokens = 128}};
  for (const int64_t step : {0, 1, 2, 9}) {
    const FlopCount expected = step < 2 ? first : last, got = flops_of_step(c, last, step);
    EXPECT_NEAR(got.causal / expected.causal, 1, 1e-12) << "step " << step;
    EXPECT_NEAR(got.full / expected.full, 1, 1e-12) << "step " << step;
  }
}

// A CPU decodes FP8 values to f32 and multiplies these, at another rate than bf16.
TEST(Ceilings, IncludeTheRateOfDequantizedValuesOnACpu) {
  const CpuBackend cpu = make_cpu({.threads = 1});
  ProcessMesh mesh(make_single(*cpu.device), {});
  const Ceilings most = ceilings({*cpu.device, *cpu.ops, mesh}, DType::bf16, true);
  EXPECT_EQ(most.quantized, 0);
  EXPECT_GT(most.floats, 0);
  EXPECT_EQ(most.flops_of(Factors::floats), most.floats);
}

TEST(MeshSizes, DivideRanksAsConfigured) {
  Config config;
  EXPECT_EQ(mesh_sizes(config, 1), (MeshSizes{}));
  EXPECT_EQ(mesh_sizes(config, 6), (MeshSizes{.shards = 6}));
  config.data_parallel_replicate_size = 2;
  EXPECT_EQ(mesh_sizes(config, 6), (MeshSizes{.copies = 2, .shards = 3}));
  try {
    mesh_sizes(config, 1);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("1 rank was started, expected a multiple of 2"), std::string::npos)
        << e.what();
  }
  config.data_parallel_shard_size = 4;
  EXPECT_EQ(mesh_sizes(config, 8), (MeshSizes{.copies = 2, .shards = 4}));
  try {
    mesh_sizes(config, 6);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    EXPECT_NE(std::string(e.what()).find("do not make the 6 ranks"), std::string::npos) << e.what();
  }
  config.zero_stage = 0;  // every rank is a replica
  EXPECT_EQ(mesh_sizes(config, 6), (MeshSizes{.copies = 6}));
  EXPECT_EQ(engine_options(config, true).zero_stage, 0);
  config.data_parallel_replicate_size = 1, config.data_parallel_shard_size = 0;
  config.param_groups = {{.optimizer = RuleName::normuon}};  // ranks still distribute the updates of whole matrices
  EXPECT_EQ(mesh_sizes(config, 6), (MeshSizes{.shards = 6}));
  EXPECT_EQ(engine_options(config, true).zero_stage, 1);
}

TEST(MeshSizes, ReplicasBecomeWorkersOfLocalUpdates) {
  Config config;
  config.local_steps = 30;
  EXPECT_EQ(mesh_sizes(config, 4), (MeshSizes{.shards = 4}));
  config.data_parallel_replicate_size = 2;
  EXPECT_EQ(mesh_sizes(config, 6), (MeshSizes{.shards = 3, .workers = 2}));
  config.tensor_parallel_size = 3;
  EXPECT_EQ(mesh_sizes(config, 12), (MeshSizes{.shards = 2, .tensor = 3, .workers = 2}));
  config.tensor_parallel_size = 1, config.zero_stage = 0;  // the ranks of a worker are replicas
  EXPECT_EQ(mesh_sizes(config, 6), (MeshSizes{.copies = 3, .workers = 2}));
  EXPECT_THROW(mesh_sizes(config, 5), Error);
}

TEST(MeshSizes, ProductsBeyond32BitsAreRefused) {
  Config config;
  config.pipeline_parallel_size = config.tensor_parallel_size = 65536;
  EXPECT_THROW(mesh_sizes(config, 2), Error);
}

// A worker consists of consecutive ranks, and all groups except that of the workers lie within it.
TEST(Mesh, WorkersAreConsecutiveRanksWithTheirOwnGroups) {
  run_ranks(8, [](std::unique_ptr<Communicator> world) {
    const int me = world->rank();
    ProcessMesh mesh(std::move(world), {.shards = 2, .tensor = 2, .workers = 2});
    EXPECT_EQ(mesh.workers().size(), 2);
    EXPECT_EQ(mesh.workers().rank(), me / 4);
    EXPECT_EQ(mesh.data_parallel().size(), 2);
    EXPECT_EQ(mesh.data_parallel().rank(), me / 2 % 2);
    EXPECT_EQ(mesh.weights().size(), 4);
    EXPECT_EQ(mesh.weights().rank(), me % 4);
    EXPECT_EQ(mesh.batches(), 4);
    EXPECT_EQ(mesh.is_first_except({}), me % 4 == 0);
    int32_t sum = me;
    mesh.workers().all_reduce({&sum, DType::i32, {1}}, Reduce::max, Stream::compute);
    EXPECT_EQ(sum, 4 + me % 4) << "the same place in the other worker";
  });
}

TEST(MeshSizes, TensorParallelismReducesDataParallelRanks) {
  Config config;
  config.tensor_parallel_size = 2;
  EXPECT_EQ(mesh_sizes(config, 2), (MeshSizes{.tensor = 2}));
  EXPECT_EQ(mesh_sizes(config, 6), (MeshSizes{.shards = 3, .tensor = 2}));
  config.data_parallel_replicate_size = 2;
  EXPECT_EQ(mesh_sizes(config, 8), (MeshSizes{.copies = 2, .shards = 2, .tensor = 2}));
  const auto error = [&](int ranks) -> std::string {
    try {
      mesh_sizes(config, ranks);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage);
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error(3).find("tensor_parallel_size: 3 ranks were started, expected a multiple of 2"), std::string::npos);
  EXPECT_NE(error(1).find("tensor_parallel_size: 1 rank was started"), std::string::npos);
  EXPECT_NE(error(6).find("times tensor_parallel_size 2, do not make the 6 ranks"), std::string::npos) << error(6);
  config.zero_stage = 0;
  EXPECT_EQ(mesh_sizes(config, 6), (MeshSizes{.copies = 3, .tensor = 2}));
}

TEST(MeshSizes, ContextParallelismReducesDataParallelRanks) {
  Config config;
  config.context_parallel_size = 2;
  EXPECT_EQ(mesh_sizes(config, 2), (MeshSizes{.context = 2}));
  EXPECT_EQ(mesh_sizes(config, 6), (MeshSizes{.shards = 3, .context = 2}));
  config.tensor_parallel_size = 2;
  config.data_parallel_replicate_size = 2;
  EXPECT_EQ(mesh_sizes(config, 16), (MeshSizes{.copies = 2, .shards = 2, .context = 2, .tensor = 2}));
  const auto error = [&](int ranks) -> std::string {
    try {
      mesh_sizes(config, ranks);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Exit::usage);
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error(6).find("context_parallel_size: 6 ranks were started, expected a multiple of 4 (2 times "
                          "tensor_parallel_size 2)"),
            std::string::npos);
  EXPECT_NE(error(12).find("times context_parallel_size 2, do not make the 12 ranks"), std::string::npos) << error(12);
}

// Context-parallel ranks are neighbours (apart from tensor-parallel ones), and shard weights together with dp_shard.
TEST(Mesh, ContextParallelRanksShardWeightsAsDataParallelOnes) {
  run_ranks(8, [](std::unique_ptr<Communicator> world) {
    const int me = world->rank();
    ProcessMesh mesh(std::move(world), {.shards = 2, .context = 2, .tensor = 2});
    EXPECT_EQ(mesh.coord(Axis::cp), me / 2 % 2);
    EXPECT_EQ(mesh.data_parallel().size(), 4);
    EXPECT_EQ(mesh.data_parallel().rank(), me / 2);
    EXPECT_EQ(mesh.shards().rank(), me / 2);
  });
  run_ranks(8, [](std::unique_ptr<Communicator> world) {
    const int me = world->rank();
    ProcessMesh mesh(std::move(world), {.copies = 2, .shards = 2, .context = 2});
    EXPECT_EQ(mesh.shards().size(), 4);
    EXPECT_EQ(mesh.shards().rank(), me % 4);
    EXPECT_EQ(mesh.data_parallel().rank(), me);
  });
}

// The ranks of a tensor-parallel group are neighbours; data-parallel ranks are farther apart.
TEST(Mesh, TensorParallelRanksAreNeighbours) {
  run_ranks(8, [](std::unique_ptr<Communicator> world) {
    const int me = world->rank();
    ProcessMesh mesh(std::move(world), {.copies = 2, .shards = 2, .tensor = 2});
    EXPECT_EQ(mesh.coord(Axis::tp), me % 2);
    EXPECT_EQ(mesh.coord(Axis::dp_shard), me / 2 % 2);
    EXPECT_EQ(mesh.coord(Axis::dp_replicate), me / 4);
    EXPECT_EQ(mesh.data_parallel().rank(), me / 2);
    EXPECT_EQ(mesh.size({Axis::dp_replicate, Axis::tp}), 4);
    EXPECT_EQ(mesh.size({}), 1);
    EXPECT_EQ(mesh.is_first_except({}), me == 0);
    EXPECT_EQ(mesh.is_first_except({Axis::tp}), me < 2);
    EXPECT_EQ(mesh.is_first_except({Axis::tp, Axis::dp_shard}), me < 4);
  });
}

}  // namespace
}  // namespace athanor
