// Byte-level vocabularies in llama.cpp's format: tokens and merges in GPT-2's alphabet, a type per token, and the name
// of the split pattern.
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "convert/gguf_model.h"
#include "convert/hf_folder.h"
#include "tokenizer/descriptor.h"
#include "tokenizer/files.h"
#include "tokenizer/load.h"

namespace athanor {
namespace {

enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

// llama.cpp's names of split patterns (src/llama-vocab.cpp, tokenizer.ggml.pre).
std::string pattern_name(const SubwordParts& parts) {
  static const std::map<std::string, std::string> names = {
      {"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}, {"cl100k", "dbrx"}, {"o200k", "gpt-4o"}};
  const std::vector<std::string> patterns = parts.splitter.patterns();
  const auto found = patterns.size() == 1 ? names.find(patterns[0]) : names.end();
  if (found != names.end()) return found->second;
  log::warn("gguf: llama.cpp has no split pattern of this tokenizer; it may cut texts in other places");
  return "default";
}

// Every id of the model's vocabulary needs a text; ids beyond the tokenizer's vocabulary are marked unused.
void add_tokens(GgufFile& file, const SubwordParts& parts, int64_t vocab, const std::string& where) {
  std::vector<std::string> texts(size_t(vocab), "");
  std::vector<int32_t> types(texts.size(), kUnused);
  const auto set = [&](size_t id, const std::string& text, int32_t type) {
    if (id >= texts.size())
      throw Error(cat(where, ": the tokenizer has token ", id, ", expected less than the model's vocab_size ", vocab,
                      ": they belong to different models"),
                  Exit::usage);
    texts[id] = text, types[id] = type;
  };
  for (size_t id = 0; id < parts.tokens.size(); ++id)
    if (!parts.tokens[id].empty()) set(id, to_byte_level(parts.tokens[id]), kNormal);
  for (const auto& [id, text] : parts.unreachable) set(size_t(id), text, kUserDefined);
  for (const AddedToken& token : parts.added)
    set(size_t(token.id), token.text, token.special ? kControl : kUserDefined);
  for (size_t id = 0; id < texts.size(); ++id)
    if (types[id] == kUnused) texts[id] = cat("[PAD", id, "]");
  file.set("tokenizer.ggml.tokens", texts);
  file.set("tokenizer.ggml.token_type", types);
}

void add_merges(GgufFile& file, SubwordParts& parts) {
  if (parts.model == SubwordParts::Model::ranks) parts.merges = Bpe::merges_of_ranks(parts.tokens);
  std::stable_sort(parts.merges.begin(), parts.merges.end(),
                   [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
  std::vector<std::string> merges;
  const auto text = [&](int32_t id) { return to_byte_level(parts.tokens[size_t(id)]); };
  for (const Merge& merge : parts.merges) merges.push_back(cat(text(merge.first), " ", text(merge.second)));
  file.set("tokenizer.ggml.merges", merges);
}

// A file of the folder as JSON; null if there is none.
nlohmann::json json_in(const std::string& folder, const std::string& name) {
  constexpr int64_t kMostBytes = int64_t{256} << 20;
  const std::string path = cat(folder, "/", name);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return nullptr;
  return parse_json_text<nlohmann::json>(read_file(path, kMostBytes), path);
}

// True if a post-processor of a tokenizer.json puts a special token in front of a text.
bool puts_token_first(const nlohmann::json& processor) {
  if (!processor.is_object()) return false;
  if (const auto parts = processor.find("processors"); parts != processor.end() && parts->is_array())
    return std::ranges::any_of(*parts, puts_token_first);
  const auto text = processor.find("single");
  return text != processor.end() && text->is_array() && !text->empty() && text->front().contains("SpecialToken");
}

// Whether the folder's tokenizer puts the BOS token in front of a text; nullopt: its files do not say.
std::optional<bool> puts_bos_first(const std::string& folder) {
  const nlohmann::json config = json_in(folder, "tokenizer_config.json");
  if (config.is_object() && config.contains("add_bos_token") && config["add_bos_token"].is_boolean())
    return config["add_bos_token"].get<bool>();
  std::vector<std::string> names = {"tokenizer.json"};
  const std::string descriptor = cat(folder, "/", kTokenizerFile);
  std::error_code ignored;
  if (std::filesystem::is_regular_file(descriptor, ignored))
    names = parse_descriptor(read_file(descriptor, 1 << 20), descriptor).files;
  for (const std::string& name : names) {
    if (!name.ends_with(".json")) continue;
    const nlohmann::json file = json_in(folder, name);
    if (file.is_object() && file.contains("model") && file["model"].is_object())
      return puts_token_first(file.value("post_processor", nlohmann::json()));
  }
  return std::nullopt;
}

// The folder's chat template: the file that newer programs write, or the text or default one of the tokenizer's
// settings; "": none.
std::string chat_template_in(const std::string& folder) {
  constexpr int64_t kMostBytes = 16 << 20;
  const std::string path = cat(folder, "/chat_template.jinja");
  std::error_code ignored;
  if (std::filesystem::is_regular_file(path, ignored)) return read_file(path, kMostBytes);
  const nlohmann::json settings = json_in(folder, "tokenizer_config.json");
  if (!settings.is_object() || !settings.contains("chat_template")) return "";
  const nlohmann::json& chat = settings["chat_template"];
  if (chat.is_string()) return chat.get<std::string>();
  for (const nlohmann::json& named : chat.is_array() ? chat : nlohmann::json::array())
    if (named.is_object() && named.value("name", nlohmann::json()) == "default" && named.contains("template") &&
        named["template"].is_string())
      return named["template"].get<std::string>();
  return "";
}

}  // namespace

void add_gguf_tokenizer(GgufFile& file, const ModelFolder& model) {
  const ModelConfig& m = model.config();
  const std::string folder = tokenizer_folder(model);
  const auto without = [&](const char* what) {
    log::warn("gguf: ", folder, what, "; none is written, so the program that reads the file must have its own");
    file.set("tokenizer.ggml.model", "none");
  };
  if (!has_tokenizer(folder)) return without(" has no tokenizer");
  LoadedParts loaded = load_tokenizer_parts(folder);
  if (loaded.parts.characters) return without(" has a character-level tokenizer, which is not supported");
  if (!loaded.parts.normalizer.only_nfc())
    log::warn("gguf: ", folder, " has a tokenizer that normalizes texts, which llama.cpp does not do");
  file.set("tokenizer.ggml.model", "gpt2");  // byte-level BPE, for every model
  file.set("tokenizer.ggml.pre", pattern_name(loaded.parts));
  add_tokens(file, loaded.parts, m.vocab_size, folder);
  add_merges(file, loaded.parts);
  const int64_t eos = m.eos_token_id >= 0 ? m.eos_token_id : loaded.eod_id;
  const int64_t bos = m.bos_token_id >= 0 ? m.bos_token_id : eos;
  file.set("tokenizer.ggml.bos_token_id", uint32_t(bos));
  file.set("tokenizer.ggml.eos_token_id", uint32_t(eos));
  // Qwen's BOS and EOS tokens differ, and its texts start without BOS. Where no file says, one token that serves as
  // both is not put first, and a BOS token of its own is (Llama 3's rank file).
  file.set("tokenizer.ggml.add_bos_token", puts_bos_first(folder).value_or(bos != eos));
  // Without it llama.cpp takes ChatML.
  if (const std::string chat = chat_template_in(folder); !chat.empty()) file.set("tokenizer.chat_template", chat);
}

}  // namespace athanor
