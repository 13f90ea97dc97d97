// Times of ops by CUPTI: kernels of replayed graphs are attributed to their ops like those of separate launches,
// profiling changes no bit, and a CUPTI failure costs the profile but not the run.
#include <gtest/gtest.h>

#include "cuda/make_cuda.h"
#include "perf/step_profile.h"
#include "tests/cuda/train/tiny_model.h"
#include "tests/train/harness.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/runtime/control.h"
#endif

namespace athanor {
namespace {

using testing::Rig;

constexpr int64_t kSeq = 16;

EngineOptions options(bool graphs) {
  EngineOptions o;
  o.recipe = make_recipe("bf16", DType::f32);
  o.seq_length = kSeq;
  o.micro_batch_size = 1;
  o.global_batch_size = 2;
  o.graphs = graphs;
  o.schedule = {.style = DecayStyle::constant, .lr = 1e-3, .warmup = 1};
  return o;
}

struct Steps {
  explicit Steps(bool graphs) : engine(testing::tiny(ModelType::llama), options(graphs), rig.backend()) {
    engine.commit();
    engine.init_weights();
  }
  void step() {
    PhaseClock clock;
    std::vector<int32_t> tokens(kSeq), targets(kSeq);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = targets[i] = int32_t(i % testing::kTinyVocab);
    for (int64_t m = 0; m < engine.micro_batches(); ++m) engine.micro_batch(tokens, targets, clock);
    losses.push_back(engine.finish_step().loss);
  }
  void step_until(StepProfile& profile, int64_t steps) {
    while (profile.steps() < steps) {
      step();
      profile.end_step();
    }
  }
  Rig rig;
  Engine engine;
  Roofline limits{.most = {.flops = 1e12, .bytes = 1e12}};
  std::vector<double> losses;
};

std::unique_ptr<Profiler> open_profiler(std::string& why) {
  try {
    return make_cuda_profiler();
  } catch (const Error& error) {
    why = error.what();
    return nullptr;
  }
}

class Profiles : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!open_profiler(why)) GTEST_SKIP() << why;
  }
};

struct Profiled {
  std::map<std::string, OpRow> rows;
  std::vector<double> losses;
  std::string table;
};

Profiled profiled(bool graphs) {
  Steps s(graphs);
  const auto profiler = make_cuda_profiler();
  StepProfile profile(s.engine, s.rig.backend(), {.profiler = profiler.get(), .limits = s.limits});
  s.step_until(profile, 2);
  return {profile.rows(), s.losses, profile.table(0.1)};
}

TEST_F(Profiles, EveryOpHasItsKernelsWithAndWithoutGraphs) {
  const Profiled graphs = profiled(true), eager = profiled(false);
  Steps plain(true);
  for (size_t i = 0; i < graphs.losses.size(); ++i) plain.step();
  EXPECT_EQ(graphs.losses, plain.losses);
  EXPECT_EQ(eager.losses, plain.losses);
  const auto planned = planned_rows(plain.engine, plain.limits);
  for (const Profiled* one : {&graphs, &eager}) {
    for (const auto& [name, row] : planned) {
      ASSERT_TRUE(one->rows.count(name)) << name;
      EXPECT_GT(one->rows.at(name).seconds, 0) << name << " has no kernel\n" << one->table;
      EXPECT_EQ(one->rows.at(name).launches, 2 * row.launches) << name;
    }
    for (const auto& [name, row] : one->rows)
      EXPECT_TRUE(planned.count(name) || name == "[copy]" || name == "[fill]") << name << " belongs to no op";
  }
#ifdef ATHANOR_EMULATED_GPU  // the emulated kernels always take the same time
  for (const auto& [name, row] : planned)
    EXPECT_NEAR(graphs.rows.at(name).seconds, eager.rows.at(name).seconds, 1e-7) << name;
#endif
}

TEST_F(Profiles, SecondProfilerCanBeOpenedAfterTheFirst) {
  for (int i = 0; i < 2; ++i) EXPECT_NE(make_cuda_profiler(), nullptr);
}

#ifdef ATHANOR_EMULATED_GPU

TEST_F(Profiles, CallsThatFailAtStartupAreNamed) {
  for (const char* call :
       {"cuptiSubscribe", "cuptiEnableCallback", "cuptiActivityRegisterCallbacks", "cuptiActivityEnable"}) {
    emu::fail_next(call, 1, 39);  // CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
    std::string why;
    EXPECT_EQ(open_profiler(why), nullptr) << call;
    for (const char* part : {"CUPTI: ", call, "MULTIPLE_SUBSCRIBERS", "Nsight"})
      EXPECT_NE(why.find(part), std::string::npos) << why;
    EXPECT_NE(open_profiler(why), nullptr) << "what was begun is undone: " << why;
  }
}

TEST_F(Profiles, LaterFailuresEndTheProfileAndNotTheRun) {
  for (const char* call :
       {"cuptiActivityFlushAll", "cuptiActivityGetNextRecord", "cuptiActivityGetNumDroppedRecords",
        "cuptiActivityPushExternalCorrelationId", "cuptiActivityPopExternalCorrelationId", "cuptiGetGraphNodeId"}) {
    Steps s(true);
    const auto profiler = make_cuda_profiler();
    StepProfile profile(s.engine, s.rig.backend(), {.profiler = profiler.get(), .limits = s.limits});
    emu::fail_next(call, 1, 999);
    s.step_until(profile, 2);
    EXPECT_EQ(profile.source(), "events");
    EXPECT_NE(profile.why_events().find(cat("CUPTI: ", call, ": CUPTI_ERROR_UNKNOWN (999)")), std::string::npos)
        << profile.why_events();
    EXPECT_GT(measured_sum(profile.rows()), 0);
  }
}

#endif

}  // namespace
}  // namespace athanor
