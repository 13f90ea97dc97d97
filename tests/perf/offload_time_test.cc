// Time that a step loses to master weights and optimizer states in host memory, on a described GPU.
#include "perf/offload_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "perf/described_gpu.h"
#include "train/setup.h"

namespace athanor {
namespace {

TEST(OffloadTime, IsTransferTimeNotHiddenByTheUpdate) {
  const GpuSpec& gpu = find_gpu("rtx4090");
  const DescribedBackend backend = describe(gpu);
  ProcessMesh mesh(make_single(*backend.device), {});
  const auto planned = [&](const char* offload) {
    const Config c = parse_config(R"({"model": {"model_type": "llama", "vocab_size": 32000, "hidden_size": 1024,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 2048,
        "max_position_embeddings": 512}, "seq_length": 512, "global_batch_size": 8, "train_iters": 8, "save": "",
        "learning_rate": 0.01, "precision": "bf16", "micro_batch_size": 2, "train_data": "data/*.bin"})",
                                  "test", "", std::vector<std::string>{cat("offload.optimizer=", offload)});
    return make_engine(c, {*backend.device, *backend.ops, mesh, backend.tuning}, true);
  };
  Roofline limits = limits_of(gpu, 128, 512);
  const auto none = planned("none"), cpu = planned("cpu");
  none->memory(), cpu->memory();
  EXPECT_EQ(offload_time(*none, limits).link, 0);
  const double bytes = 12 * double(cpu->model().params().parameter_count());  // a master and two moments in f32
  const OffloadTime time = offload_time(*cpu, limits);
  EXPECT_NEAR(time.link, bytes / 25e9, 1e-3 * time.link);
  EXPECT_NEAR(time.exposed, time.link - least_update_seconds(*cpu, limits), 1e-12);
  EXPECT_LT(time.exposed, time.link);
  limits.host_bytes = 1e15;
  EXPECT_EQ(offload_time(*cpu, limits).exposed, 0) << "a link faster than the update";
  limits.host_bytes = 0;
  EXPECT_EQ(offload_time(*cpu, limits).link, 0) << "a link that nobody knows";
}

// The second of two micro-batches copies gradients from the host, and each waits at least for the first unit of a pass.
TEST(OffloadTime, UnitTransfersCountWhatForwardAndBackwardDoNotHide) {
  const GpuSpec& gpu = find_gpu("rtx4090");
  const DescribedBackend backend = describe(gpu);
  ProcessMesh mesh(make_single(*backend.device), {});
  const auto planned = [&](int64_t micro) {
    const Config c = parse_config(
        R"({"model": {"model_type": "llama", "vocab_size": 4096, "hidden_size": 1024,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 2048,
        "max_position_embeddings": 512}, "seq_length": 512, "train_iters": 8, "save": "", "offload": {"params": "cpu"},
        "learning_rate": 0.01, "precision": "bf16", "grad_dtype": "bf16", "train_data": "data/*.bin"})",
        "test", "", std::vector<std::string>{cat("micro_batch_size=", micro), cat("global_batch_size=", 2 * micro)});
    auto engine = make_engine(c, {*backend.device, *backend.ops, mesh, backend.tuning}, true);
    engine->memory();
    return engine;
  };
  const Roofline limits = limits_of(gpu, 128, 512);
  const auto small = planned(8);  // each further sequence takes the same time
  const UnitTraffic& t = small->unit_traffic();
  const double rate = 25e9;
  const OffloadTime time = offload_time(*small, limits);
  EXPECT_NEAR(time.units, (2 * double(t.forward.bytes + t.backward.bytes) + double(t.gradients.bytes)) / rate, 1e-9);
  const double waited = (2 * double(t.forward.waited + t.backward.waited) + double(t.gradients.waited)) / rate;
  EXPECT_GT(time.units_exposed, 1.1 * waited);
  EXPECT_GT(time.hiding_micro_batch, 1);
  const auto large = planned(int64_t(std::ceil(8 * time.hiding_micro_batch)));
  EXPECT_NEAR(offload_time(*large, limits).units_exposed, waited, 0.1 * waited);
}

// Forward is a quarter of a micro-batch if all blocks repeat it, and 4 / 13 if one block of four does.
TEST(OffloadTime, InputsAreHiddenByForward) {
  const GpuSpec& gpu = find_gpu("rtx4090");
  const DescribedBackend backend = describe(gpu);
  ProcessMesh mesh(make_single(*backend.device), {});
  for (const auto& [every, shown] : {std::pair{1, 0.03}, {4, 0.0}}) {
    const Config c = parse_config(
        R"({"model": {"model_type": "llama", "vocab_size": 4096, "hidden_size": 1024,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 2048,
        "max_position_embeddings": 512}, "seq_length": 512, "train_iters": 8, "save": "", "global_batch_size": 8,
        "offload": {"activations": "cpu"}, "recompute_granularity": "full", "learning_rate": 0.01, "precision": "bf16",
        "micro_batch_size": 4, "train_data": "data/*.bin"})",
        "test", "", std::vector<std::string>{cat("recompute_num_layers=", every)});
    const auto engine = make_engine(c, {*backend.device, *backend.ops, mesh, backend.tuning}, true);
    engine->memory();
    Roofline limits = limits_of(gpu, 128, 512);
    const double computing = least_sum(planned_rows(*engine, limits)) - least_update_seconds(*engine, limits);
    limits.host_bytes = 2 * double(engine->offloaded_inputs()) / (0.28 * computing);  // two micro-batches
    const OffloadTime time = offload_time(*engine, limits);
    EXPECT_NEAR(time.inputs, 0.28 * computing, 1e-9 * computing);
    EXPECT_NEAR(time.inputs_exposed, shown * computing, 1e-9 * computing) << "1 block of " << every;
  }
}

TEST(OffloadTime, IsHiddenForLargeEnoughBatches) {
  // 4 sequences take 2 s, the end of a step 1 s plus 0.5 s of exposed transfers, which are 5 % of a step of 10 s.
  const double batch = hiding_batch({.link = 1, .exposed = 0.5}, 0.05, 4, 2, 1);
  EXPECT_NEAR(0.5 / (batch * 2 / 4 + 1 + 0.5), 0.05, 1e-12);
  EXPECT_EQ(hiding_batch({}, 0.05, 4, 2, 1), 0);
}

}  // namespace
}  // namespace athanor
