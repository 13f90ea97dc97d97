// Helpers of this folder's tests: a folder that vanishes, the message of an expected Error, random texts.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "tests/temp_dir.h"

namespace athanor::testing {

inline const std::string kFixtures = "tests/tokenizer/fixtures/";

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The message of the Error that fn throws; a test failure when it throws none.
template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "expected an Error";
  return "";
}

inline void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" in: " << text;
}

// Text of fragments that patterns, merges and normalization treat in different ways, some of them no UTF-8.
inline std::string random_text(uint64_t seed, int pieces) {
  static const std::vector<std::string> fragments = {" ",
                                                     "  ",
                                                     "\n",
                                                     "\r\n",
                                                     "\t",
                                                     "'s",
                                                     "'LL",
                                                     "the",
                                                     " The",
                                                     "Hello",
                                                     "x",
                                                     "12",
                                                     "1234",
                                                     "!?",
                                                     "//",
                                                     "é",
                                                     "e\u0301",
                                                     "中文",
                                                     "한국",
                                                     "ᄀ",
                                                     "ᅡ",
                                                     "\u0345",
                                                     "\u0334",
                                                     "😀",
                                                     "\u00a0",
                                                     "\xff",
                                                     "\xe4\xb8",
                                                     "\x80",
                                                     std::string(1, '\0'),
                                                     "<|endoftext|>",
                                                     "<tool_call>",
                                                     "<|",
                                                     "ǅ",
                                                     "ʰ",
                                                     "½",
                                                     "aaaa",
                                                     "abab"};
  std::string text;
  for (int i = 0; i < pieces; ++i) text += fragments[random_bits(seed, 9, uint64_t(i)) % fragments.size()];
  return text;
}

}  // namespace athanor::testing
