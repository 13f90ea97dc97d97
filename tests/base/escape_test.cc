// Text from files and other programs reaches a terminal escaped, never as control sequences.
#include "base/escape.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "base/log.h"

namespace athanor {
namespace {

TEST(Escape, ControlCharactersAndInvalidUtf8AreEscaped) {
  EXPECT_EQ(escape_controls("plain text, ü and 漢字 😀\n\tnext"), "plain text, ü and 漢字 😀\n\tnext");
  EXPECT_EQ(escape_controls("\x1b]0;title\x07"), "\\x1b]0;title\\x07");
  EXPECT_EQ(escape_controls("a\rb\x7f"), "a\\x0db\\x7f");
  EXPECT_EQ(escape_controls("\xc2\x9b"
                            "31m"),
            "\\xc2\\x9b"
            "31m")
      << "CSI as one character";
  EXPECT_EQ(escape_controls("\x9b"
                            "31m \xff"),
            "\\x9b"
            "31m \\xff")
      << "and as one byte";
  EXPECT_EQ(escape_controls("\xc2\xa0"), "\xc2\xa0");
  EXPECT_EQ(escape_controls("\xed\xa0\x80 \xe0\x80\x80 \xf4\x90\x80\x80 \xe2\x82"),
            "\\xed\\xa0\\x80 \\xe0\\x80\\x80 \\xf4\\x90\\x80\\x80 \\xe2\\x82");
  EXPECT_EQ(escape_controls("a\nb", ""), "a\\x0ab");
}

TEST(Escape, LogLinesAreEscaped) {
  testing::internal::CaptureStderr();
  log::error("file \x1b[2Jname");
  EXPECT_NE(testing::internal::GetCapturedStderr().find("file \\x1b[2Jname"), std::string::npos);
}

}  // namespace
}  // namespace athanor
