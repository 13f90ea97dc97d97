// tokenizer.json of Hugging Face: parse_huggingface of files.h. Of its parts, the post-processor (tokens around a
// text), truncation and padding do not apply to documents in shards, and the decoder is known from the alphabet.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/files.h"

namespace athanor {
namespace {

using Json = nlohmann::json;

class Reader {
 public:
  Reader(std::string_view content, const std::string& where)
      : where_(where), root_(parse_json_text<Json>(content, where)), vocabulary_(where) {
    if (!root_.is_object() || !root_.contains("model")) refuse("expected a JSON object with \"model\"");
  }

  SubwordParts read() {
    read_model(root_["model"]);
    SubwordParts parts = vocabulary_.take();
    parts.whole_pieces = whole_pieces_;
    read_normalizer(member(root_, "normalizer"), parts);
    read_splits(member(root_, "pre_tokenizer"), parts, true);
    if (!byte_level_) refuse("pre_tokenizer: no \"ByteLevel\" in it; only byte-level vocabularies are read");
    read_added(member(root_, "added_tokens"), parts);
    return parts;
  }

 private:
  template <class... A>
  [[noreturn]] void refuse(const A&... what) const {
    throw Error(cat(where_, ": ", what...), Exit::usage);
  }
  static std::string shown(const Json& json) { return json_text(json).substr(0, 80); }
  static const Json& member(const Json& json, const char* key) {
    static const Json none;
    const auto found = json.find(key);
    return found == json.end() ? none : *found;
  }
  std::string text_of(const Json& json, const char* key, const char* part) const {
    const Json& value = json.is_object() ? member(json, key) : json;
    if (!json.is_object() || !value.is_string())
      refuse(part, ": expected an object with a text \"", key, "\", got ", shown(json));
    return value.get<std::string>();
  }
  bool flag_of(const Json& json, const char* key, bool otherwise, const char* part) const {
    const Json& value = member(json, key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean()) refuse(part, ": ", key, ": expected true or false, got ", shown(value));
    return value.get<bool>();
  }

  void read_model(const Json& model) {
    const bool old = model.is_object() && !model.contains("type") && model.contains("merges");
    if (const std::string type = old ? "BPE" : text_of(model, "type", "model"); type != "BPE")
      refuse("model \"", type, "\" is not supported; expected \"BPE\"");
    if (flag_of(model, "byte_fallback", false, "model")) refuse("model: byte_fallback is not supported");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json& value = member(model, key); !value.is_null() && value != Json(""))
        refuse("model: ", key, " ", shown(value), " is not supported");
    if (const Json& value = member(model, "dropout"); !value.is_null() && value != 0)
      refuse("model: dropout ", shown(value), " is not supported");
    whole_pieces_ = flag_of(model, "ignore_merges", false, "model");
    const Json& vocab = member(model, "vocab");
    if (!vocab.is_object()) refuse("model: vocab: expected an object of tokens and ids");
    for (const auto& [text, id] : vocab.items()) {
      if (!id.is_number_integer()) refuse("model: vocab: token ", shown(text), ": expected a number, got ", shown(id));
      vocabulary_.add(text, id.get<int64_t>());
    }
    read_merges(member(model, "merges"));
  }

  void read_merges(const Json& merges) {
    if (!merges.is_array()) refuse("model: merges: expected an array");
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const Json& merge = merges[rank];
      std::string first, second;
      if (merge.is_string()) {
        const std::string& both = merge.get_ref<const std::string&>();
        const size_t space = both.find(' ');
        if (space != both.npos && both.find(' ', space + 1) == both.npos) {
          first = both.substr(0, space);
          second = both.substr(space + 1);
        }
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        first = merge[0].get<std::string>();
        second = merge[1].get<std::string>();
      }
      if (first.empty() || second.empty()) refuse("model: merges[", rank, "]: expected two tokens, got ", shown(merge));
      vocabulary_.add_merge(first, second, rank, cat(where_, ": model: merges[", rank, "]"));
    }
  }

  void read_normalizer(const Json& normalizer, SubwordParts& parts) const {
    if (normalizer.is_null()) return;
    const std::string type = text_of(normalizer, "type", "normalizer");
    if (type == "NFC") {
      parts.normalizer.add(Nfc());
    } else if (type == "Sequence") {
      for (const Json& part : member(normalizer, "normalizers")) read_normalizer(part, parts);
    } else {
      refuse("normalizer \"", type, "\" is not supported; expected none or \"NFC\"");
    }
  }

  void read_splits(const Json& split, SubwordParts& parts, bool last) {
    if (split.is_null()) return;
    if (byte_level_) refuse("pre_tokenizer: something behind \"ByteLevel\", which is supported as the last part only");
    const std::string type = text_of(split, "type", "pre_tokenizer");
    if (type == "Sequence") {
      const Json& list = member(split, "pretokenizers");
      if (!list.is_array()) refuse("pre_tokenizer: Sequence: pretokenizers: expected an array");
      for (size_t i = 0; i < list.size(); ++i) read_splits(list[i], parts, last && i + 1 == list.size());
    } else if (type == "ByteLevel") {
      if (flag_of(split, "add_prefix_space", true, "ByteLevel"))
        refuse("pre_tokenizer: ByteLevel: add_prefix_space is not supported: it changes the text");
      if (flag_of(split, "use_regex", true, "ByteLevel")) parts.splitter.add("gpt2");
      byte_level_ = true;
    } else if (type == "Split") {
      read_split(split, parts);
    } else if (type == "Digits") {
      parts.splitter.add(flag_of(split, "individual_digits", false, "Digits") ? "\\p{N}" : "\\p{N}+");
    } else {
      refuse("pre_tokenizer \"", type,
             "\" is not supported; expected \"ByteLevel\", \"Split\", \"Digits\" or a \"Sequence\" of them");
    }
  }

  void read_split(const Json& split, SubwordParts& parts) const {
    const std::string pattern = text_of(member(split, "pattern"), "Regex", "pre_tokenizer: Split: pattern");
    const std::string behavior = text_of(split, "behavior", "pre_tokenizer: Split");
    const bool invert = flag_of(split, "invert", false, "pre_tokenizer: Split");
    // The built-in patterns match every character, so that nothing is left to remove.
    const bool keeps_all = behavior == "Isolated" || (behavior == "Removed" && invert && find_pattern(pattern));
    if (!keeps_all)
      refuse("pre_tokenizer: Split: behavior \"", behavior, "\"", invert ? " with invert" : "",
             " is not supported; expected \"Isolated\"");
    parts.splitter.add_oniguruma(pattern);
  }

  void read_added(const Json& tokens, SubwordParts& parts) const {
    if (tokens.is_null()) return;
    if (!tokens.is_array()) refuse("added_tokens: expected an array");
    for (const Json& token : tokens) {
      const std::string text = text_of(token, "content", "added_tokens");
      const Json& id = member(token, "id");
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= kMostTokens || text.empty() ||
          text.size() > kLongestToken)
        refuse("added_tokens: expected a text and an id below ", kMostTokens, ", got ", shown(token));
      if (const int32_t known = vocabulary_.id_of(text); known >= 0 && known != id.get<int64_t>())
        refuse("added_tokens: ", shown(token), ": the vocabulary has it as ", known);
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        if (flag_of(token, key, false, "added_tokens"))
          refuse("added_tokens: ", shown(text), ": ", key, " is not supported");
      parts.added.push_back({.text = text,
                             .id = id.get<int32_t>(),
                             .special = flag_of(token, "special", false, "added_tokens"),
                             .in = flag_of(token, "normalized", true, "added_tokens") ? AddedToken::In::normal_form
                                                                                      : AddedToken::In::text});
    }
  }

  const std::string& where_;
  Json root_;
  Vocabulary vocabulary_;
  bool whole_pieces_ = false, byte_level_ = false;
};

}  // namespace

SubwordParts parse_huggingface(std::string_view content, const std::string& where) {
  return Reader(content, where).read();
}

}  // namespace athanor
