// Messages of errors that tests expect.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace athanor {

// The message of the Error that fn throws; "no error" if it throws none.
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(has(text, part)) << "\"" << part << "\" is not in: " << text;
}

// fn must throw an Error whose message has all the parts.
template <class Fn>
void expect_error(Fn&& fn, const std::vector<std::string>& parts) {
  expect_parts(error_of(fn), parts);
}
#define EXPECT_ERROR(action, ...) ::athanor::expect_error([&] { action; }, {__VA_ARGS__})

}  // namespace athanor
