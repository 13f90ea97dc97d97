// libFuzzer target: any bytes as a SentencePiece model, as a table of characters and as a text. Whatever they are,
// reading them ends in a tokenizer that encodes any text, cut or not, to ids that it decodes, or in an Error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "tests/fuzz/laws.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/files.h"
#include "tokenizer/subword_tokenizer.h"

namespace {

using namespace athanor;

void use(SubwordParts parts, const std::string& text, bool allow_special) {
  const SubwordTokenizer tokenizer(std::move(parts), {.type = "fuzz", .eod_id = 0, .allow_special = allow_special}, {});
  const auto encoder = tokenizer.encoder();
  std::vector<int32_t> ids, both;
  encoder->append(text, ids);
  for (const int32_t id : ids) require(id >= 0 && id < tokenizer.vocab_size());
  tokenizer.decode(ids, TextPlace::document);
  std::string part_by_part;
  for (const int32_t id : ids) part_by_part += tokenizer.decode({&id, 1}, TextPlace::inside);
  require(part_by_part == tokenizer.decode(ids, TextPlace::inside));
  const size_t cut = tokenizer.last_cut(text, 0, text.size());
  require(cut <= text.size());
  encoder->append(text.substr(0, cut), both);
  encoder->append(text.substr(cut), both, cut == 0 ? TextPlace::document : TextPlace::inside);
  require(both == ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  const std::string text = input.substr(size - std::min<size_t>(size, 300)) + " the a\n\n  b \xe2\x96\x81\xff</s>c d\n";
  for (const bool allow_special : {false, true})
    survive([&] { use(parse_sentencepiece(input, "fuzz"), text, allow_special); });
  survive([&] {
    const Charsmap charsmap(input, "fuzz");
    for (size_t at = 0; at < text.size(); ++at) {
      const auto match = charsmap.longest(std::string_view(text).substr(at));
      require(match.bytes <= text.size() - at && match.replacement.size() <= size);
    }
  });
  return 0;
}
