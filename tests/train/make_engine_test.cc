// The plan chosen by make_engine() on a described GPU: it fits, no other plan that fits has a shorter step, and given
// options are kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>

#include "comm/threads.h"
#include "cpu/make_cpu.h"
#include "perf/described_gpu.h"
#include "train/setup.h"

namespace athanor {
namespace {

const GpuSpec& gpu() { return find_gpu("h200"); }

struct Plan {
  explicit Plan(const Config& config) : backend(describe(gpu())), mesh(one_rank()) {
    engine = make_engine(config, {*backend.device, *backend.ops, mesh, backend.tuning}, true);
  }
  ProcessMesh one_rank() { return ProcessMesh(make_single(*backend.device), {}); }
  double seconds() const { return least_sum(planned_rows(*engine, limits_of(gpu(), 64, 1024))); }
  size_t bytes() const { return engine->memory().total(); }
  const EngineOptions& options() const { return engine->options(); }

  DescribedBackend backend;
  ProcessMesh mesh;
  std::unique_ptr<Engine> engine;
};

Config config(const std::vector<std::string>& set = {}) {
  return parse_config(R"({"model": {"model_type": "llama", "vocab_size": 32000, "hidden_size": 512,
      "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 1536,
      "max_position_embeddings": 1024}, "seq_length": 1024, "global_batch_size": 64, "train_iters": 8,
      "learning_rate": 0.01, "precision": "bf16", "micro_batch_size": "auto", "save": "",
      "runtime_reserve_mib": 256,
      "train_data": "data/*.bin"})",
                      "test", "", set);
}

std::string limit(size_t bytes) { return cat("memory_limit_gib=", double(bytes) / double(size_t{1} << 30)); }

TEST(MakeEngine, ChoosesTheFastestPlanThatFits) {
  constexpr size_t kReserve = size_t{256} << 20;
  const size_t all = Plan(config()).bytes(),
               least = Plan(config({"micro_batch_size=1", "recompute_granularity=full"})).bytes();
  ASSERT_LT(2 * least, all);
  for (const double share : {1.0, 0.7, 0.4, 0.2, 0.05, 0.0}) {
    const size_t capacity = least + size_t(share * double(all - least)) + kReserve;
    const Plan chosen(config({limit(capacity + 1)}));
    EXPECT_LE(chosen.bytes() + kReserve, capacity + 1);
    for (int64_t micro = 1; micro <= 64; micro *= 2)
      for (const char* mode : {"none", "selective", "full"}) {
        const std::vector<std::string> set = {cat("micro_batch_size=", micro), cat("recompute_granularity=", mode)};
        const Plan other(config(set));
        if (other.bytes() + kReserve > capacity) continue;
        // The choice also counts launches, which seconds() omits: small micro-batches have more of them.
        EXPECT_LE(chosen.seconds(), 1.03 * other.seconds()) << share << " of the memory, " << micro << " " << mode;
      }
  }
  EXPECT_THROW(Plan(config({limit(least / 2)})), Error);
}

// On its own, the rank with the slow network would choose ring attention, which needs few hops with a window, and the
// other one would choose an all-gather, which needs fewer calls.
TEST(MakeEngine, AllRanksChooseThePlanOfTheSlowestRank) {
  std::array<std::map<bool, ContextMethod>, 2> chosen;  // by rank; key: with other ranks, or alone
  run_ranks(2, [&](std::unique_ptr<Communicator> world) {
    const int rank = world->rank();
    const DescribedBackend backend = describe(gpu());
    ProcessMesh mesh(std::move(world), {.context = 2});
    const double rate = rank == 0 ? 1e7 : 1e14;
    for (const bool together : {false, true}) {
      const auto engine =
          make_engine(config({"model.model_type=mistral", "model.sliding_window=64", "context_parallel_size=2"}),
                      {*backend.device, *backend.ops, mesh, backend.tuning, together ? &mesh.world() : nullptr,
                       Network{.link_bytes = rate, .network_bytes = rate, .per_machine = 2}},
                      true);
      chosen[size_t(rank)][together] = engine->options().context_method;
    }
  });
  EXPECT_NE(chosen[0][false], chosen[1][false]);
  EXPECT_EQ(chosen[0][true], chosen[1][true]);
}

// The rank with the larger matrices needs more memory to update them.
TEST(MakeEngine, NoRankTakesAPlanThatDoesNotFitAnother) {
  std::array<size_t, 2> bytes{};
  std::array<std::string, 2> refused;
  const auto plan = [&](const std::string& memory) {
    run_ranks(2, [&](std::unique_ptr<Communicator> world) {
      const auto rank = size_t(world->rank());
      const DescribedBackend backend = describe(gpu());
      ProcessMesh mesh(std::move(world), {.shards = 2});
      try {
        const auto engine = make_engine(config({"optimizer=muon", "model.vocab_size=64", "model.num_hidden_layers=1",
                                                "seq_length=16", "micro_batch_size=1", memory}),
                                        {*backend.device, *backend.ops, mesh, backend.tuning, &mesh.world()}, true);
        bytes[rank] = engine->memory().total();
      } catch (const Error& e) {
        refused[rank] = e.what();
      }
    });
  };
  plan("memory_limit_gib=1");
  const auto [less, more] = std::minmax(bytes[0], bytes[1]);
  ASSERT_LT(less, more);
  plan(limit((less + more) / 2 + (size_t{256} << 20)));
  EXPECT_NE(refused[bytes[0] < bytes[1]].find("memory: the run needs "), std::string::npos) << refused[0];
  EXPECT_NE(refused[bytes[0] > bytes[1]].find("memory: another rank needs more "), std::string::npos) << refused[1];
}

// One micro-batch of all sequences fits, but makes each stage wait for the other.
TEST(MakeEngine, PipelinesChooseSmallerMicroBatchesWithLessBubble) {
  std::array<int64_t, 2> micro_batches{};
  run_ranks(2, [&](std::unique_ptr<Communicator> world) {
    const auto rank = size_t(world->rank());
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), {.stages = 2});
    const auto engine = make_engine(config({"pipeline_parallel_size=2", "global_batch_size=8"}),
                                    {*cpu.device, *cpu.ops, mesh, nullptr, &mesh.world()}, true);
    micro_batches[rank] = engine->micro_batches();
  });
  EXPECT_GT(micro_batches[0], 2);
  EXPECT_EQ(micro_batches[0], micro_batches[1]);
}

// On a GPU the slow network would make them choose the ring. A choice by the modelled step would change with
// recomputation, and with it the bits of a run.
TEST(MakeEngine, CpuRanksGatherKeys) {
  std::array<ContextMethod, 2> chosen{};
  run_ranks(2, [&](std::unique_ptr<Communicator> world) {
    const auto rank = size_t(world->rank());
    const CpuBackend cpu = make_cpu({.threads = 1});
    ProcessMesh mesh(std::move(world), {.context = 2});
    const Network slow{.link_bytes = 1e6, .network_bytes = 1e6, .per_machine = 2};
    const Config c = config({"model.model_type=mistral", "model.sliding_window=64", "context_parallel_size=2",
                             "micro_batch_size=1", "global_batch_size=1"});
    chosen[rank] =
        make_engine(c, {*cpu.device, *cpu.ops, mesh, nullptr, &mesh.world(), slow}, true)->options().context_method;
  });
  for (const ContextMethod method : chosen) EXPECT_EQ(method, ContextMethod::gather);
}

TEST(MakeEngine, FixedMicroBatchGetsTheMinimumRecomputationThatFits) {
  using G = Recompute::Granularity;
  const std::string micro = "micro_batch_size=32";
  const size_t none = Plan(config({micro})).bytes(), full = Plan(config({micro, "recompute_granularity=full"})).bytes();
  const auto chosen = [&](double share) {
    const Plan plan(config({micro, limit(full + size_t(share * double(none - full)) + (size_t{257} << 20))}));
    EXPECT_EQ(plan.options().micro_batch_size, 32);
    return plan.options().recompute;
  };
  EXPECT_EQ(chosen(1), (Recompute{G::none, 1}));
  EXPECT_EQ(chosen(0), (Recompute{G::full, 1}));
  EXPECT_EQ(chosen(0.9).granularity, G::selective);
  const Recompute between = chosen(0.5);  // recomputes some of the blocks
  EXPECT_EQ(between.granularity, G::full);
  EXPECT_GT(between.every, 1);
}

TEST(MakeEngine, LogitChunksGrowWithAvailableMemory) {
  EXPECT_EQ(Plan(config()).options().loss_chunk_rows, 8192);
  EXPECT_EQ(Plan(config({"loss_chunk_rows=1000"})).options().loss_chunk_rows, 1000);
  const Plan small(config({"memory_limit_gib=30", "micro_batch_size=16"}));
  // A chunk takes at most 30 GiB / 64, at 2 bytes for each of 32000 logits.
  EXPECT_LE(small.options().loss_chunk_rows * 32000 * 2, (int64_t{30} << 30) / 64);
  EXPECT_EQ(small.options().loss_chunk_rows % 128, 0);
  EXPECT_GT(small.options().loss_chunk_rows, 4096);
  // If large chunks require recomputation and small ones do not, small ones are faster.
  const Plan tight(config({"memory_limit_gib=20"}));
  EXPECT_EQ(tight.options().recompute.granularity, Recompute::Granularity::none);
  EXPECT_EQ(tight.options().loss_chunk_rows, 4096);
}

// cuDNN's backward needs two bytes per attention logit, 4 GiB here: more than its default limit.
TEST(MakeEngine, AttentionScratchUsesTheRemainingMemory) {
  constexpr size_t kScores = size_t{4} << 30;
  const std::vector<std::string> set = {"seq_length=4096", "model.max_position_embeddings=4096", "micro_batch_size=16",
                                        "recompute_granularity=full", "loss_chunk_rows=1024"};
  const auto with = [&](const std::string& more) {
    std::vector<std::string> all = set;
    all.push_back(more);
    return Plan(config(all));
  };
  const Plan roomy = with("log_interval=1");
  EXPECT_EQ(roomy.backend.tuning->wanted_scratch(roomy.engine->tunable()), 0u);
  const size_t reserve = (size_t{256} << 20) + 1;
  const Plan exact = with(limit(roomy.bytes() + reserve)), tight = with(limit(roomy.bytes() - 1));
  EXPECT_EQ(exact.bytes(), roomy.bytes());
  EXPECT_LT(tight.bytes(), roomy.bytes());
  EXPECT_GT(tight.bytes() + kScores, roomy.bytes() - reserve) << "nothing else is given up";
  EXPECT_EQ(tight.options().micro_batch_size, 16);
  EXPECT_EQ(tight.options().recompute, roomy.options().recompute);
  EXPECT_EQ(tight.backend.tuning->wanted_scratch(tight.engine->tunable()), kScores);
}

std::string refusal(const std::vector<std::string>& set) {
  try {
    const Plan plan(config(set));
    return cat("a plan of ", plan.bytes());
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Exit::usage);
    return e.what();
  }
}

// Offloaded master weights and optimizer states free GPU memory; auto offloads them only if nothing else fits.
TEST(MakeEngine, OffloadsOnlyIfNothingElseFits) {
  const std::vector<std::string> least = {"micro_batch_size=1", "recompute_granularity=full"};
  const auto with = [&](std::vector<std::string> set) {
    set.insert(set.end(), least.begin(), least.end());
    return set;
  };
  constexpr size_t kReserve = size_t{256} << 20, kSlack = size_t{1} << 20;  // kSlack: rounding of a limit
  const Plan on_gpu(config(least)), on_host(config(with({"offload.optimizer=cpu"})));
  EXPECT_EQ(on_gpu.engine->host_memory(), 0u);
  const size_t states =
      on_gpu.engine->memory().total(MemoryKind::masters) + on_gpu.engine->memory().total(MemoryKind::optimizer);
  EXPECT_EQ(on_host.engine->host_memory(), states);
  EXPECT_LT(on_host.bytes() + states / 2, on_gpu.bytes()) << "what passes through takes less";

  const Plan roomy(config(with({"offload.optimizer=auto", limit(on_gpu.bytes() + kReserve + kSlack)})));
  EXPECT_EQ(roomy.engine->host_memory(), 0u);
  const std::string tight = limit(on_host.bytes() + kReserve + kSlack);
  const Plan chosen(config(with({"offload.optimizer=auto", tight})));
  EXPECT_EQ(chosen.engine->host_memory(), states);
  EXPECT_EQ(chosen.bytes(), on_host.bytes());
  EXPECT_NE(refusal(with({tight})).find("offload.optimizer"), std::string::npos) << "the way out is named";

  const auto host = [&](size_t bytes) { return cat("host_", limit(bytes)); };
  EXPECT_EQ(Plan(config(with({"offload.optimizer=cpu", host(states + kSlack)}))).engine->host_memory(), states);
  const std::string text = refusal(with({"offload.optimizer=cpu", host(states - kSlack)}));
  for (const char* part : {"offload.optimizer keeps", "of host memory may be used", "optimizer", "masters"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_NE(refusal(with({"offload.optimizer=cpu", host(states + kSlack), "save=here"})).find("and checkpoints take"),
            std::string::npos);
}

TEST(MakeEngine, RefusesAnOffloadWithoutEffect) {
  const std::string nothing =
      refusal({"offload.optimizer=cpu", "optimizer=sgd", "sgd.momentum=0", "precision=fp32", "micro_batch_size=1"});
  EXPECT_NE(nothing.find("offload.optimizer: cpu has nothing to move"), std::string::npos) << nothing;
  const CpuBackend cpu = make_cpu({.threads = 1});
  ProcessMesh mesh(make_single(*cpu.device), {});
  const auto on_cpu = [&](const char* value) {
    const Config c = config({cat("offload.optimizer=", value), "micro_batch_size=1", "global_batch_size=1"});
    return make_engine(c, {*cpu.device, *cpu.ops, mesh}, true)->host_memory();
  };
  EXPECT_EQ(on_cpu("auto"), 0u);
  try {
    on_cpu("cpu");
    ADD_FAILURE() << "the CPU has no other memory";
  } catch (const Error& e) {
    const std::string text = e.what();
    for (const char* part :
         {"offload.optimizer: cpu", "this run is on cpu", "set it to auto or none", "device to cuda"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

// A GPU that other programs use, too.
// A run of adapters is evaluated as the merged model, which has no adapters that a group could match.
TEST(MakeEngine, EvaluationsIgnoreParameterGroups) {
  const Config adapted = config({"init_from=base", "lora.rank=4", "micro_batch_size=1",
                                 R"(param_groups=[{"match": "*lora_B*", "lr_factor": 16}])"});
  EXPECT_GT(Plan(adapted).bytes(), 0);
  const CpuBackend cpu = make_cpu({.threads = 1});
  ProcessMesh mesh(make_single(*cpu.device), {});
  EXPECT_FALSE(make_engine(adapted, {*cpu.device, *cpu.ops, mesh}, false)->options().training);
}

struct SharedGpu final : Device {
  size_t own = 0, used = 0;
  std::string description() const override { return "shared"; }
  void* allocate(size_t, Mem) override { return nullptr; }
  void release(void*, size_t, Mem) override {}
  void copy(void*, const void*, size_t, Stream) override {}
  size_t capacity(Mem) const override { return size_t{60} << 30; }
  size_t allocated() const override { return own; }
  size_t in_use() const override { return used; }
};

TEST(MakeEngine, ReportsMemoryUsedByOtherPrograms) {
  SharedGpu device;
  device.own = size_t{70} << 30, device.used = device.own + (size_t{1} << 30);
  EXPECT_EQ(memory_of_others(config(), device), "") << "its own context and libraries";
  device.used = device.own + (size_t{11} << 30);
  const std::string line = memory_of_others(config(), device);
  EXPECT_NE(line.find("other programs hold 11.0 GiB of the GPU's memory"), line.npos) << line;
  EXPECT_NE(line.find("the 60.0 GiB that are left"), line.npos) << line;
  EXPECT_EQ(memory_of_others(config({"memory_limit_gib=40"}), device), "") << "then choices do not depend on it";
}

}  // namespace
}  // namespace athanor
