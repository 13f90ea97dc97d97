// The timeline: valid JSON with what viewers need, bounded on disk and in memory, readable after a kill.
#include "metrics/trace.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "tests/files.h"
#include "tests/metrics/capture.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using testing::TempDir;
using Json = nlohmann::json;
using std::chrono::microseconds;

struct Trace : ::testing::Test {
  TempDir dir;
};

TEST_F(Trace, HoldsSpansNamesAndCounters) {
  const auto before = TraceWriter::Clock::now();
  std::chrono::duration<double, std::micro> opening{};
  {
    TraceWriter trace(dir / "trace.json", {.pid = 3});
    const auto opened = TraceWriter::Clock::now(), begin = opened + std::chrono::seconds(1);
    opening = opened - before;
    trace.process_name("rank 3");
    trace.thread_name(1, "loader \"0\"");
    trace.complete({.name = "forward", .category = "step", .tid = 1, .begin = begin, .end = begin + microseconds(250)});
    trace.counter("memory", 1.5);
    TraceScope scope(&trace, "scope", 2);
  }
  const Json events = Json::parse(read_bytes(dir / "trace.json"));
  ASSERT_EQ(events.size(), 5u);
  for (const Json& e : events) {
    EXPECT_EQ(e.at("pid"), 3);
    EXPECT_TRUE(e.at("ts").is_number());
  }
  EXPECT_EQ(events[0].at("ph"), "M");
  EXPECT_EQ(events[0].at("args").at("name"), "rank 3");
  EXPECT_EQ(events[1].at("name"), "thread_name");
  EXPECT_EQ(events[1].at("args").at("name"), "loader \"0\"");
  EXPECT_EQ(events[2].at("ph"), "X");
  EXPECT_EQ(events[2].at("cat"), "step");
  EXPECT_EQ(events[2].at("tid"), 1);
  EXPECT_EQ(events[2].at("dur"), 250);
  EXPECT_GE(events[2].at("ts").get<double>(), 1e6 - 1);  // times count from a moment within the opening of the trace
  EXPECT_LE(events[2].at("ts").get<double>(), 1e6 + 1 + opening.count());
  EXPECT_EQ(events[3].at("ph"), "C");
  EXPECT_EQ(events[3].at("args").at("value"), 1.5);
  EXPECT_EQ(events[4].at("name"), "scope");
  EXPECT_EQ(events[4].at("tid"), 2);
  EXPECT_GE(events[4].at("dur").get<double>(), 0);
}

TEST_F(Trace, EmptyTraceIsAnEmptyArray) {
  TraceWriter(dir / "trace.json").close();
  EXPECT_EQ(Json::parse(read_bytes(dir / "trace.json")), Json::array());
}

TEST_F(Trace, ReplacesAnOlderFile) {
  write_bytes(dir / "trace.json", std::string(10'000, 'x'));
  TraceWriter(dir / "trace.json").counter("a", 1);
  EXPECT_EQ(Json::parse(read_bytes(dir / "trace.json")).size(), 1u);
}

// A killed run leaves the array open: viewers close it, as this test does.
TEST_F(Trace, IsReadableWithoutItsEnd) {
  TraceWriter trace(dir / "trace.json", {.buffer_bytes = 1000});
  for (int i = 0; i < 1000; ++i) trace.counter("event", 1);
  const std::string so_far = read_bytes(dir / "trace.json");
  EXPECT_GT(so_far.size(), 40'000u) << "written while the run goes on";
  EXPECT_GT(Json::parse(so_far + "]").size(), 900u);
}

TEST_F(Trace, FileSizeIsBoundedAndDroppedSpansAreReported) {
  TraceWriter trace(dir / "trace.json", {.max_bytes = 5000});
  for (int i = 0; i < 1000; ++i) trace.counter("event", 1);
  trace.close();
  EXPECT_GT(trace.dropped(), 800);
  const std::string text = read_bytes(dir / "trace.json");
  EXPECT_LE(text.size(), 5100u);
  EXPECT_EQ(int64_t(Json::parse(text).size()), 1000 - trace.dropped());
}

TEST_F(Trace, IsThreadSafe) {
  {
    TraceWriter trace(dir / "trace.json");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 500; ++i) TraceScope(&trace, "work", t);
      });
    for (auto& t : threads) t.join();
  }
  EXPECT_EQ(Json::parse(read_bytes(dir / "trace.json")).size(), 2000u);
}

TEST_F(Trace, FullDiskWarnsOnceAndTrainingContinues) {
  const std::string log = stderr_of([] {
    TraceWriter trace("/dev/full", {.buffer_bytes = 100});
    for (int i = 0; i < 100; ++i) EXPECT_NO_THROW(trace.counter("event", 1));
    trace.close();
    EXPECT_EQ(trace.dropped(), 100);
  });
  EXPECT_EQ(count_of(log, "training continues without it"), 1) << log;
}

// A gap in the middle of a timeline would mislead: it ends at the first failure, validly.
TEST_F(Trace, EndsAtTheFirstFailedWrite) {
  TraceWriter trace(dir / "trace.json", {.buffer_bytes = 200});
  for (int i = 0; i < 50; ++i) trace.counter("before", 1);
  stderr_of([&] {
    const FileSizeLimit limit(1000);
    for (int i = 0; i < 50; ++i) trace.counter("lost", 1);
  });
  for (int i = 0; i < 50; ++i) trace.counter("after", 1);
  trace.close();
  const std::string text = read_bytes(dir / "trace.json");
  EXPECT_EQ(text.find("after"), std::string::npos);
  EXPECT_GT(Json::parse(text).size(), 10u);
  EXPECT_GE(trace.dropped(), 50);
}

TEST_F(Trace, ScopeWithoutAWriterDoesNothing) { EXPECT_NO_THROW(TraceScope(nullptr, "scope")); }

}  // namespace
}  // namespace athanor
