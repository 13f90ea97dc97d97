// Deep JSON is refused before anybody walks it.
#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace athanor {
namespace {

TEST(JsonDepth, CountsNestingOutsideStrings) {
  EXPECT_TRUE(json_depth_within("", 0));
  EXPECT_TRUE(json_depth_within("[[1], {\"a\": []}]", 2) == false);
  EXPECT_TRUE(json_depth_within("[[1], {\"a\": 1}]", 2));
  EXPECT_TRUE(json_depth_within("[\"[[[[\", \"\\\"[[[\", \"\\\\\"]", 1));
  EXPECT_FALSE(json_depth_within("[\"\\\\\", [[", 2));
  EXPECT_TRUE(json_depth_within("[\"unfinished [[[[\\", 1));
  EXPECT_TRUE(json_depth_within(std::string(100, '[') + std::string(100, ']'), 100));
  EXPECT_FALSE(json_depth_within(std::string(1'000'000, '['), 100));
  EXPECT_THROW(require_json_depth(std::string(1000, '{'), "here"), Error);
}

TEST(JsonProblem, DropsTheLibraryPrefixAndLimitsTheLength) {
  EXPECT_EQ(json_problem("[json.exception.parse_error.101] parse error at line 1, column 2: x"),
            "parse error at line 1, column 2: x");
  EXPECT_EQ(json_problem("[json.exception.x]"), "[json.exception.x]");
  EXPECT_EQ(json_problem("[1] is no name"), "[1] is no name");
  EXPECT_EQ(json_problem(std::string(5000, 'x')).size(), 203u);
}

TEST(Json, NumbersBeyondDoubleAreAnErrorThatNamesTheFile) {
  try {
    parse_json_text<nlohmann::json>(R"({"x": 1e999})", "file.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("file.json: not JSON: number overflow"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace athanor
