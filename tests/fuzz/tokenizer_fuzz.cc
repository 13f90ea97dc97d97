// libFuzzer target: any bytes as a tokenizer file of any format, as a descriptor, as a line of JSON and as a text.
// Whatever they are, reading them ends in a tokenizer that gives every text back, or in an Error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/json_line.h"
#include "tests/fuzz/laws.h"
#include "tokenizer/files.h"
#include "tokenizer/subword_tokenizer.h"

namespace {

using namespace athanor;

// A tokenizer of bytes that neither normalizes nor removes anything gives a text back to the byte, and any one the same
// ids however it is cut.
void use(SubwordParts parts, std::string_view text, bool removes = false) {
  const bool exact = !removes && !parts.characters && parts.normalizer.empty();
  const SubwordTokenizer tokenizer(std::move(parts), {.type = "fuzz", .eod_id = 0, .allow_special = true}, {});
  const auto ids = tokenizer.encode(text);
  const std::string back = tokenizer.decode(ids, TextPlace::document);
  require(!exact || back == text);
  const size_t cut = tokenizer.last_cut(text, 0, text.size());
  require(cut <= text.size());
  auto both = tokenizer.encode(text.substr(0, cut));
  for (const int32_t id : tokenizer.encode(text.substr(cut), cut == 0 ? TextPlace::document : TextPlace::inside))
    both.push_back(id);
  require(both == ids);
}

// The fast scanner and the library agree on lines that the library takes; it is stricter about UTF-8 and numbers.
void read_line(std::string_view line) {
  std::string text;
  bool found = false;
  try {
    found = json_line_text(line, "text", text);
  } catch (const Error&) {
    found = false;
  }
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || line.find_first_of("\n\v\f") != line.npos || line.find('\\') != line.npos) return;
  if (json.contains("text") && json["text"].is_string()) require(found && text == json["text"].get<std::string>());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t half = input.size() / 2;
  survive([&] {
    SubwordParts parts = parse_rank_file(input, "fuzz");
    parts.splitter.add("o200k");
    use(std::move(parts), input);
  });
  survive([&] { use(parse_gpt2(input.substr(0, half), "vocab", input.substr(half), "merges"), input); });
  survive([&] { use(parse_huggingface(input, "fuzz"), input, input.find("Removed") != input.npos); });
  survive([&] { parse_descriptor(std::string(input), "fuzz"); });
  read_line(input);
  // Any rules over single letters, any text.
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, char(byte));
  for (size_t i = 0; i + 4 <= std::min<size_t>(input.size(), 64); i += 4) {
    const std::string token(input.substr(i, 2 + data[0] % 3));
    if (std::find(tokens.begin(), tokens.end(), token) == tokens.end()) tokens.push_back(token);
  }
  SubwordParts parts{.tokens = tokens, .model = SubwordParts::Model::ranks, .whole_pieces = true};
  const char* patterns[] = {"gpt2", "cl100k", "llama3", "qwen2", "o200k"};
  parts.splitter.add(patterns[data[0] % 5]);
  use(std::move(parts), input);
  return 0;
}
