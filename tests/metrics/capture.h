// Captures what a scope writes to standard error (log lines, the bar), as text.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace athanor {

inline std::string stderr_of(const std::function<void()>& run) {
  ::testing::internal::CaptureStderr();
  run();
  return ::testing::internal::GetCapturedStderr();
}

inline int count_of(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + word.size())) ++count;
  return count;
}

}  // namespace athanor
