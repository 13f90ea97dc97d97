// Profiles of steps: how much of a step a device is busy, kernels by the op that launched them, and what is left when a
// profiler loses records or fails.
#include "perf/step_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "base/file.h"
#include "tests/tiny_model.h"
#include "tests/train/harness.h"

namespace athanor {
namespace {

using testing::Rig;
using testing::TempDir;

DeviceWork ran(const char* name, int64_t begin, int64_t end) {
  return {.name = name, .label = 0, .stream = 1, .begin = begin, .end = end};
}

TEST(Occupation, SpansFirstKernelStartToLastKernelEnd) {
  EXPECT_EQ(occupation({}).idle(), 0);
  const std::vector<DeviceWork> gaps = {ran("b", 300, 400), ran("a", 100, 200)};
  EXPECT_NEAR(occupation(gaps).window, 300e-9, 1e-15);
  EXPECT_NEAR(occupation(gaps).idle(), 1.0 / 3, 1e-12);
  const std::vector<DeviceWork> overlapping = {ran("a", 100, 300), ran("b", 150, 200), ran("c", 250, 400)};
  EXPECT_NEAR(occupation(overlapping).idle(), 0, 1e-12);
  const std::vector<DeviceWork> empty = {ran("a", 100, 100)};
  EXPECT_EQ(occupation(empty).idle(), 0);
}

TEST(Occupation, OverlappingKernelCountsFromTheEndOfThePreviousOne) {
  const auto on = [](int64_t stream, DeviceWork work) {
    work.stream = stream;
    return work;
  };
  const auto spans = without_waits({on(7, ran("b", 90, 250)), on(7, ran("a", 0, 200)), on(7, ran("copy", 150, 240)),
                                    on(7, ran("ncclDevKernel_AllReduce", 100, 300)), on(8, ran("c", 120, 260)),
                                    on(7, ran("short", 240, 245)), on(7, ran("d", 300, 310))});
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const DeviceWork& a : spans) found.emplace_back(a.begin, a.end);
  // a, b, the collective, c, the copy, short: not below zero, d
  const std::vector<std::pair<int64_t, int64_t>> expected = {{0, 200},   {200, 250}, {100, 300}, {120, 260},
                                                             {150, 240}, {245, 245}, {300, 310}};
  EXPECT_EQ(found, expected);
}

TEST(Occupation, CommunicationIsExposedWithoutConcurrentKernels) {
  const std::vector<DeviceWork> all = {ran("gemm", 0, 100), ran("ncclDevKernel_AllReduce", 50, 180),
                                       ran("add", 150, 200)};
  EXPECT_NEAR(occupation(all).exposed, 50e-9, 1e-15);
  EXPECT_NEAR(occupation(all).busy, 200e-9, 1e-15);
  const std::vector<DeviceWork> hidden = {ran("gemm", 0, 200), ran("ncclDevKernel_AllReduce", 50, 180)};
  EXPECT_NEAR(occupation(hidden).exposed, 0, 1e-15);
  const std::vector<DeviceWork> kinds = {ran("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", 50, 180),
                                         ran("gemm", 0, 100),
                                         ran("ncclDevKernel_AllReduce_Max_f32_RING_LL(ncclDevKernelArgs)", 190, 230),
                                         ran("add", 150, 200),
                                         ran("add", 120, 125),
                                         ran("ncclDevKernel_SendRecv(ncclDevKernelArgs)", 240, 250)};
  const auto by = occupation(kinds).exposed_by;
  ASSERT_EQ(by.size(), 2U);
  EXPECT_NEAR(by.at("AllReduce"), (20 + 25 + 30) * 1e-9, 1e-15);
  EXPECT_NEAR(by.at("SendRecv"), 10e-9, 1e-15);
}

// Says of every launch that it took 1 us, one after the other, and of a collective in between.
class ScriptedProfiler final : public Profiler {
 public:
  std::string description() const override { return "script 1.0"; }
  void begin(int64_t label) override {
    log.done.push_back({.name = label < 0 ? "ncclDevKernel_AllReduce" : "k",
                        .label = label,
                        .stream = 3,
                        .begin = time,
                        .end = time + 1000});
    time += 1000;
  }
  void end() override { ++ended; }
  DeviceLog take() override {
    if (!log.done.empty()) log.done.push_back(ran("ncclDevKernel_Sum", time, time + 500));
    time += 500;
    ++taken;
    return std::exchange(log, {});
  }
  int64_t now() const override { return time; }

  DeviceLog log;
  int64_t time = 1000, ended = 0, taken = 0;
};

struct Steps {
  Steps() : engine(tiny(), options(), rig.backend()) {
    engine.commit();
    engine.init_weights();
  }
  static ModelConfig tiny() {
    return testing::tiny_model(
        ModelType::gpt2, {.vocab = 31, .hidden = 16, .layers = 1, .heads = 1, .intermediate = 32, .positions = 8});
  }
  static EngineOptions options() {
    EngineOptions o;
    o.recipe = make_recipe("fp32", DType::f32);
    o.seq_length = 8;
    o.micro_batch_size = 1;
    o.global_batch_size = 2;
    return o;
  }
  void step() {
    PhaseClock clock;
    const std::vector<int32_t> tokens(8, 1);
    for (int64_t m = 0; m < engine.micro_batches(); ++m) engine.micro_batch(tokens, tokens, clock);
    engine.finish_step();
  }
  Rig rig;
  Engine engine;
  Roofline limits{.most = {.flops = 1e12, .bytes = 1e12}};
};

int64_t launches(const std::map<std::string, OpRow>& rows) {
  int64_t sum = 0;
  for (const auto& [name, row] : rows) sum += row.launches;
  return sum;
}

TEST(StepProfile, AttributesKernelsToTheLaunchingOp) {
  Steps s;
  ScriptedProfiler profiler;
  StepProfile profile(s.engine, s.rig.backend(), {.profiler = &profiler, .limits = s.limits});
  int64_t ran_steps = 0;
  for (; profile.steps() < 3; ++ran_steps) {
    s.step();
    profile.end_step(0.5);
  }
  EXPECT_EQ(ran_steps, 5) << "two steps prepare";
  EXPECT_EQ(profile.step_seconds(), 0.5);
  auto rows = profile.rows();
  EXPECT_EQ(rows.at("[ncclDevKernel_Sum]").launches, 3);
  EXPECT_NEAR(rows.at("[ncclDevKernel_Sum]").seconds, 1.5e-6, 1e-15);
  rows.erase("[ncclDevKernel_Sum]");
  const auto planned = planned_rows(s.engine, s.limits);
  ASSERT_EQ(rows.size(), planned.size());
  for (const auto& [name, row] : planned) {
    EXPECT_EQ(rows.at(name).launches, 3 * row.launches) << name;
    EXPECT_NEAR(rows.at(name).seconds, double(3 * row.launches) * 1e-6, 1e-12) << name;
    EXPECT_DOUBLE_EQ(rows.at(name).cost.bytes, 3 * row.cost.bytes) << name;
  }
  EXPECT_NEAR(profile.occupied().idle(), 0, 1e-12);
  EXPECT_NEAR(profile.occupied().exposed, 1.5e-6, 1e-15);
  const std::string table = profile.table(0.5);
  for (const char* part : {"gemm", "[ncclDevKernel_Sum]", "times: kernels, by script 1.0", "idle 0.0 %",
                           "hid: 0.0005 ms", "of Sum: 0.0005 ms"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  EXPECT_EQ(table.find("lost:"), std::string::npos);
}

// Labels of collectives are those of their units, by weights or by the units' own names.
TEST(StepProfile, AttributesCollectivesToTheirUnits) {
  Steps s;
  ScriptedProfiler profiler;
  CollectiveWatch watch;
  {
    StepProfile profile(s.engine, s.rig.backend(), {.profiler = &profiler, .limits = s.limits, .collectives = &watch});
    const auto& params = s.engine.model().params();
    const std::string block = params.units()[1]->name,
                      weight = params.specs()[size_t(params.units()[1]->params[0])].name;
    while (profile.steps() < 2) {
      for (const std::string& what : {block, weight, std::string("?")}) {
        const CollectiveSubject subject(what);
        watch.observer->begins("all_reduce", "tp");
        watch.observer->ends();
      }
      s.step();
      profile.end_step();
      watch.observer->begins("all_reduce", "tp");  // between steps
      watch.observer->ends();
      profile.skip();
    }
    const auto rows = profile.collectives();
    ASSERT_EQ(rows.size(), 3U);
    const CollectiveRow& of_block = rows.at({block, "tp", "all_reduce"});
    EXPECT_EQ(of_block.calls, 4);
    EXPECT_NEAR(of_block.exposed, 4e-6, 1e-15);
    EXPECT_NEAR(of_block.seconds, 4e-6, 1e-15);
    EXPECT_EQ(rows.at({"", "tp", "all_reduce"}).calls, 2);
    EXPECT_EQ(rows.at({"", "", ""}).calls, 2) << "the profiler's own, without a label";
    EXPECT_NE(profile.table(0.5).find(block), std::string::npos);
    const auto beside = profile.communication();  // per step; the entry of the whole step is last
    ASSERT_EQ(beside.size(), 3U);
    EXPECT_EQ(beside[0].of, (LayerGroup{block, "tp"}));
    EXPECT_EQ(beside[0].calls, 2);
    EXPECT_NEAR(beside[0].exposed, 2e-6, 1e-15);
    for (const CommunicationRow& row : beside) EXPECT_TRUE(std::isnan(row.modelled)) << "one rank sends nothing";
  }
  EXPECT_EQ(watch.observer, nullptr);
}

TEST(StepProfile, ExcludesWorkBetweenSteps) {
  Steps s;
  ScriptedProfiler profiler;
  StepProfile profile(s.engine, s.rig.backend(), {.profiler = &profiler, .limits = s.limits});
  const std::vector<int32_t> tokens(8, 1);
  while (profile.steps() < 2) {
    s.step();
    profile.end_step();
    s.engine.evaluate(tokens, tokens);
    profile.skip();
  }
  EXPECT_NEAR(profile.rows().at("embedding_fwd").seconds, 2 * 2 * 1e-6, 1e-12)
      << "a launch in each of two micro-batches";
}

TEST(StepProfile, ReportsLostRecordsAndOpsWithoutKernels) {
  Steps s;
  ScriptedProfiler profiler;
  StepProfile profile(s.engine, s.rig.backend(), {.profiler = &profiler, .limits = s.limits});
  while (profile.steps() < 1) {
    s.step();
    profiler.log.lost = 7;
    std::erase_if(profiler.log.done, [](const DeviceWork& a) { return a.label == 1; });
    profile.end_step();
  }
  EXPECT_EQ(profile.lost(), 7);
  const std::string table = profile.table(0.1);
  EXPECT_NE(table.find("7 records of activities were lost: times are too low"), std::string::npos) << table;
  EXPECT_EQ(table.find("inf"), std::string::npos) << table;
  EXPECT_EQ(table.find("nan"), std::string::npos) << table;
}

TEST(StepProfile, FallsBackToEventTimesIfTheProfilerFails) {
  Steps s;
  ScriptedProfiler profiler;
  StepProfile profile(s.engine, s.rig.backend(), {.profiler = &profiler, .limits = s.limits});
  while (profile.steps() < 2) {
    s.step();
    profile.end_step();
  }
  profiler.log.problem = "CUPTI: flush: it broke";
  s.step();
  profile.end_step();
  EXPECT_EQ(profile.steps(), 0) << "the two kinds of times do not mix";
  const int64_t taken = profiler.taken;
  while (profile.steps() < 2) {
    s.step();
    profile.end_step();
  }
  EXPECT_EQ(profiler.taken, taken);
  EXPECT_EQ(profile.source(), "events");
  EXPECT_EQ(profile.why_events(), "CUPTI: flush: it broke");
  EXPECT_EQ(launches(profile.rows()), 2 * launches(planned_rows(s.engine, s.limits)));
  EXPECT_GT(measured_sum(profile.rows()), 0);
  EXPECT_NE(profile.table(0.1).find("times: events around every op"), std::string::npos);
}

TEST(StepProfile, DeviceWithoutProfilersGivesNoRemark) {
  Steps s;
  StepProfile profile(s.engine, s.rig.backend(), {.limits = s.limits});
  EXPECT_NE(profile.table(0.1).find("no step counted"), std::string::npos);
  int64_t ran_steps = 0;
  for (; profile.steps() < 2; ++ran_steps) {
    s.step();
    profile.end_step();
  }
  EXPECT_EQ(ran_steps, 3);
  EXPECT_EQ(launches(profile.rows()), 2 * launches(planned_rows(s.engine, s.limits)));
  EXPECT_EQ(profile.table(0.1).find("times:"), std::string::npos);
}

TEST(StepProfile, TraceHoldsOnlySpansOfThisRun) {
  for (const bool kernels : {true, false}) {
    const TempDir folder;
    Steps s;
    ScriptedProfiler profiler;
    TraceWriter trace(folder.path() + "/trace.json");
    StepProfile profile(s.engine, s.rig.backend(),
                        {.profiler = kernels ? &profiler : nullptr, .limits = s.limits, .trace = &trace});
    s.step();
    profile.end_step();
    trace.close();
    const std::string text = read_file(folder.path() + "/trace.json", 1 << 24);
    EXPECT_NE(text.find("\"name\":\"gemm\""), std::string::npos);
    EXPECT_EQ(text.find("\"cat\":\"k\"") != std::string::npos, kernels);
    EXPECT_EQ(text.find("\"name\":\"[ncclDevKernel_Sum]\"") != std::string::npos, kernels);
    EXPECT_EQ(text.find("\"tid\":3") != std::string::npos, kernels);
  }
}

}  // namespace
}  // namespace athanor
