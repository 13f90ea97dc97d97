// Parser of Hugging Face's tokenizer.json: parse_huggingface of files.h. Ignores the post-processor (tokens around a
// text), truncation and padding, which do not apply to documents in shards; the decoder of byte-level vocabularies is
// implied by their alphabet.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/files.h"

namespace athanor {
namespace {

using Json = nlohmann::json;

// A score as the `tokenizers` package reads it: significand and power of ten are rounded separately [serde_json de.rs,
// f64_from_parts], which decides between nearly equal segmentations.
double twice_rounded(double score) {
  std::array<char, 40> text{};
  const char* end = std::to_chars(text.begin(), text.end(), std::abs(score), std::chars_format::scientific).ptr;
  double power = 0;
  uint64_t significand = 0;
  int exponent = 0, behind = 0;  // behind: digits after the point
  const char* at = text.begin();
  for (bool point = false; at < end && *at != 'e'; ++at) {
    if (*at == '.') {
      point = true;
      continue;
    }
    significand = significand * 10 + uint64_t(*at - '0');
    behind += point;
  }
  std::from_chars(at + (at[1] == '+' ? 2 : 1), end, exponent);
  exponent -= behind;
  if (std::abs(exponent) > std::numeric_limits<double>::max_exponent10)
    return score;  // too small or large to be a
                   // token's score
  const std::string ten = cat("1e", std::abs(exponent));
  std::from_chars(ten.data(), ten.data() + ten.size(), power);
  return std::copysign(exponent < 0 ? double(significand) / power : double(significand) * power, score);
}

class Reader {
 public:
  Reader(std::string_view content, const std::string& where)
      : where_(where),
        root_(parse_json_text<Json>(content, where)),
        byte_level_(names_byte_level(root_.is_object() ? member(root_, "pre_tokenizer") : Json())),
        vocabulary_(where, byte_level_) {
    if (!root_.is_object() || !root_.contains("model")) refuse("expected a JSON object with \"model\"");
  }

  SubwordParts read() {
    read_model(root_["model"]);
    SubwordParts parts = vocabulary_.take();
    parts.whole_pieces = whole_pieces_;
    if (!scores_.of.empty()) parts.model = SubwordParts::Model::unigram;
    parts.scores = std::move(scores_);
    read_normalizer(member(root_, "normalizer"), parts);
    read_splits(member(root_, "pre_tokenizer"), parts);
    if (!byte_level_) {
      parts.characters = unknown_;
      read_decoder(member(root_, "decoder"), parts.decoding);
    }
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

  size_t count_of(const Json& json, const char* key, const char* part) const {
    const Json& value = member(json, key);
    if (!value.is_number_unsigned() || value.get<uint64_t>() > 1000)
      refuse(part, ": ", key, ": expected a number up to 1000, got ", shown(value));
    return value.get<size_t>();
  }
  const Json& list_of(const Json& json, const char* key, const char* part) const {
    const Json& value = member(json, key);
    if (!value.is_array()) refuse(part, ": Sequence: ", key, ": expected an array");
    return value;
  }
  static bool names_byte_level(const Json& split) {
    if (!split.is_object()) return false;
    if (member(split, "type") == "ByteLevel") return true;
    const Json& list = member(split, "pretokenizers");
    return list.is_array() && std::any_of(list.begin(), list.end(), names_byte_level);
  }

  void read_model(const Json& model) {
    const bool old = model.is_object() && !model.contains("type") && model.contains("merges");
    const std::string type = old ? "BPE" : text_of(model, "type", "model");
    if (type == "BPE")
      read_bpe(model);
    else if (type == "Unigram")
      read_unigram(model);
    else
      refuse("model \"", type, "\" is not supported; expected \"BPE\" or \"Unigram\"");
  }

  void read_bpe(const Json& model) {
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
    const bool byte_fallback = flag_of(model, "byte_fallback", false, "model");
    if (byte_fallback && byte_level_) refuse("model: byte_fallback of a byte-level vocabulary is not supported");
    if (!byte_level_) {
      const Json& token = member(model, "unk_token");
      unknown_.fused = flag_of(model, "fuse_unk", false, "model");
      unknown_.token = token.is_string() ? vocabulary_.id_of(token.get<std::string>()) : -1;
      if (!token.is_null() && unknown_.token < 0) refuse("model: unk_token: ", shown(token), " is no token");
      read_bytes(byte_fallback);
    }
    read_merges(member(model, "merges"));
  }

  void read_unigram(const Json& model) {
    if (byte_level_) refuse("model: Unigram with a \"ByteLevel\" pre_tokenizer is not supported");
    const Json& vocab = member(model, "vocab");
    if (!vocab.is_array() || vocab.empty()) refuse("model: vocab: expected an array of tokens and scores");
    for (const Json& token : vocab) {
      const bool pair = token.is_array() && token.size() == 2 && token[0].is_string() && token[1].is_number();
      if (!pair) refuse("model: vocab[", scores_.of.size(), "]: expected a token and its score, got ", shown(token));
      vocabulary_.add(token[0].get<std::string>(), int64_t(scores_.of.size()));
      scores_.of.push_back(twice_rounded(token[1].get<double>()));
    }
    scores_.unknown = *std::min_element(scores_.of.begin(), scores_.of.end()) - 10;
    const Json& unknown = member(model, "unk_id");
    if (!unknown.is_number_unsigned() || unknown.get<uint64_t>() >= scores_.of.size())
      refuse("model: unk_id: expected the number of a token, got ", shown(unknown));
    unknown_.token = unknown.get<int32_t>();
    read_bytes(flag_of(model, "byte_fallback", false, "model"));
  }

  void read_bytes(bool byte_fallback) {
    int bytes = 0;
    for (int byte = 0; byte < 256 && byte_fallback; ++byte)
      bytes += (unknown_.bytes[size_t(byte)] = vocabulary_.id_of(byte_token(uint8_t(byte)))) >= 0;
    if (bytes != 0 && bytes != 256) refuse("model: byte_fallback: the vocabulary has ", bytes, " of the 256 bytes");
    if (bytes == 0 && unknown_.token < 0)
      refuse(
          "model: neither unk_token nor byte_fallback, and no \"ByteLevel\" pre_tokenizer: characters that are no "
          "tokens would get lost");
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
    static const std::map<std::string, Form> forms = {
        {"NFC", Form::nfc}, {"NFD", Form::nfd}, {"NFKC", Form::nfkc}, {"NFKD", Form::nfkd}};
    if (const auto form = forms.find(type); form != forms.end()) {
      parts.normalizer.add(NormalForm(form->second));
    } else if (type == "Prepend") {
      parts.normalizer.add(Prepend{.text = text_of(normalizer, "prepend", "normalizer: Prepend")});
    } else if (type == "Replace") {
      parts.normalizer.add(replace_of(normalizer, "normalizer: Replace"));
    } else if (type == "Sequence") {
      for (const Json& part : list_of(normalizer, "normalizers", "normalizer")) read_normalizer(part, parts);
    } else {
      refuse("normalizer \"", type,
             "\" is not supported; expected none, \"NFC\", \"NFD\", \"NFKC\", \"NFKD\", \"Prepend\", \"Replace\" or a "
             "\"Sequence\" of them (or take the model's SentencePiece file, if it has one)");
    }
  }

  Replace replace_of(const Json& step, const char* part) const {
    Replace replace{.from = text_of(member(step, "pattern"), "String", part), .to = text_of(step, "content", part)};
    if (replace.from.empty() || replace.from.size() > kLongestToken || replace.to.size() > kLongestToken)
      refuse(part, ": pattern: expected a text of 1 to ", kLongestToken, " bytes, got ", shown(step));
    return replace;
  }

  void read_splits(const Json& split, SubwordParts& parts) {
    if (split.is_null()) return;
    if (complete_) refuse("pre_tokenizer: a part after \"", complete_, "\", which is supported only as the last part");
    const std::string type = text_of(split, "type", "pre_tokenizer");
    if (type == "Sequence") {
      for (const Json& part : list_of(split, "pretokenizers", "pre_tokenizer")) read_splits(part, parts);
    } else if (type == "ByteLevel") {
      if (flag_of(split, "add_prefix_space", true, "ByteLevel"))
        refuse("pre_tokenizer: ByteLevel: add_prefix_space is not supported: it changes the text");
      if (byte_level_seen_) refuse("pre_tokenizer: a second ByteLevel is not supported");
      if (flag_of(split, "use_regex", true, "ByteLevel")) parts.splitter.add("gpt2");
      parts.splitter.begin_byte_level();
      byte_level_seen_ = true;
    } else if (type == "Metaspace") {
      if (byte_level_ || !parts.splitter.empty())
        refuse("pre_tokenizer: Metaspace together with others is not supported");
      read_metaspace(split, parts);
      complete_ = "Metaspace";
    } else if (type == "Split") {
      read_split(split, parts);
    } else if (type == "Punctuation") {
      parts.splitter.add_punctuation(split.contains("behavior") ? behavior_of(split, "pre_tokenizer: Punctuation")
                                                                : SplitBehavior::isolated);
    } else if (type == "Digits") {
      parts.splitter.add(flag_of(split, "individual_digits", false, "Digits") ? "\\p{N}" : "\\p{N}+");
    } else {
      refuse("pre_tokenizer \"", type,
             "\" is not supported; expected \"ByteLevel\", \"Metaspace\", \"Split\", \"Digits\", \"Punctuation\" or a "
             "\"Sequence\" of them");
    }
  }

  // Returns "first", "always" or "never".
  std::string prepend_scheme(const Json& metaspace, const char* part) const {
    const std::string scheme =
        metaspace.contains("prepend_scheme") ? text_of(metaspace, "prepend_scheme", part) : "always";
    if (scheme != "first" && scheme != "always" && scheme != "never")
      refuse(part, ": prepend_scheme: expected \"first\", \"always\" or \"never\", got \"", scheme, "\"");
    if (!flag_of(metaspace, "add_prefix_space", true, part) && scheme != "never")
      refuse(part, ": add_prefix_space false, but prepend_scheme \"", scheme, "\"");
    if (const std::string mark = text_of(metaspace, "replacement", part); mark != kSpaceMark)
      refuse(part, ": replacement \"", mark, "\" is not supported; expected \"", kSpaceMark, "\"");
    return scheme;
  }

  void read_metaspace(const Json& split, SubwordParts& parts) const {
    const std::string scheme = prepend_scheme(split, "pre_tokenizer: Metaspace");
    parts.respelling.add(Replace{.from = " ", .to = std::string(kSpaceMark)});
    if (scheme != "never")
      parts.respelling.add(
          Prepend{.text = std::string(kSpaceMark), .unless_there = true, .documents_only = scheme == "first"});
    parts.splits_at_spaces = flag_of(split, "split", true, "pre_tokenizer: Metaspace");
  }

  SplitBehavior behavior_of(const Json& split, const char* part) const {
    static const std::map<std::string, SplitBehavior> behaviors = {
        {"Removed", SplitBehavior::removed},
        {"Isolated", SplitBehavior::isolated},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next},
        {"Contiguous", SplitBehavior::contiguous}};
    const std::string behavior = text_of(split, "behavior", part);
    const auto found = behaviors.find(behavior);
    if (found == behaviors.end()) refuse(part, ": behavior \"", behavior, "\" is not supported");
    return found->second;
  }

  void read_split(const Json& split, SubwordParts& parts) const {
    const SplitBehavior behavior = behavior_of(split, "pre_tokenizer: Split");
    const bool invert = flag_of(split, "invert", false, "pre_tokenizer: Split");
    const Json& pattern = member(split, "pattern");
    if (pattern.is_object() && pattern.contains("String")) {
      const std::string text = text_of(pattern, "String", "pre_tokenizer: Split: pattern");
      if (text.empty()) refuse("pre_tokenizer: Split: pattern: an empty text");
      // If the normalizer removes the text entirely, as in Gemma's files, there is nothing to split at.
      if (invert || !parts.normalizer.removes(text)) parts.splitter.add_text(text, behavior, invert);
      return;
    }
    parts.splitter.add_oniguruma(text_of(pattern, "Regex", "pre_tokenizer: Split: pattern"), behavior, invert);
  }

  void read_decoder(const Json& decoder, Decoding& decoding) {
    if (decoder.is_null()) refuse("decoder: expected one: none would put a space between tokens");
    const std::string type = text_of(decoder, "type", "decoder");
    if (type == "Sequence") {
      for (const Json& part : list_of(decoder, "decoders", "decoder")) read_decoder(part, decoding);
    } else if (type == "Replace") {
      decoding.add(replace_of(decoder, "decoder: Replace"));
    } else if (type == "ByteFallback") {
      decoding.add(ByteTokens{});
    } else if (type == "Fuse") {
      decoding.add(Fuse{});
      fused_ = true;
    } else if (type == "Strip") {
      const size_t start = count_of(decoder, "start", "decoder: Strip");
      if (!fused_ || count_of(decoder, "stop", "decoder: Strip") != 0)
        refuse("decoder: Strip of each token, or of its end, is not supported");
      decoding.add(Strip{.content = text_of(decoder, "content", "decoder: Strip"), .start = start});
    } else if (type == "Metaspace") {
      decoding.add(Metaspace{.first = prepend_scheme(decoder, "decoder: Metaspace") != "never"});
    } else {
      refuse("decoder \"", type,
             "\" is not supported; expected \"Replace\", \"ByteFallback\", \"Fuse\", \"Strip\", \"Metaspace\" or a "
             "\"Sequence\" of them");
    }
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
      else if (known < 0 && id.get<size_t>() < parts.tokens.size() && !parts.tokens[id.get<size_t>()].empty())
        refuse("added_tokens: ", shown(token), ": the vocabulary has another token of this id");
      const bool normalized = flag_of(token, "normalized", true, "added_tokens");
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        if (flag_of(token, key, false, "added_tokens") && (normalized || key == std::string_view("single_word")))
          refuse("added_tokens: ", shown(text), ": ", key, normalized ? " of a normalized token" : "",
                 " is not supported");
      parts.added.push_back({.text = text,
                             .id = id.get<int32_t>(),
                             .special = flag_of(token, "special", false, "added_tokens"),
                             .in = normalized ? AddedToken::In::normal_form : AddedToken::In::text,
                             .strips_left = flag_of(token, "lstrip", false, "added_tokens"),
                             .strips_right = flag_of(token, "rstrip", false, "added_tokens")});
    }
  }

  const std::string& where_;
  Json root_;
  bool byte_level_;
  Vocabulary vocabulary_;
  Unigram::Scores scores_;
  Unknown unknown_;
  bool whole_pieces_ = false, fused_ = false;
  const char* complete_ = nullptr;  // name of the pre-tokenizer that must come last, once seen
  bool byte_level_seen_ = false;
};

}  // namespace

SubwordParts parse_huggingface(std::string_view content, const std::string& where) {
  return Reader(content, where).read();
}

}  // namespace athanor
