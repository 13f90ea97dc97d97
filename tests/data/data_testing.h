// Helpers of this folder's tests: a folder that vanishes, and shards of any bytes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "tests/expect_error.h"
#include "tests/files.h"
#include "tests/temp_dir.h"

namespace athanor::testing {

template <class Item>
std::string raw(const std::vector<Item>& items) {
  return {reinterpret_cast<const char*>(items.data()), items.size() * sizeof(Item)};
}

// An llm.c shard whose header says what the arguments say, true or not.
template <class Item>
std::string llmc(const std::vector<Item>& tokens, std::optional<int32_t> count = {},
                 int32_t version = sizeof(Item) == 2 ? 1 : 7) {
  std::vector<int32_t> header(256);
  header[0] = sizeof(Item) == 2 ? 20240520 : 20240801;
  header[1] = version;
  header[2] = count.value_or(int32_t(tokens.size()));
  return raw(header) + raw(tokens);
}

// 0, 1, 2, ... modulo `modulus`, from `first` on.
inline std::vector<uint16_t> counting(int64_t count, int64_t first = 0, int64_t modulus = 60000) {
  std::vector<uint16_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(uint16_t((first + i) % modulus));
  return tokens;
}

// Tokens of several shards, one after the other.
inline std::vector<int32_t> tokens_of(const std::vector<std::string>& shards) {
  std::vector<int32_t> all;
  for (const std::string& path : shards) {
    const TokenFile file = TokenFile::open(path);
    std::vector<int32_t> tokens(size_t(file.count()));
    file.read(0, tokens);
    all.insert(all.end(), tokens.begin(), tokens.end());
  }
  return all;
}

}  // namespace athanor::testing
