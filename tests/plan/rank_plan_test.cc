// Predictions for many ranks: the cost of an optimizer by the model of docs/distributed.md.
#include "plan/rank_plan.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/error.h"

namespace athanor {
namespace {

struct Case {
  const char* config;
  int64_t sequences;  // per step of 524,288 tokens
  int ranks, stage;
};

double step_seconds(const Case& c, const char* optimizer) {
  const Config config = load_config(cat("configs/", c.config, ".json"),
                                    std::vector<std::string>{cat("optimizer=", optimizer), cat("zero_stage=", c.stage),
                                                             cat("global_batch_size=", c.sequences)});
  const ManyRanks many;
  return predict(config, many.cluster(find_gpu("h200"), c.ranks)).step();
}

TEST(PlanRanks, MuonIsLittleSlowerThanAdamW) {
  for (const Case& c : {Case{"gpt2-124m", 512, 1, 1}, Case{"gpt2-124m", 512, 8, 1}, Case{"gpt2-124m", 512, 64, 0},
                        Case{"gpt2-124m", 512, 64, 1}, Case{"gpt2-124m", 512, 64, 3}, Case{"llama-8b", 64, 8, 3},
                        Case{"llama-8b", 64, 64, 2}, Case{"llama-8b", 64, 64, 3}}) {
    const double adamw = step_seconds(c, "adamw");
    for (const char* optimizer : {"muon", "normuon"})
      EXPECT_LE(step_seconds(c, optimizer), 1.05 * adamw)
          << optimizer << ", " << c.config << ", " << c.ranks << " ranks, zero_stage " << c.stage;
  }
}

// Four blocks of Llama 8B with context parallelism over the eight GPUs of a node.
Prediction shared_sequences(const char* method, int64_t length, double link_bytes) {
  const Config config = load_config(
      "configs/llama-8b.json",
      std::vector<std::string>{"model.num_hidden_layers=4", "context_parallel_size=8", "global_batch_size=1",
                               "micro_batch_size=1", cat("model.max_position_embeddings=", length),
                               cat("seq_length=", length), cat("context_parallel_method=", method)});
  return predict(config, ManyRanks{.link = link_bytes / 1e9}.cluster(find_gpu("h200"), 8));
}

// Hops hide behind attention, which grows with the square of the length, and the less the slower the links; gathers
// never do. The shorter step is chosen.
TEST(PlanRanks, RingWaitsForHopsNotHiddenByAttention) {
  for (const auto& [length, link, ring_is_shorter] :
       {std::tuple<int64_t, double, bool>{4096, 450e9, false}, {131072, 50e9, true}, {131072, 5e9, true}}) {
    const Prediction gather = shared_sequences("gather", length, link), ring = shared_sequences("ring", length, link);
    const Prediction chosen = shared_sequences("auto", length, link);
    EXPECT_EQ(ring.context.step < gather.context.step, ring_is_shorter) << length << " tokens at " << link;
    EXPECT_EQ(chosen.context.method, ring_is_shorter ? ContextMethod::ring : ContextMethod::gather);
    EXPECT_DOUBLE_EQ(gather.context.waits, gather.traffic.context.seconds);
    EXPECT_LE(ring.context.waits, ring.traffic.context.seconds);
    EXPECT_DOUBLE_EQ(ring.context.bytes, gather.context.bytes);
    const double bytes = 3 * 7.0 / 8 * double(length) * 2 * 8 * 128 * 2;  // keys twice and gradients once, in bf16
    EXPECT_DOUBLE_EQ(ring.context.bytes, bytes);
    EXPECT_EQ(ring.context.calls, 3 * 7);
    EXPECT_TRUE(length < 100000 || ring.context.memory < gather.context.memory);
  }
  const Prediction fast = shared_sequences("ring", 131072, 50e9), slow = shared_sequences("ring", 131072, 5e9);
  EXPECT_LT(fast.context.waits, 0.1 * fast.traffic.context.seconds);  // little more than the last hop home
  EXPECT_GT(slow.context.waits, 20 * fast.context.waits);
}

// (p - 1) / m of a stage's compute time, a third of that with separate weight gradients; more with slow links.
TEST(PlanRanks, PipelineBubblesMatchTheSchedule) {
  const auto with = [](const char* schedule, double link) {
    const Config config =
        load_config("configs/gpt2-124m.json",
                    std::vector<std::string>{"pipeline_parallel_size=4", "global_batch_size=64", "micro_batch_size=4",
                                             "pipeline.layout=[3,3,3,3]", cat("pipeline.schedule=", schedule)});
    return predict(config, ManyRanks{.link = link, .latency = 0, .doubling_latency = 0}.cluster(find_gpu("h200"), 8));
  };
  const Prediction plain = with("1f1b", 1e9), zero = with("zb1p", 1e9), slow = with("1f1b", 10);
  EXPECT_EQ(plain.micro_batches, 8);
  EXPECT_NEAR(plain.waits.stages, 3.0 / 8 * (plain.compute - plain.update), 1e-6);
  EXPECT_NEAR(zero.waits.stages, 1.0 / 8 * (zero.compute - zero.update), 1e-6);
  EXPECT_NEAR(zero.compute, plain.compute, 0.02 * plain.compute);  // gradients that put-off GEMMs read are copied
  EXPECT_DOUBLE_EQ(plain.sent_to_stages, 2 * 8 * 4 * 1024 * 768 * 2.0);
  EXPECT_GT(slow.waits.stages, 1.1 * plain.waits.stages);
}

// Half the bytes of gradients, in memory and on links; those of weights stay. At stages 0 and 2 gradients alone travel,
// or half of what does.
TEST(PlanRanks, Bf16GradientsHalveMemoryAndTraffic) {
  for (const int stage : {0, 1, 2, 3}) {
    const auto with = [&](const char* dtype) {
      const Config config = load_config("configs/llama-8b.json",
                                        std::vector<std::string>{cat("grad_dtype=", dtype), cat("zero_stage=", stage),
                                                                 "model.num_hidden_layers=4", "micro_batch_size=1"});
      return predict(config, ManyRanks{}.cluster(find_gpu("h200"), 8));
    };
    const Prediction full = with("fp32"), half = with("bf16");
    const auto gradients = [](const Prediction& p) { return p.memory_by_kind[size_t(MemoryKind::gradients)]; };
    EXPECT_EQ(2 * gradients(half), gradients(full)) << stage;
    EXPECT_DOUBLE_EQ(2 * half.traffic.early.bytes, full.traffic.early.bytes) << stage;
    EXPECT_DOUBLE_EQ(2 * half.traffic.backward.bytes, full.traffic.backward.bytes) << stage;
    EXPECT_GT(full.traffic.early.bytes + full.traffic.backward.bytes, 0) << stage;
    EXPECT_DOUBLE_EQ(half.traffic.gathers.bytes, full.traffic.gathers.bytes) << stage;
  }
}

}  // namespace
}  // namespace athanor
