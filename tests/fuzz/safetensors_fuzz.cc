// Any bytes are a safetensors file that obeys every rule, or end in an Error; the same for a weight index.
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Isrc tests/fuzz/safetensors_fuzz.cc \
//     src/checkpoint/{safetensors,safetensors_writer,weights,manifest,strict_json}.cc src/base/{error,file,checksum}.cc
//     \ -o safetensors_fuzz
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"

namespace {

using namespace athanor;

void require(bool law, const char* what) {
  if (law) return;
  std::fprintf(stderr, "broken law: %s\n", what);
  std::abort();
}

// Invariants that callers of an accepted header rely on.
void check_laws(const SafetensorsHeader& header, int64_t file_bytes) {
  int64_t next = header.data_begin();
  std::set<std::string_view> names;
  for (const TensorEntry& t : header.tensors) {
    require(t.offset == next && t.bytes >= 0, "tensors lie back to back");
    next += t.bytes;
    require(next <= file_bytes, "no tensor leaves the file");
    require(names.insert(t.name).second, "names are unique");
    for (int64_t d : t.shape) require(d >= 0, "dimensions are not negative");
  }
  require(next == file_bytes, "nothing follows the last tensor");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (size >= 8) {
    try {
      const int64_t n = parse_safetensors_length(bytes.first<8>(), int64_t(size), "fuzz");
      check_laws(parse_safetensors_header(text.substr(8, size_t(n)), int64_t(size), "fuzz"), int64_t(size));
    } catch (const Error&) {
    }
  }
  // The header alone, with the file as long as its last byte says: the length field is no obstacle.
  const int64_t file_bytes = int64_t(8 + size) + (size ? data[size - 1] : 0);
  try {
    check_laws(parse_safetensors_header(text, file_bytes, "fuzz"), file_bytes);
  } catch (const Error&) {
  }
  try {
    for (const auto& [tensor, file] : parse_weight_index(text, "fuzz"))
      require(file.find('/') == file.npos && file != ".." && !file.empty(), "files stay in the folder");
  } catch (const Error&) {
  }
  return 0;
}
