#include "tokenizer/load.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "tokenizer/byte_tokenizer.h"
#include "tokenizer/files.h"

namespace athanor {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMaxDescriptor = 64 << 10, kMaxFile = 256 << 20;

// Rank files record neither the split pattern nor the special tokens; published files are recognized by their size.
struct KnownRanks {
  int64_t count;
  const char* name;
  const char* split;
  std::vector<std::pair<const char*, int32_t>> special_tokens;  // the first is the end-of-document token
};
const std::vector<KnownRanks>& known_ranks() {
  // [tiktoken 0.14 openai_public.py; llama3 llama/tokenizer.py]
  static const std::vector<KnownRanks> all = {
      {50256, "r50k_base (GPT-2)", "gpt2", {{"<|endoftext|>", 50256}}},
      {50280, "p50k_base", "gpt2", {{"<|endoftext|>", 50256}}},
      {100256,
       "cl100k_base",
       "cl100k",
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {128000,
       "Llama 3",
       "llama3",
       {{"<|end_of_text|>", 128001},
        {"<|begin_of_text|>", 128000},
        {"<|start_header_id|>", 128006},
        {"<|end_header_id|>", 128007},
        {"<|eot_id|>", 128009}}},
      {199998, "o200k_base", "o200k", {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
  };
  return all;
}

std::string joined(const fs::path& folder, const char* name) { return (folder / name).string(); }
bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

TokenizerFile read_source(const std::string& path) {
  return {fs::path(path).filename().string(), read_file(path, kMaxFile)};
}

std::pair<std::string, int32_t> parse_special(const std::string& text) {
  const size_t sign = text.rfind('=');
  int32_t id = -1;
  if (sign != text.npos) {
    const char* last = text.data() + text.size();
    const auto [stop, problem] = std::from_chars(text.data() + sign + 1, last, id);
    if (problem != std::errc() || stop != last) id = -1;
  }
  if (sign == 0 || sign > kLongestToken || id < 0 || id >= kMostTokens)
    throw Error(cat("special token: expected TEXT=ID with an id below ", kMostTokens, ", got \"", text, "\""),
                Exit::usage);
  return {text.substr(0, sign), id};
}

void describe_ranks(Descriptor& d, const SubwordParts& parts, const TokenizerOptions& options,
                    const std::string& where) {
  const auto count = int64_t(parts.tokens.count());
  const auto& all = known_ranks();
  const auto known = std::find_if(all.begin(), all.end(), [&](const auto& k) { return k.count == count; });
  d.split = options.split;
  std::string first;
  if (options.split.empty() && options.special_tokens.empty() && known != all.end()) {
    d.split = known->split;
    for (const auto& [text, id] : known->special_tokens) d.special_tokens[text] = id;
    first = known->special_tokens[0].first;
    log::info(where, ": taken for ", known->name, " by its ", count, " ranks: split pattern ", d.split);
  }
  if (d.split.empty())
    throw Error(cat(where, ": ", count,
                    " ranks are none of the known vocabularies: say which split pattern is theirs "
                    "(--split ",
                    pattern_names(), " or a regular expression)"),
                Exit::usage);
  for (const std::string& text : options.special_tokens) d.special_tokens.insert(parse_special(text));
  const std::string eod = options.eod.empty() ? first : options.eod;
  const auto found = d.special_tokens.find(eod);
  if (found == d.special_tokens.end())
    throw Error(
        cat(where, ": which token ends a document? Give it with --eod, and its id with --special-token TEXT=ID"),
        Exit::usage);
  d.eod_id = found->second;
}

// Reads "eos_token" from the tokenizer_config.json next to the file; "" if there is none.
std::string eos_of_config(const std::string& folder) {
  const std::string path = joined(folder, "tokenizer_config.json");
  if (!is_file(path)) return "";
  const std::string text = read_file(path, kMaxFile);
  require_json_depth(text, path);
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("eos_token")) return "";
  const nlohmann::json& eos = json["eos_token"];
  if (eos.is_string()) return eos.get<std::string>();
  return eos.is_object() && eos.contains("content") && eos["content"].is_string() ? eos["content"].get<std::string>()
                                                                                  : "";
}

int32_t id_of_text(const SubwordParts& parts, const std::string& text) {
  for (const AddedToken& token : parts.added)
    if (token.text == text) return token.id;
  return parts.tokens.find(text);
}

// The end-of-document token: the requested one, else the one that the file names, else a token with a name that models
// use for it.
int32_t find_eod(const SubwordParts& parts, const std::string& asked, const std::string& folder,
                 const std::string& where) {
  const std::string said = asked.empty() ? eos_of_config(folder) : asked;
  if (!said.empty()) {
    const int32_t id = id_of_text(parts, said);
    if (id < 0) throw Error(cat(where, ": has no token \"", said, "\" to end documents with (--eod)"), Exit::usage);
    return id;
  }
  if (const int32_t id = id_of_text(parts, parts.eod); id >= 0 && !parts.eod.empty()) return id;
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>", "</s>", "<｜end▁of▁sentence｜>", "<eos>", "<|im_end|>"})
    if (const int32_t id = id_of_text(parts, name); id >= 0) return id;
  throw Error(cat(where, ": which token ends a document? Give its text with --eod"), Exit::usage);
}

// Parses everything except what the descriptor adds; `where` names the folder of the files.
SubwordParts parse_files(const std::string& type, const std::vector<TokenizerFile>& files, const std::string& folder) {
  const auto where = [&](size_t i) { return joined(folder, files[i].name.c_str()); };
  const auto expect = [&](size_t count) {
    if (files.size() != count)
      throw Error(cat(folder, ": a tokenizer of type \"", type, "\" has ", count, " file(s), got ", files.size()),
                  Exit::usage);
  };
  if (type == "tiktoken") {
    expect(1);
    return parse_rank_file(files[0].content, where(0));
  }
  if (type == "gpt2") {
    expect(2);
    SubwordParts parts = parse_gpt2(files[0].content, where(0), files[1].content, where(1));
    parts.splitter.add("gpt2");
    return parts;
  }
  if (type == "huggingface") {
    expect(1);
    return parse_huggingface(files[0].content, where(0));
  }
  if (type == "sentencepiece") {
    expect(1);
    return parse_sentencepiece(files[0].content, where(0));
  }
  throw Error(cat(folder,
                  ": expected a tokenizer of type \"byte\", \"tiktoken\", \"gpt2\", \"huggingface\" or "
                  "\"sentencepiece\", got \"",
                  type, "\""),
              Exit::usage);
}

// An opened tokenizer: parsed parts, descriptor and files.
struct Opened {
  SubwordParts parts;
  Descriptor d;
  std::vector<TokenizerFile> files;
};

// Adds the tokens that only the descriptor has.
void add_described(SubwordParts& parts, const Descriptor& d) {
  if (d.type == "tiktoken") {
    parts.splitter.add(d.split);
    for (const auto& [text, id] : d.special_tokens) {
      if (id < int32_t(parts.tokens.size()) && !parts.tokens[size_t(id)].empty())
        throw Error(cat("special token ", text, ": id ", id, " is a rank"), Exit::usage);
      parts.added.push_back({.text = text, .id = id});
    }
  } else if (d.type == "gpt2") {
    parts.added.push_back({.text = std::string(parts.tokens[size_t(d.eod_id)]), .id = d.eod_id});
  }
}

std::unique_ptr<Tokenizer> build(Opened opened, const std::string& where) {
  if (opened.d.type == "byte") return std::make_unique<ByteTokenizer>();
  return with_context(where, [&] {
    return std::make_unique<SubwordTokenizer>(std::move(opened.parts), std::move(opened.d), std::move(opened.files));
  });
}

// The type of a tokenizer file, and all files that belong to it.
std::pair<std::string, std::vector<std::string>> companions(const fs::path& path) {
  const std::string name = path.filename().string();
  const fs::path folder = path.parent_path();
  const auto pair = [&](const char* vocab, const char* merges) {
    for (const char* part : {vocab, merges})
      if (!is_file(folder / part))
        throw Error(cat(joined(folder, part), ": is not there; ", vocab, " and ", merges, " belong together"),
                    Exit::usage);
    return std::pair{std::string("gpt2"), std::vector{joined(folder, vocab), joined(folder, merges)}};
  };
  if (name == "encoder.json" || name == "vocab.bpe") return pair("encoder.json", "vocab.bpe");
  if (name == "vocab.json" || name == "merges.txt") return pair("vocab.json", "merges.txt");
  return {path.extension() == ".json" ? "huggingface" : "tiktoken", {path.string()}};
}

// The first known tokenizer file name in a folder; "" if there is none.
std::string named_file_in(const fs::path& folder) {
  for (const char* name : {kTokenizerFile, "tokenizer.json", "vocab.json", "encoder.json", "tokenizer.model"})
    if (is_file(folder / name)) return joined(folder, name);
  return "";
}

std::string file_in(const fs::path& folder) {
  if (std::string named = named_file_in(folder); !named.empty()) return named;
  std::vector<std::string> ranks;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().extension() == ".tiktoken") ranks.push_back(entry.path().string());
  if (ranks.size() == 1) return ranks[0];
  throw Error(cat(folder.string(), ": no tokenizer in this folder: expected ", kTokenizerFile,
                  ", tokenizer.json, vocab.json and merges.txt, encoder.json and vocab.bpe, tokenizer.model, or one "
                  ".tiktoken file",
                  ranks.empty() ? "" : cat(", got ", ranks.size(), " .tiktoken files")),
              Exit::usage);
}

// Represents the byte tokenizer as a byte-level vocabulary without merges.
SubwordParts byte_parts() {
  const ByteTokenizer byte;
  SubwordParts parts;
  for (size_t b = 0; b < 256; ++b) parts.tokens.put(b, std::string(1, char(b)));
  parts.splitter.add("gpt2");
  parts.added.push_back({.text = "<|endoftext|>", .id = byte.eod_id()});
  return parts;
}

Opened open_described(const std::string& path) {
  const std::string folder = parent_dir(path);
  Descriptor d = parse_descriptor(read_file(path, kMaxDescriptor), path);
  if (d.type == "byte") {
    const ByteTokenizer byte;
    const auto agree = [&](const char* key, int64_t said, int64_t unsaid, int64_t expected) {
      if (said != unsaid && said != expected)
        throw Error(cat(path, ": ", key, " of the \"byte\" tokenizer is ", expected, ", the file has ", said),
                    Exit::usage);
    };
    agree("vocab_size", d.vocab_size, 0, byte.vocab_size());
    agree("eod_id", d.eod_id, -1, byte.eod_id());
    d.eod_id = byte.eod_id();
    return {.parts = byte_parts(), .d = std::move(d), .files = {}};
  }
  std::vector<TokenizerFile> files;
  for (const std::string& name : d.files) files.push_back(read_source(joined(folder, name.c_str())));
  SubwordParts parts = with_context(path, [&] { return parse_files(d.type, files, folder); });
  if (!d.fingerprint.empty() && d.fingerprint != fingerprint_of(files))
    throw Error(cat(path,
                    ": the tokenizer's files next to it are not those that it was written with; restore them, or "
                    "tokenize again"),
                Exit::usage);
  if (d.type == "gpt2" && (d.eod_id < 0 || size_t(d.eod_id) >= parts.tokens.size()))
    throw Error(cat(path, ": eod_id ", d.eod_id, " is not in the vocabulary"), Exit::usage);
  with_context(path, [&] { add_described(parts, d); });
  return {std::move(parts), std::move(d), std::move(files)};
}

// Renames files to the names that transformers looks for; the original names are of no use in a copy.
void rename_for_copies(const std::string& type, std::vector<TokenizerFile>& files) {
  if (type == "huggingface") files[0].name = "tokenizer.json";
  if (type == "gpt2") files[0].name = "vocab.json", files[1].name = "merges.txt";
  if (type == "sentencepiece") files[0].name = "tokenizer.model";
}

Opened open_plain(const std::string& path, const TokenizerOptions& options) {
  auto [type, paths] = companions(path);
  const std::string folder = parent_dir(path);
  std::vector<TokenizerFile> files;
  for (const std::string& file : paths) files.push_back(read_source(file));
  if (type == "tiktoken" && is_sentencepiece(files[0].content)) type = "sentencepiece";
  SubwordParts parts = parse_files(type, files, folder);
  rename_for_copies(type, files);
  Descriptor d{.type = type, .allow_special = options.allow_special};
  for (const TokenizerFile& file : files) d.files.push_back(file.name);
  d.fingerprint = fingerprint_of(files);
  if (type == "tiktoken") {
    describe_ranks(d, parts, options, path);
  } else {
    if (!options.split.empty() || !options.special_tokens.empty())
      throw Error(
          cat(path,
              ": --split and --special-token are only for rank files; this file contains both, so leave them out"),
          Exit::usage);
    d.eod_id = find_eod(parts, options.eod, folder, path);
  }
  with_context(path, [&] { add_described(parts, d); });
  return {std::move(parts), std::move(d), std::move(files)};
}

// Refuses options of a tokenizer that fixes these settings itself, since they would have no effect.
void require_no_options(const TokenizerOptions& o, const std::string& tokenizer) {
  const char* given = !o.split.empty()            ? "--split"
                      : !o.special_tokens.empty() ? "--special-token"
                      : !o.eod.empty()            ? "--eod"
                                                  : nullptr;
  if (given) throw Error(cat("tokenizer: ", given, " has no effect on ", tokenizer, "; leave it out"), Exit::usage);
}

// Opens a descriptor or another tokenizer file.
Opened open_tokenizer(const std::string& file, const TokenizerOptions& options) {
  if (fs::path(file).filename() != kTokenizerFile) return open_plain(file, options);
  require_no_options(options, cat("the descriptor ", file, ", which records the settings of its tokenizer"));
  Opened opened = open_described(file);
  opened.d.allow_special = (opened.d.allow_special || options.allow_special) && !options.forbid_special;
  return opened;
}

std::string file_at(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? file_in(path) : path;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const TokenizerOptions& options) {
  if (options.source == "byte") {
    require_no_options(options, "the tokenizer byte, whose only special token ends a document");
    return std::make_unique<ByteTokenizer>();
  }
  std::error_code ignored;
  if (!fs::exists(options.source, ignored))
    throw Error(cat("tokenizer: expected \"byte\" or the path of a tokenizer file or folder, got \"", options.source,
                    "\", where nothing is"),
                Exit::usage);
  const std::string file = file_at(options.source);
  return build(open_tokenizer(file, options), file);
}

bool has_tokenizer(const std::string& folder) { return !named_file_in(folder).empty(); }

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  const std::string file = file_at(path);
  return build(open_tokenizer(file, {}), file);
}

LoadedParts load_tokenizer_parts(const std::string& path) {
  Opened opened = open_tokenizer(file_at(path), {});
  return {std::move(opened.parts), opened.d.eod_id};
}

std::unique_ptr<Tokenizer> find_tokenizer(const std::string& shard_path) {
  const std::string file = joined(parent_dir(shard_path), kTokenizerFile);
  return is_file(file) ? build(open_described(file), file) : nullptr;
}

std::vector<TokenizerFile> tokenizer_files_of(const std::string& shard_path) {
  const std::string folder = parent_dir(shard_path), path = joined(folder, kTokenizerFile);
  if (!is_file(path)) return {};
  std::vector<TokenizerFile> files{{kTokenizerFile, read_file(path, kMaxDescriptor)}};
  for (const std::string& name : parse_descriptor(files[0].content, path).files)
    files.push_back(read_source(joined(folder, name.c_str())));
  return files;
}

bool same_tokenizer(const std::string& shard_path, const std::string& other_path) {
  const auto descriptor_of = [](const std::string& shard) -> std::optional<Descriptor> {
    const std::string path = joined(parent_dir(shard), kTokenizerFile);
    try {
      if (is_file(path)) return parse_descriptor(read_file(path, kMaxDescriptor), path);
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): loading the tokenizer reports the error
    }
    return std::nullopt;
  };
  const auto a = descriptor_of(shard_path), b = descriptor_of(other_path);
  const auto identity = [](const Descriptor& d) {
    return std::tie(d.type, d.vocab_size, d.eod_id, d.fingerprint, d.split, d.special_tokens);
  };
  return !a || !b || identity(*a) == identity(*b);
}

void write_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  make_dirs(folder);
  const std::vector<TokenizerFile>& files = tokenizer.files();
  for (size_t i = files.size(); i-- > 0;) write_file(joined(folder, files[i].name.c_str()), files[i].content);
}

}  // namespace athanor
