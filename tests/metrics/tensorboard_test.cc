// Event files: decoded here by a small reader that checks frames and checksums, and by TensorBoard where it is
// installed.
#include "metrics/tensorboard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/checksum.h"
#include "metrics/jsonl.h"
#include "metrics/run_records.h"
#include "tests/files.h"
#include "tests/metrics/capture.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

using testing::TempDir;

// ---- the reader ----

template <class T>
T take_raw(std::string_view& bytes) {
  T value{};
  if (bytes.size() < sizeof(T)) throw Error("record is cut");
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

void check_crc(std::string_view data, uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  if (((rotated >> 17) | (rotated << 15)) != crc32c(data.data(), data.size())) throw Error("checksum differs");
}

std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (std::string_view rest = file; !rest.empty();) {
    const std::string_view length_bytes = rest.substr(0, 8);
    const uint64_t length = take_raw<uint64_t>(rest);
    check_crc(length_bytes, take_raw<uint32_t>(rest));
    if (rest.size() < length) throw Error("record is cut");
    records.emplace_back(rest.substr(0, length));
    rest.remove_prefix(length);
    check_crc(records.back(), take_raw<uint32_t>(rest));
  }
  return records;
}

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = take_raw<uint8_t>(bytes);
    value |= uint64_t(byte & 127) << shift;
    if (byte < 128) return value;
  }
}

// One field of a protobuf message; numbers as their bits.
struct Wire {
  uint64_t field = 0, bits = 0;
  std::string_view bytes;
};

std::vector<Wire> parse(std::string_view message) {
  std::vector<Wire> fields;
  while (!message.empty()) {
    const uint64_t key = take_varint(message);
    Wire wire{.field = key >> 3};
    if ((key & 7) == 0) wire.bits = take_varint(message);
    if ((key & 7) == 1) wire.bits = take_raw<uint64_t>(message);
    if ((key & 7) == 5) wire.bits = take_raw<uint32_t>(message);
    if ((key & 7) == 2) {
      const size_t length = take_varint(message);
      wire.bytes = message.substr(0, length);
      message.remove_prefix(length);
    }
    fields.push_back(wire);
  }
  return fields;
}

struct Event {
  double time = 0;
  int64_t step = 0;
  std::string version;
  int session = 0;  // SessionLog.status
  std::map<std::string, float> scalars;
};

void read_summary(std::string_view summary, Event& event) {
  for (const Wire& value : parse(summary)) {
    EXPECT_EQ(value.field, 1u);
    std::string tag;
    float number = 0;
    for (const Wire& part : parse(value.bytes)) {
      if (part.field == 1) tag = part.bytes;
      if (part.field == 2) std::memcpy(&number, &part.bits, 4);
    }
    EXPECT_TRUE(event.scalars.emplace(tag, number).second) << tag << " twice";
  }
}

std::vector<Event> read_events(const std::string& path) {
  std::vector<Event> events;
  for (const std::string& record : records_of(read_bytes(path))) {
    Event event;
    for (const Wire& wire : parse(record)) {
      if (wire.field == 1) std::memcpy(&event.time, &wire.bits, 8);
      if (wire.field == 2) event.step = int64_t(wire.bits);
      if (wire.field == 3) event.version = wire.bytes;
      if (wire.field == 5) read_summary(wire.bytes, event);
      if (wire.field == 7) event.session = int(parse(wire.bytes).at(0).bits);
    }
    events.push_back(std::move(event));
  }
  return events;
}

StepMetrics at(int64_t step, double loss) {
  StepMetrics m;
  m.step = step;
  m.total_steps = 1000;
  m.loss = loss;
  m.grad_norm = 0.5;
  m.time = 1.7e9 + double(step);
  return m;
}

// ---- tests ----

struct Tensorboard : ::testing::Test {
  TempDir dir;
};

TEST_F(Tensorboard, FirstRecordIsTheFileVersion) {
  const TensorboardSink sink(dir.path());
  const auto records = records_of(read_bytes(sink.path()));
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(read_events(sink.path())[0].version, "brain.Event:2");
  // wall_time: 9 bytes, step 0: 2, file_version: 2 + 13
  EXPECT_EQ(records[0].size(), 26u);
}

TEST_F(Tensorboard, RecreatedFileBeginsWithItsVersion) {
  TensorboardSink sink(dir.path());
  std::filesystem::remove(sink.path());
  sink.step(at(1, 2.5));
  const auto events = read_events(sink.path());
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
}

// From the format's documentation: length 38 has this checksum.
TEST_F(Tensorboard, FramesHaveTheKnownMaskedChecksum) {
  const std::string frame = tfrecord(std::string(38, 'x'));
  EXPECT_EQ(frame.substr(0, 12), std::string("\x26\0\0\0\0\0\0\0\x73\x4F\xE3\x00", 12));
  EXPECT_EQ(frame.size(), 8u + 4 + 38 + 4);
}

TEST_F(Tensorboard, ScalarsHaveTagStepTimeAndValue) {
  TensorboardSink sink(dir.path());
  StepMetrics m = at((int64_t(1) << 40) + 3, 2.25);
  m.memory_used = uint64_t(3) << 30;
  sink.step(m);
  const auto event = read_events(sink.path()).back();
  EXPECT_EQ(event.step, m.step);
  EXPECT_EQ(event.time, m.time);
  EXPECT_EQ(event.scalars.at("train/loss"), 2.25f);
  EXPECT_EQ(event.scalars.at("memory/used"), float(uint64_t(3) << 30));
  EXPECT_EQ(event.scalars.count("speed/mfu"), 0u) << "what is not known is no point of a curve";
  for (const auto& [tag, value] : event.scalars)
    EXPECT_TRUE(std::any_of(step_fields().begin(), step_fields().end(), [&](const auto& f) { return f.tag == tag; }))
        << tag;
}

// Every number of the JSON lines that has a tag is a scalar of the same value, and the other way round.
TEST_F(Tensorboard, MatchesTheJsonLines) {
  StepMetrics m = at(7, 2.25);
  double next = 1;
  for (const auto& field : step_fields())
    std::visit(
        [&]<class T>(T StepMetrics::*member) {
          if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::optional<double>>) m.*member = next++ / 8;
          if constexpr (std::is_same_v<T, std::optional<int64_t>>) m.*member = int64_t(next++);
          if constexpr (std::is_same_v<T, NamedValues>) m.*member = {{"web", next++ / 8}};
        },
        field.member);
  JsonlSink lines(dir / "metrics.jsonl");
  TensorboardSink sink(dir.path());
  lines.step(m);
  sink.step(m);
  RunRecords read;
  ASSERT_TRUE(parse_record(read_bytes(dir / "metrics.jsonl"), read));
  const auto scalars = read_events(sink.path()).back().scalars;
  size_t tagged = 0;
  for (const auto& field : step_fields()) {
    if (field.tag.empty()) continue;
    ++tagged;
    std::visit(
        [&]<class T>(T StepMetrics::*member) {
          const auto& value = read.steps.at(0).*member;
          const std::string tag(field.tag);
          if constexpr (std::is_arithmetic_v<T>) {
            EXPECT_EQ(scalars.at(tag), float(value)) << field.name;
          } else if constexpr (std::is_same_v<T, NamedValues>) {
            EXPECT_EQ(scalars.at("train/loss/web"), float(value.at(0).second)) << field.name;
          } else if constexpr (!std::is_same_v<T, std::string>) {
            EXPECT_EQ(scalars.at(tag), float(value.value())) << field.name;
          }
        },
        field.member);
  }
  EXPECT_EQ(scalars.size(), tagged);
}

TEST_F(Tensorboard, LogsNonFiniteLoss) {
  TensorboardSink sink(dir.path());
  sink.step(at(1, std::nan("")));
  EXPECT_TRUE(std::isnan(read_events(sink.path()).back().scalars.at("train/loss")));
}

TEST_F(Tensorboard, EvaluationsAreTaggedByTheirSet) {
  TensorboardSink sink(dir.path());
  sink.eval({.step = 4, .name = "wiki", .loss = 3, .perplexity = 20});
  const auto event = read_events(sink.path()).back();
  EXPECT_EQ(event.step, 4);
  EXPECT_EQ(event.scalars, (std::map<std::string, float>{{"eval/wiki/loss", 3}, {"eval/wiki/perplexity", 20}}));
}

TEST_F(Tensorboard, EveryStartOpensAFileThatSortsLastByName) {
  std::vector<std::string> paths;
  for (int start = 0; start < 4; ++start) paths.push_back(TensorboardSink(dir.path()).path());
  EXPECT_TRUE(std::is_sorted(paths.begin(), paths.end()));
  EXPECT_EQ(std::adjacent_find(paths.begin(), paths.end()), paths.end());
}

TEST_F(Tensorboard, RepeatedStepsAreMarkedByASessionStart) {
  TensorboardSink sink(dir.path());
  sink.event({.kind = EventKind::resume, .step = 6});
  sink.step(at(7, 1));
  sink.step(at(8, 1));
  sink.step(at(8, 2));  // back without a word
  std::vector<int64_t> starts;
  for (const Event& e : read_events(sink.path()))
    if (e.session == 1) starts.push_back(e.step);
  EXPECT_EQ(starts, (std::vector<int64_t>{7, 8}));
}

// A new file whose first step had no start event still purges the steps that it repeats.
TEST_F(Tensorboard, FirstStepOfAFileIsASessionStart) {
  TensorboardSink sink(dir.path());
  sink.step(at(5, 1));
  const auto events = read_events(sink.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].session, 1);
  EXPECT_EQ(events[1].step, 5);
}

TEST_F(Tensorboard, IntervalSkipsStepsButKeepsTheLast) {
  TensorboardSink sink(dir.path(), 400);
  for (int64_t s = 1; s <= 1000; ++s) sink.step(at(s, 1));
  std::vector<int64_t> steps;
  for (const Event& e : read_events(sink.path()))
    if (!e.scalars.empty()) steps.push_back(e.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{400, 800, 1000}));
}

TEST_F(Tensorboard, FailedFolderCreationWarnsOnce) {
  write_bytes(dir / "file", "");
  const std::string log = stderr_of([&] {
    TensorboardSink sink(dir / "file/tensorboard");
    for (int64_t s = 1; s <= 3; ++s) EXPECT_NO_THROW(sink.step(at(s, 1)));
  });
  EXPECT_EQ(count_of(log, "training continues without it"), 1) << log;
}

// TensorBoard's own view of a crash at step 8 and a resume from step 4.
TEST_F(Tensorboard, TensorboardReadsTheRunAndPurgesRepeatedSteps) {
  const char* chosen = std::getenv("ATHANOR_PYTHON");
  const std::string python = chosen != nullptr ? chosen : "python3";
  if (std::system((python + " -c 'import tensorboard' > /dev/null 2>&1").c_str()) != 0)
    GTEST_SKIP() << python << " has no tensorboard (set ATHANOR_PYTHON to an interpreter that has)";
  {
    TensorboardSink sink(dir / "tb");
    for (int64_t s = 1; s <= 8; ++s) sink.step(at(s, 1));
  }
  {
    TensorboardSink sink(dir / "tb");
    sink.event({.kind = EventKind::resume, .step = 4});
    for (int64_t s = 5; s <= 6; ++s) sink.step(at(s, 2));
  }
  write_bytes(dir / "read.py", R"(import sys, logging
logging.disable(logging.CRITICAL)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
run = EventAccumulator(sys.argv[1]).Reload()
print(" ".join(f"{e.step}:{e.value:g}" for e in run.Scalars("train/loss")))
)");
  const std::string out = dir / "out";
  ASSERT_EQ(std::system(cat(python, " ", dir / "read.py", " ", dir / "tb", " > ", out, " 2> /dev/null").c_str()), 0);
  EXPECT_EQ(read_bytes(out), "1:1 2:1 3:1 4:1 5:2 6:2\n");
}

}  // namespace
}  // namespace athanor
