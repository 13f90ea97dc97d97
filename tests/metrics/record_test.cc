// The table of fields: complete, unambiguous, and the one that configs/LOGS.md shows.
#include "metrics/record.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "tests/files.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {

template <class Record>
void expect_sound(std::span<const RecordField<Record>> fields) {
  std::set<std::string_view> names, tags;
  for (const auto& f : fields) {
    EXPECT_TRUE(names.insert(f.name).second) << f.name;
    EXPECT_FALSE(f.help.empty()) << f.name;
    EXPECT_TRUE(f.tag.empty() || tags.insert(f.tag).second) << f.tag;
  }
}

TEST(Record, NamesAndTagsAreUniqueAndDescribed) {
  expect_sound(step_fields());
  expect_sound(eval_fields());
  expect_sound(quantized_fields());
  expect_sound(routing_fields());
  expect_sound(pruned_fields());
  expect_sound(communication_fields());
  expect_sound(event_fields());
}

// Every member is in the table: the bytes of the struct that no field covers are padding only.
TEST(Record, TableCoversStepMetrics) {
  size_t bytes = 0;
  for (const auto& f : step_fields())
    std::visit(
        [&](auto member) {
          StepMetrics m;
          bytes += sizeof(m.*member);
        },
        f.member);
  EXPECT_EQ(bytes + 7, sizeof(StepMetrics)) << "one bool is followed by 7 bytes of padding";
}

TEST(Record, EventNamesRoundTrip) {
  for (EventKind kind :
       {EventKind::start, EventKind::checkpoint, EventKind::resume, EventKind::restart, EventKind::branch,
        EventKind::skip, EventKind::signal, EventKind::warn, EventKind::error, EventKind::end})
    EXPECT_EQ(event_kind(to_string(kind)), kind);
  EXPECT_FALSE(event_kind("step")) << "the name of step records must stay free";
  EXPECT_FALSE(event_kind("eval"));
  EXPECT_FALSE(event_kind("quantized"));
  EXPECT_FALSE(event_kind("communication"));
  EXPECT_FALSE(event_kind("routing"));
  EXPECT_FALSE(event_kind("pruned"));
  EXPECT_FALSE(event_kind(""));
}

TEST(Record, DocumentationShowsTheTable) {
  const std::string doc = read_bytes("configs/LOGS.md");
  ASSERT_FALSE(doc.empty()) << "configs/LOGS.md is missing";
  EXPECT_NE(doc.find(fields_markdown()), std::string::npos)
      << "configs/LOGS.md does not hold the table of src/metrics/record.cc; it should read\n"
      << fields_markdown();
}

}  // namespace
}  // namespace athanor
