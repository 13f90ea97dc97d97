// metrics.jsonl: always valid JSON, exact round trip, and the effective series over crashes and restarts.
#include "metrics/jsonl.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "metrics/run_records.h"
#include "tests/expect_error.h"
#include "tests/files.h"
#include "tests/metrics/capture.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using testing::TempDir;
using Json = nlohmann::json;
constexpr double kInf = std::numeric_limits<double>::infinity();

StepMetrics at(int64_t step, double loss = 2.5) {
  StepMetrics m;
  m.step = step;
  m.total_steps = 100;
  m.loss = loss;
  m.grad_norm = 0.1 * double(step);
  m.time = 1.7e9 + double(step);
  return m;
}

std::vector<int64_t> steps_of(const RunRecords& history) {
  std::vector<int64_t> steps;
  for (const auto& m : history.steps) steps.push_back(m.step);
  return steps;
}

using Steps = std::vector<int64_t>;

struct Jsonl : ::testing::Test {
  TempDir dir;
  std::string path = dir / "metrics.jsonl";
};

TEST_F(Jsonl, EveryFieldReadsBackExactly) {
  StepMetrics m = at(7, 1.0 / 3.0);
  m.consumed_tokens = (int64_t(1) << 53) + 1;  // not a double
  m.memory_used = UINT64_MAX;
  m.skipped = true;
  m.gpu_watts = 3.25;
  m.mfu = 0.4123;
  m.source_losses = {{"web \"{name}\"", 1.0 / 7.0}, {"code", 2}};
  JsonlSink(path).step(m);
  const auto history = read_run(dir.path());
  ASSERT_EQ(history.steps.size(), 1u);
  const auto same = [](const auto& a, const auto& b) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(a)>, double>) return a == b || (a != a && b != b);
    return a == b;
  };
  for (const auto& f : step_fields())
    std::visit([&](auto member) { EXPECT_TRUE(same(m.*member, history.steps[0].*member)) << f.name; }, f.member);
}

TEST_F(Jsonl, NonFiniteNumbersAreNullWithTheirName) {
  StepMetrics m = at(1, std::nan(""));
  m.grad_norm = kInf;
  m.learning_rate = -kInf;
  m.gpu_watts = std::nan("");
  m.source_losses = {{"a", kInf}};
  const Json json = Json::parse(json_line(m));
  EXPECT_TRUE(json.at("loss").is_null());
  EXPECT_EQ(json.at("loss_nonfinite"), "nan");
  EXPECT_EQ(json.at("grad_norm_nonfinite"), "inf");
  EXPECT_EQ(json.at("learning_rate_nonfinite"), "-inf");
  EXPECT_EQ(json.at("gpu_watts_nonfinite"), "nan");
  EXPECT_TRUE(json.at("mfu").is_null());
  EXPECT_FALSE(json.contains("mfu_nonfinite")) << "not known is no value";
  EXPECT_TRUE(json.at("source_losses").at("a").is_null());

  JsonlSink(path).step(m);
  const auto back = read_run(dir.path()).steps.at(0);
  EXPECT_TRUE(std::isnan(back.loss));
  EXPECT_EQ(back.grad_norm, kInf);
  EXPECT_EQ(back.learning_rate, -kInf);
  EXPECT_TRUE(back.gpu_watts && std::isnan(*back.gpu_watts));
}

TEST_F(Jsonl, TextIsEscapedAndConvertedToUtf8) {
  EventRecord e{
      .kind = EventKind::warn, .step = 3, .text = "a \"b\"\\\n\t\x01\x7f \xC3\xA9 \xFF \xE2\x82 \xF0\x9F\x94\xA5"};
  const std::string line = json_line(e);
  EXPECT_EQ(line.find('\n'), std::string::npos) << "one record, one line";
  EXPECT_EQ(Json::parse(line).at("text"),
            "a \"b\"\\\n\t\x01\x7f \xC3\xA9 \xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD \xF0\x9F\x94\xA5");
}

// Surrogates, overlong forms and code points above U+10FFFF are invalid UTF-8.
TEST_F(Jsonl, InvalidSequencesDoNotReachTheFile) {
  for (const char* bad : {"\xED\xA0\x80", "\xC0\xAF", "\xE0\x80\x80", "\xF4\x90\x80\x80", "\xF8\x88", "\x80", "\xC3"}) {
    const Json json = Json::parse(json_line(EventRecord{.text = bad}), nullptr, false);
    ASSERT_FALSE(json.is_discarded());
    EXPECT_EQ(json.at("text").get<std::string>().find_first_not_of("\xEF\xBF\xBD"), std::string::npos);
  }
}

TEST_F(Jsonl, FlushesEveryLine) {
  JsonlSink sink(path);
  sink.step(at(1));
  EXPECT_EQ(steps_of(read_run(dir.path())), (Steps{1})) << "while the sink is open";
}

TEST_F(Jsonl, CreatesMissingFolders) {
  JsonlSink(dir / "run/a/metrics.jsonl").step(at(1));
  EXPECT_EQ(read_run(dir / "run/a").steps.size(), 1u);
}

// ---- restarts ----

TEST_F(Jsonl, ResumeMarksRepeatedSteps) {
  {
    JsonlSink sink(path);
    for (int64_t s = 1; s <= 9; ++s) sink.step(at(s, 1.0));
    sink.eval({.step = 5, .loss = 4});
    sink.eval({.step = 8, .loss = 5});
  }
  {
    JsonlSink sink(path);
    sink.event({.kind = EventKind::resume, .step = 6, .text = "from step-6"});
    for (int64_t s = 7; s <= 10; ++s) sink.step(at(s, 2.0));
  }
  expect_parts(read_bytes(path),
               {"\"event\": \"resume\", \"step\": 6, \"text\": \"from step-6\"", "\"supersedes_from\": 7"});
  const auto history = read_run(dir.path());
  EXPECT_EQ(steps_of(history), (Steps{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(history.steps[5].loss, 1.0);
  EXPECT_EQ(history.steps[6].loss, 2.0) << "the repeated step counts";
  ASSERT_EQ(history.evals.size(), 1u) << "the evaluation at step 8 is void";
  EXPECT_EQ(history.evals[0].step, 5);
  EXPECT_EQ(history.unreadable_lines, 0);
}

TEST_F(Jsonl, ResumeAtTheLastStepSupersedesNothing) {
  JsonlSink(path).step(at(1));
  JsonlSink(path).event({.kind = EventKind::resume, .step = 1});
  EXPECT_EQ(read_bytes(path).find("supersedes_from"), std::string::npos);
  EXPECT_EQ(read_run(dir.path()).events.size(), 1u);
}

TEST_F(Jsonl, MarksRepeatedStepsWithoutAResumeEvent) {
  for (double loss : {1.0, 2.0}) {
    JsonlSink sink(path);
    for (int64_t s = 1; s <= 3; ++s) sink.step(at(s, loss));
  }
  EXPECT_EQ(count_of(read_bytes(path), "\"supersedes_from\": 1"), 1);
  const auto history = read_run(dir.path());
  EXPECT_EQ(steps_of(history), (Steps{1, 2, 3}));
  EXPECT_EQ(history.steps[0].loss, 2.0);
}

TEST_F(Jsonl, MarksAStepWrittenTwice) {
  JsonlSink sink(path);
  sink.step(at(3));
  sink.step(at(3));
  EXPECT_EQ(count_of(read_bytes(path), "\"supersedes_from\": 3"), 1);
}

// A run that dies between its resume and its first step leaves a resume event as its last line.
TEST_F(Jsonl, SecondResumeAtTheSameStepSupersedesNothing) {
  {
    JsonlSink sink(path);
    for (int64_t s = 1; s <= 6; ++s) sink.step(at(s));
  }
  for (int i = 0; i < 3; ++i) JsonlSink(path).event({.kind = EventKind::resume, .step = 4});
  EXPECT_EQ(count_of(read_bytes(path), "supersedes_from"), 1);
  EXPECT_EQ(read_run(dir.path()).events.size(), 3u);
}

TEST_F(Jsonl, TwoRestartsFromDifferentStepsCompose) {
  const auto run = [&](int64_t from, int64_t to, double loss) {
    JsonlSink sink(path);
    if (from > 0) sink.event({.kind = EventKind::resume, .step = from});
    for (int64_t s = from + 1; s <= to; ++s) sink.step(at(s, loss));
  };
  run(0, 10, 1);
  run(4, 6, 2);
  run(6, 8, 3);  // nothing to supersede: the effective series ends at 6
  run(2, 3, 4);
  const auto history = read_run(dir.path());
  EXPECT_EQ(steps_of(history), (Steps{1, 2, 3}));
  EXPECT_EQ(history.steps[2].loss, 4);
  EXPECT_EQ(count_of(read_bytes(path), "supersedes_from"), 2);
}

TEST_F(Jsonl, RepeatedEvaluationOfAStepCountsOnce) {
  JsonlSink sink(path);
  sink.eval({.step = 5, .name = "a", .loss = 1});
  sink.eval({.step = 5, .name = "b", .loss = 2});
  sink.event({.kind = EventKind::resume, .step = 5});
  sink.eval({.step = 5, .name = "a", .loss = 3});
  const auto evals = read_run(dir.path()).evals;
  ASSERT_EQ(evals.size(), 2u);
  EXPECT_EQ(evals[0].name, "b");
  EXPECT_EQ(evals[1].loss, 3);
}

TEST_F(Jsonl, FindsOnlyEvaluationsThatAreNotSuperseded) {
  EXPECT_FALSE(evaluations_after(path, 5).contains("valid"));
  JsonlSink sink(path);
  for (int64_t s = 1; s <= 8; ++s) sink.step({.step = s, .loss = 1});
  sink.eval({.step = 5, .loss = 1});
  sink.eval({.step = 8, .name = "choices", .loss = 1});
  EXPECT_TRUE(evaluations_after(path, 5).contains("valid"));
  EXPECT_FALSE(evaluations_after(path, 5).contains("choices"));
  EXPECT_FALSE(evaluations_after(path, 8).contains("valid"));
  EXPECT_TRUE(evaluations_after(path, 8).contains("choices"));
  sink.event({.kind = EventKind::resume, .step = 5});  // from 6 on all is void
  EXPECT_TRUE(evaluations_after(path, 5).contains("valid"));
  EXPECT_FALSE(evaluations_after(path, 8).contains("choices"));
}

// ---- damage ----

// kill -9 in the middle of a write, at bytes all over the line, its newline alone included.
TEST_F(Jsonl, PartialLastLineIsTruncated) {
  {
    JsonlSink sink(path);
    sink.step(at(1));
    sink.step(at(2));
  }
  const std::string whole = read_bytes(path);
  const size_t first = whole.find('\n') + 1;
  std::vector<size_t> sizes = {whole.size() - 1};
  for (size_t size = first; size < whole.size(); size += 23) sizes.push_back(size);
  for (size_t size : sizes) {
    write_bytes(path, whole.substr(0, size));
    EXPECT_EQ(read_run(dir.path()).steps.size(), size + 1 == whole.size() ? 2u : 1u) << "all but its newline is there";
    EXPECT_EQ(read_run(dir.path()).unreadable_lines, 0) << "it may still be written";
    JsonlSink(path).step(at(2, 9.0));
    const auto history = read_run(dir.path());
    EXPECT_EQ(steps_of(history), (Steps{1, 2}));
    EXPECT_EQ(history.steps[1].loss, 9.0);
    EXPECT_EQ(history.unreadable_lines, 0) << "the torn line is gone";
  }
}

TEST_F(Jsonl, MalformedLinesAreCountedAndIgnored) {
  const std::string deep(100'000, '[');
  write_bytes(path,
              json_line(at(1)) + "\n" + "not json\n" + "[1, 2]\n" + "{\"event\": \"step\"}\n" +
                  "{\"event\": \"step\", \"step\": -4}\n" + "{\"event\": \"step\", \"step\": 18446744073709551615}\n" +
                  "{\"event\": \"step\", \"step\": 1e3}\n" + "{\"event\": 5, \"step\": 3}\n" + deep + "\n" +
                  std::string("\0\0\0", 3) + "\n" + "{\"event\": \"resume\", \"step\": 1, \"supersedes_from\": -9}\n" +
                  "{\"event\": \"party\", \"step\": 1}\n" +
                  "{\"event\": \"step\", \"step\": 2, \"loss\": \"x\", \"skipped\": 3, \"consumed_tokens\": 1e300}\n");
  const auto history = read_run(dir.path());
  EXPECT_EQ(steps_of(history), (Steps{1, 2}));
  EXPECT_EQ(history.unreadable_lines, 10);
  EXPECT_TRUE(std::isnan(history.steps[1].loss));
  EXPECT_FALSE(history.steps[1].skipped);
  EXPECT_EQ(history.steps[1].consumed_tokens, 0);
}

TEST_F(Jsonl, FindsTheLastStepBehindManyEventsAndALongLine) {
  {
    JsonlSink sink(path);
    sink.step(at(41));
    sink.event({.kind = EventKind::warn, .step = 41, .text = std::string(300'000, 'x')});
    for (int i = 0; i < 2000; ++i) sink.event({.kind = EventKind::checkpoint, .step = 41});
  }
  JsonlSink(path).event({.kind = EventKind::resume, .step = 40});
  EXPECT_EQ(count_of(read_bytes(path), "\"supersedes_from\": 41"), 1);
}

// ---- a sink that cannot write ----

TEST_F(Jsonl, FullDiskWarnsOnceAndTrainingContinues) {
  const std::string log = stderr_of([] {
    JsonlSink sink("/dev/full");
    for (int64_t s = 1; s <= 5; ++s) EXPECT_NO_THROW(sink.step(at(s)));
  });
  EXPECT_EQ(count_of(log, "warn"), 1) << log;
  expect_parts(log, {"/dev/full cannot be written: No space left on device", "training continues without it"});
}

// A pipe instead of the file must not block a run until another process opens it.
TEST_F(Jsonl, PipeInsteadOfAFileDoesNotBlock) {
  const std::string pipe = dir / "metrics.jsonl";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(evaluations_after(pipe, 1).empty());
  EXPECT_THROW(read_run(dir.path()), Error);
  const std::string log = stderr_of([&] { JsonlSink(pipe).step(at(1)); });
  EXPECT_NE(log.find("training continues without it"), std::string::npos) << log;
}

TEST_F(Jsonl, FailedOpenWarnsOnce) {
  write_bytes(dir / "file", "");
  const std::string log = stderr_of([&] {
    JsonlSink sink(dir / "file/metrics.jsonl");  // below a file, not a folder
    for (int64_t s = 1; s <= 5; ++s) EXPECT_NO_THROW(sink.step(at(s)));
  });
  EXPECT_EQ(count_of(log, "cannot be opened: creating the folder"), 1) << log;
}

}  // namespace
}  // namespace athanor
