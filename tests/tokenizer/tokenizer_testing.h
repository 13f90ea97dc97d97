// Helpers of this folder's tests: a folder that vanishes, random texts.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "tests/expect_error.h"
#include "tests/files.h"
#include "tests/temp_dir.h"

namespace athanor::testing {

inline const std::string kFixtures = "tests/tokenizer/fixtures/";

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
