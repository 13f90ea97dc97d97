// Any text is a manifest that reads back the same, or ends in an Error. The text is also tried as the part behind a
// correct checksum, so that the checks after it are reached.
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Isrc tests/fuzz/manifest_fuzz.cc \
//     src/checkpoint/{manifest,safetensors,strict_json}.cc src/base/{error,file,checksum}.cc -o manifest_fuzz
#include <cstdint>
#include <string>
#include <string_view>

#include "base/checksum.h"
#include "base/error.h"
#include "checkpoint/manifest.h"

namespace {

using namespace athanor;

void try_text(const std::string& text) {
  try {
    const Manifest m = parse_manifest(text, "fuzz");
    const std::string again = manifest_json(m);
    if (manifest_json(parse_manifest(again, "again")) != again) __builtin_trap();
    for (const ManifestTensor& t : m.tensors) {
      const Shape piece = t.piece_shape();
      for (int i = 0; i < piece.rank; ++i)
        if (piece[i] < 0 || piece[i] > t.shape[i]) __builtin_trap();
    }
    for (const ManifestFile& f : m.files)
      if (!is_plain_file_name(f.name)) __builtin_trap();
  } catch (const Error& e) {
    if (std::string_view(e.what()).starts_with("again")) __builtin_trap();  // our own output must be accepted
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try_text(text);
  try_text("{\n \"xxh3\": \"" + xxh3_hex(std::string_view(text)) + "\"," + text);
  return 0;
}
