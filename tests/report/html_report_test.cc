// The report: reads what was written, drops what was superseded, survives damage and hostile text, stays small.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/crypto.h"
#include "metrics/jsonl.h"
#include "report/chart.h"
#include "report/html_report.h"
#include "tests/expect_error.h"
#include "tests/files.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using testing::TempDir;

StepMetrics at(int64_t step, double loss) {
  StepMetrics m;
  m.step = step;
  m.total_steps = 100;
  m.loss = loss;
  m.grad_norm = 1;
  m.learning_rate = 1e-3;
  m.step_ms = 10;
  m.forward_ms = 4, m.backward_ms = 5, m.optimizer_ms = 1;
  m.tokens_per_second = 1000;
  m.mfu = 0.4;
  m.memory_planned = uint64_t{3} << 30;
  m.memory_used = uint64_t{2} << 30;
  m.time = 1.7e9 + double(step);
  return m;
}

RunRecords sample(const std::string& name, int64_t steps) {
  RunRecords run;
  run.name = name;
  for (int64_t s = 1; s <= steps; ++s) run.steps.push_back(at(s, 5 - std::log(double(s)) / 3));
  run.evals.push_back({.step = steps, .loss = 3.5});
  run.events.push_back({.kind = EventKind::start, .text = "go", .time = 1.7e9});
  return run;
}

TEST(Report, SummarizesSpeedByTheMedian) {
  RunRecords run = sample("run", 3);
  for (size_t i = 0; i < 3; ++i) run.steps[i].tokens_per_second = 100. * double(i + 1), run.steps[i].mfu = NAN;
  run.steps[1].mfu = 0.1, run.steps[2].mfu = 0.3;
  const std::string odd = html_report(std::vector{run});
  EXPECT_NE(odd.find("<td>200</td><td>20.0%</td>"), std::string::npos) << "NaN does not count";
  run.steps.resize(2);
  EXPECT_NE(html_report(std::vector{run}).find("<td>150</td><td>10.0%</td>"), std::string::npos);
}

// Losses of answers to questions, and of single entries of valid_data, are no losses of the validation set.
TEST(RunRecords, BestEvaluationIsOfTheValidationSet) {
  RunRecords run = sample("run", 3);
  run.evals = {{.step = 1, .loss = 3.5},
               {.step = 1, .name = "choices", .loss = 1.25},
               {.step = 1, .name = cat(kOneSource, "web"), .loss = 2},
               {.step = 2, .loss = 3.25},
               {.step = 3, .loss = NAN}};
  EXPECT_EQ(best_valid(run).step, 2);
  EXPECT_NE(html_report(std::vector{run}).find("<td>3.25</td>"), std::string::npos);
  run.evals = {{.step = 1, .name = "choices", .loss = 1.25}};
  EXPECT_TRUE(std::isnan(best_valid(run).loss));
}

TEST(Report, DrawsTheLossOfEachSource) {
  RunRecords run = sample("mixed", 60);
  EXPECT_EQ(html_report(std::vector{run}).find("by source"), std::string::npos);
  for (StepMetrics& m : run.steps) m.source_losses = {{"<web>", m.loss}, {"code", m.loss / 2}};
  const std::string page = html_report(std::vector{run});
  expect_parts(page, {"Training loss by source", "&lt;web&gt;", "code"});
}

TEST(RunRecords, ReadsWhatTheSinkWrites) {
  const TempDir dir;
  {
    JsonlSink sink(dir / "metrics.jsonl");
    sink.step(at(1, 4.5));
    StepMetrics bad = at(2, NAN);
    bad.grad_norm = INFINITY;
    bad.mfu = kUnknown;
    bad.skipped = true;
    bad.gpu_watts = 4.25;
    sink.step(bad);
    sink.eval({.step = 2, .name = "wiki", .loss = 4, .perplexity = 54, .tokens = 7});
    sink.quantized({.step = 2,
                    .layer = "h.0.fc",
                    .operand = "forward_x",
                    .dtype = "f8_e4m3",
                    .values = 9,
                    .underflowed = 4,
                    .amax = INFINITY});
    sink.pruned({.step = 2, .layer = "h.0.fc", .weights = 8, .zeros = 3});
    sink.event({.kind = EventKind::warn, .step = 2, .text = "look", .seconds = 1.5});
  }
  const RunRecords run = read_run(dir.path());
  ASSERT_EQ(run.pruned.size(), 1u);
  EXPECT_EQ(run.pruned[0].zeros, 3);
  EXPECT_NE(html_report(std::vector{run}).find("<td>8</td><td>3</td><td>37.5"), std::string::npos);
  ASSERT_EQ(run.quantized.size(), 1u);
  EXPECT_EQ(run.quantized[0].layer, "h.0.fc");
  EXPECT_EQ(run.quantized[0].underflowed, 4);
  EXPECT_EQ(run.quantized[0].amax, INFINITY);
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.steps[0].loss, 4.5);
  EXPECT_EQ(run.steps[0].memory_planned, uint64_t{3} << 30);
  EXPECT_TRUE(std::isnan(run.steps[1].loss) && std::isnan(run.steps[1].mfu));
  EXPECT_EQ(run.steps[1].grad_norm, INFINITY);
  EXPECT_TRUE(run.steps[1].skipped);
  EXPECT_EQ(run.steps[1].gpu_watts, 4.25);
  ASSERT_EQ(run.evals.size(), 1u);
  EXPECT_EQ(run.evals[0].name, "wiki");
  ASSERT_EQ(run.events.size(), 1u);
  EXPECT_EQ(run.events[0].kind, EventKind::warn);
  EXPECT_EQ(run.events[0].seconds, 1.5);
  EXPECT_FALSE(run.ended());
}

TEST(RunRecords, SensorsAndPlanRoundTrip) {
  const TempDir dir;
  {
    JsonlSink sink(dir / "metrics.jsonl");
    StepMetrics m = at(1, 4);
    m.gpu_watts = 690.5, m.gpu_throttle = 0x44;
    sink.step(m);
    sink.event({.kind = EventKind::start, .planned_weights = 7, .planned_activations = int64_t{5} << 33});
  }
  const RunRecords run = read_run(dir.path());
  EXPECT_EQ(run.steps.at(0).gpu_watts, 690.5);
  EXPECT_EQ(run.steps[0].gpu_throttle, 0x44);
  EXPECT_FALSE(run.steps[0].gpu_celsius.has_value()) << "absent, not unknown";
  EXPECT_EQ(run.events.at(0).planned_weights, 7);
  EXPECT_EQ(run.events[0].planned_activations, int64_t{5} << 33);
  EXPECT_FALSE(run.events[0].planned_inputs.has_value());
}

TEST(RunRecords, SupersededStepsAreDropped) {
  RunRecords run;
  for (int64_t s = 1; s <= 9; ++s) run.steps.push_back(at(s, 1));
  run.evals.push_back({.step = 5, .loss = 1});
  EXPECT_TRUE(parse_record(R"({"event": "resume", "step": 4, "text": "", "supersedes_from": 5})", run));
  EXPECT_EQ(run.steps.size(), 4u);
  EXPECT_TRUE(run.evals.empty());
}

TEST(RunRecords, FormerNameOfAmaxIsRead) {
  RunRecords run;
  EXPECT_TRUE(parse_record(R"({"event": "quantized", "step": 1, "largest": 3})", run));
  EXPECT_TRUE(parse_record(R"({"event": "quantized", "step": 2, "largest": null, "largest_nonfinite": "inf"})", run));
  EXPECT_TRUE(parse_record(R"({"event": "quantized", "step": 3, "amax": 5})", run));
  EXPECT_EQ(run.quantized[0].amax, 3);
  EXPECT_EQ(run.quantized[1].amax, std::numeric_limits<double>::infinity());
  EXPECT_EQ(run.quantized[2].amax, 5);
}

TEST(RunRecords, DamagedLinesAreCountedAndIgnored) {
  const TempDir dir;
  const std::string good = R"({"event": "step", "step": 1, "loss": 2})";
  write_bytes(dir / "metrics.jsonl",
              good + "\nnonsense\n[1]\n{\"event\": \"news\"}\n{\"event\": 3}\n" + good + "\n" + good.substr(0, 20));
  const RunRecords run = read_run(dir.path());
  EXPECT_EQ(run.steps.size(), 1u) << "a step that is repeated counts once";
  EXPECT_EQ(run.unreadable_lines, 4) << "the torn last line is not damage";
  EXPECT_EQ(run.first_unreadable, 2);
  ::testing::internal::CaptureStderr();
  warn_of_unreadable_lines(run);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("4 lines are no records"), std::string::npos);
  write_bytes(dir / "metrics.jsonl",
              "{\"event\": \"step\", \"step\": 1, \"loss\": [], \"skipped\": 7, \"memory_used\": -4}\n"
              "{\"event\": \"step\", \"step\": \"x\", \"loss\": 2}\n");
  EXPECT_EQ(read_run(dir.path()).steps.at(0).memory_used, 0u) << "wrong types are nothing";
  EXPECT_EQ(read_run(dir.path()).first_unreadable, 2) << "a step without its number is none";
  EXPECT_THROW(read_run(dir / "absent"), Error);
}

TEST(RunRecords, ErrorEndsARun) {
  RunRecords run;
  EXPECT_TRUE(parse_record(R"({"event": "step", "step": 4, "eta_seconds": 3})", run));
  EXPECT_FALSE(run.ended());
  EXPECT_TRUE(parse_record(R"({"event": "error", "step": 4, "text": "shard 3 shrank"})", run));
  EXPECT_TRUE(run.ended() && run.failed());
  const std::string page = html_report(std::vector{run});
  EXPECT_NE(page.find("error: shard 3 shrank"), page.npos);
  EXPECT_EQ(page.find("to go"), page.npos);
  EXPECT_TRUE(parse_record(R"({"event": "resume", "step": 4, "text": ""})", run));
  EXPECT_FALSE(run.ended()) << "it goes on";
}

TEST(RunRecords, ConfigIsFlattenedToDottedKeys) {
  const TempDir dir;
  write_bytes(dir / "metrics.jsonl", "");
  write_bytes(dir / "config.resolved.json",
              R"({"model": {"hidden_size": 64}, "train_data": ["a", "b"], "save": "r\"u"})");
  const RunRecords run = read_run(dir.path());
  ASSERT_EQ(run.config.size(), 3u);
  EXPECT_EQ(run.config[0], (std::pair<std::string, std::string>("model.hidden_size", "64")));
  EXPECT_EQ(run.config[1].second, R"(["a","b"])");
  EXPECT_EQ(run.config[2].second, "r\"u");
  EXPECT_TRUE(run.environment.empty());
}

TEST(Report, ContainsEveryChartAndTable) {
  RunRecords run = sample("first", 50);
  run.config = {{"learning_rate", "0.001"}};
  run.environment = {{"cpu_model", "A processor"}};
  run.events.push_back({.kind = EventKind::skip, .step = 7, .text = "not finite"});
  const std::string page = html_report(std::vector{run});
  expect_parts(page, {"Training loss", "Validation loss", "Learning rate", "Gradient norm", "Throughput", "MFU",
                      "Memory", "Where a step", "forward", "not finite", "learning_rate", "A processor",
                      "prefers-color-scheme", "width=device-width", "class=\"mark skip\"", "3.00 GiB"});
  EXPECT_EQ(page.find("http://", page.find("<body>")), page.find("http://www.w3.org")) << "nothing from outside";
  EXPECT_EQ(page.find("http-equiv=\"refresh\""), page.npos);
  EXPECT_NE(html_report(std::vector{run}, {.refresh_seconds = 5}).find("content=\"5\""), page.npos);
}

TEST(Report, ShowsMemorySensorsAndAccuracyIfRecorded) {
  RunRecords run = sample("a", 10);
  const std::string without = html_report(std::vector{run});
  for (const char* part : {"GPU power", "GPU temperature", "GPU clock", "Where the memory goes", "Accuracy"})
    EXPECT_EQ(without.find(part), without.npos) << part;
  run.evals.front().accuracy = 0.5;
  for (StepMetrics& m : run.steps) m.gpu_watts = 650;
  run.events[0].planned_weights = int64_t{1} << 30;
  run.events[0].planned_activations = int64_t{3} << 30;
  run.events[0].planned_masters = 0;
  const std::string page = html_report(std::vector{run, sample("b", 3)});
  expect_parts(page, {"GPU power", "Accuracy"});
  EXPECT_EQ(page.find("GPU temperature"), page.npos) << "this GPU has no such sensor";
  expect_parts(page, {"plan 4.00 GiB, most in use 2.00 GiB", "activations 3.00 GiB, 75"});
  EXPECT_EQ(page.find("masters"), page.npos) << "what needs nothing is not named";
}

std::string from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text.substr(0, text.find('='))) {
    bits = bits << 6 | uint32_t(kDigits.find(c));
    if ((count += 6) < 8) continue;
    count -= 8;
    out += char(bits >> count);
  }
  return out;
}

// A browser that keeps to the page's policy applies its style sheet and runs its script, and nothing else.
TEST(Report, ContentSecurityPolicyAllowsOnlyHashedContent) {
  const std::string page = html_report(std::vector{sample("a", 30)});
  EXPECT_EQ(page.find("unsafe-inline"), page.npos);
  EXPECT_EQ(page.find(" style=\""), page.npos) << "style attributes have no hash";
  EXPECT_NE(page.find("[data-at=\"left:100%\"]{left:100%}"), page.npos);
  for (const char* tag : {"style", "script"}) {
    const size_t begin = page.find(cat("<", tag, ">")) + std::strlen(tag) + 2, end = page.find(cat("</", tag, ">"));
    const Digest digest = sha256(page.substr(begin, end - begin));
    const size_t at = page.find(cat(tag, "-src 'sha256-")) + std::strlen(tag) + 13;
    EXPECT_EQ(page.substr(at + 44, 1), "'");
    EXPECT_EQ(from_base64(page.substr(at, 44)), std::string(digest.begin(), digest.end())) << tag;
  }
}

TEST(Report, ComparesSeveralRuns) {
  RunRecords a = sample("a", 10), b = sample("b", 20);
  a.config = {{"lr", "1"}, {"same", "x"}};
  b.config = {{"lr", "2"}, {"same", "x"}};
  const std::string page = html_report(std::vector{a, b});
  expect_parts(page, {"data-label=\"a\"", "data-label=\"b\""});
  EXPECT_LT(page.find("<th>lr</th><td>1</td><td>2</td>"), page.find("Common to all runs: 1 keys"));
}

TEST(Report, HostileTextIsEscaped) {
  const std::string evil = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;";
  RunRecords run = sample(evil, 5);
  run.config = {{evil, evil}};
  run.environment = {{"cpu_model", evil}, {evil, evil}};
  run.evals.push_back({.step = 5, .name = evil, .loss = 2});
  run.events.push_back({.kind = EventKind::warn, .step = 3, .text = evil});
  const std::string page = html_report(std::vector{run, run}, {.title = evil});
  EXPECT_EQ(page.find("<img"), page.npos);
  EXPECT_EQ(page.find("alert(1)</script>"), page.npos);
  EXPECT_EQ(page.find(evil), page.npos);
  size_t scripts = 0;
  for (size_t at = 0; (at = page.find("<script", at)) != page.npos; ++at) ++scripts;
  EXPECT_EQ(scripts, 1u);
}

TEST(Report, ManyStepsAreDownsampledKeepingExtremes) {
  RunRecords run = sample("long", 200000);
  EXPECT_LT(html_report(std::vector{run}).size(), 400000u);
  Chart chart{.title = "t", .unit = {}, .note = {}, .lines = {{.label = "l", .color = 0, .x = {}, .y = {}}}};
  for (int i = 0; i < 100000; ++i) {
    chart.lines[0].x.push_back(i);
    chart.lines[0].y.push_back(i == 77777 ? 2 : 1);
  }
  const std::string html = chart_html(chart);
  EXPECT_LT(html.size(), 40000u);
  EXPECT_NE(html.find("class=\"band"), html.npos);
  EXPECT_NE(html.find("data-y1=\"2."), html.npos) << "one step in a hundred thousand is seen: " << html.substr(0, 400);
}

TEST(Report, NoisyCurvesGetARunningMean) {
  const auto page_of = [](int64_t steps) { return html_report(std::vector{sample("run", steps)}); };
  const std::string many = page_of(400), few = page_of(99);
  expect_parts(many, {"class=\"raw c0\"", "running mean"});
  EXPECT_EQ(few.find("class=\"raw"), few.npos) << "few steps are shown as they are";
  EXPECT_EQ(few.find("running mean"), few.npos);
}

TEST(RunningMean, AveragesFiniteNeighbours) {
  EXPECT_EQ(running_mean({1, 2, 6, 4}, 3), (std::vector<double>{1.5, 3, 4, 5}));
  const std::vector<double> gap = running_mean({1, NAN, 3, INFINITY}, 3);
  EXPECT_EQ(gap[0], 1);
  EXPECT_TRUE(std::isnan(gap[1]) && std::isnan(gap[3]));
  EXPECT_EQ(gap[2], 3);
  EXPECT_EQ(running_mean({5, 7}, 1), (std::vector<double>{5, 7}));
  EXPECT_TRUE(std::isfinite(running_mean(std::vector<double>(9, 1e308), 9)[4]));
  // Every window of every width, by its definition.
  std::vector<double> y;
  for (int i = 0; i < 23; ++i) y.push_back(i * i % 17);
  for (size_t width = 1; width < 60; width += 2) {
    const std::vector<double> mean = running_mean(y, width);
    for (size_t i = 0; i < y.size(); ++i) {
      double sum = 0, count = 0;
      for (size_t k = 0; k < y.size(); ++k)
        if (k <= i + width / 2 && i <= k + width / 2) sum += y[k], ++count;
      EXPECT_NEAR(mean[i], sum / count, 1e-12) << i << " of width " << width;
    }
  }
}

TEST(Report, HandlesEmptyAndNonFiniteSeries) {
  const auto draw = [](std::vector<double> y) {
    Chart chart{.title = "t", .unit = {}, .note = {}, .lines = {{.label = "l", .color = 0, .x = {}, .y = y}}};
    for (size_t i = 0; i < y.size(); ++i) chart.lines[0].x.push_back(double(i));
    return chart_html(chart);
  };
  EXPECT_EQ(draw({}), "");
  EXPECT_EQ(draw({NAN, INFINITY}), "");
  for (const auto& y : std::vector<std::vector<double>>{{1},
                                                        {0, 0, 0},
                                                        {1, NAN, 3},
                                                        {-1e300, 1e300},
                                                        {5e-324, 1e-320},
                                                        {1, 1, INFINITY, 1},
                                                        {1e308},
                                                        {1e308, 1.7e308},
                                                        {-1e308, 1e308},
                                                        std::vector<double>(5000, 1e308)}) {
    const std::string html = draw(y);
    EXPECT_NE(html.find("class=\"line"), html.npos);
    EXPECT_EQ(html.find("nan"), html.npos) << html;
    EXPECT_EQ(html.find("inf"), html.npos) << html;
  }
  RunRecords empty;
  empty.name = "nothing yet";
  EXPECT_NE(html_report(std::vector{empty}).find("starting"), std::string::npos);
}

TEST(Report, ShowsQuantizationStatisticsIfRecorded) {
  std::vector<RunRecords> runs = {sample("low precision", 3)};
  EXPECT_EQ(html_report(runs).find("Rounding to low precision"), std::string::npos);
  runs[0].quantized = {
      {.step = 3, .layer = "h.0<b>", .operand = "forward_x", .dtype = "f8_e4m3", .values = 1000, .underflowed = 100}};
  const std::string html = html_report(runs);
  EXPECT_NE(html.find("Rounding to low precision"), std::string::npos);
  EXPECT_EQ(html.find("h.0<b>"), std::string::npos) << "names are escaped";
}

// The page's script shows the name and value of the x axis from these attributes.
TEST(Report, ChartsNameTheirXAxisForTheScript) {
  RunRecords run = sample("range", 20);
  for (StepMetrics& m : run.steps) m.learning_rate = std::pow(10, -0.25 * double(m.step));
  run.events.push_back({.kind = EventKind::end, .step = 20, .text = "done", .suggested_rate = 1e-3});
  const std::string page = html_report(std::vector{run});
  const std::string_view range = std::string_view(page).substr(page.find("Range test"));
  EXPECT_EQ(range.find("<div class=\"plot\" data-x=\"learning rate\" data-log-x data-x0=\"-5\""), range.find("<div"));
  const std::string_view loss = std::string_view(page).substr(page.find("Training loss"));
  EXPECT_EQ(loss.find("<div class=\"plot\" data-x=\"step\" data-x0=\"1\""), loss.find("<div"));
}

TEST(Report, TicksAreRoundAndFew) {
  EXPECT_EQ(ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(ticks(0.11, 0.42, 4), (std::vector<double>{0.2, 0.30000000000000004, 0.4}));
  for (const double scale : {1e-9, 1.0, 12345.0, 1e18})
    for (const int most : {1, 2, 3, 4, 5, 8})
      EXPECT_LE(ticks(-0.3 * scale, 0.9 * scale, most).size(), size_t(most) + 1);
  EXPECT_TRUE(ticks(1, 1, 4).empty());
  EXPECT_TRUE(ticks(0, INFINITY, 4).empty());
}

}  // namespace
}  // namespace athanor
