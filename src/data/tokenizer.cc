#include "data/tokenizer.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "data/byte_tokenizer.h"

namespace athanor {
namespace {

constexpr int64_t kMaxDescriptor = 64 << 10;

std::string beside(const std::string& folder) {
  return (std::filesystem::path(folder.empty() ? "." : folder) / kTokenizerFile).string();
}

nlohmann::json read_descriptor(const std::string& path) {
  const nlohmann::json json = nlohmann::json::parse(read_file(path, kMaxDescriptor), nullptr, false);
  if (!json.is_object() || !json.contains("type") || !json["type"].is_string())
    throw Error(cat(path, ": expected a JSON object with a string \"type\", such as {\"type\": \"byte\"}"),
                Exit::usage);
  return json;
}

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name) {
  if (name == "byte") return std::make_unique<ByteTokenizer>();
  throw Error(cat("tokenizer: expected \"byte\", got \"", name, "\""), Exit::usage);
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  std::error_code ignored;
  const std::string file = std::filesystem::is_directory(path, ignored) ? beside(path) : path;
  const nlohmann::json json = read_descriptor(file);
  auto tokenizer = with_context(file, [&] { return make_tokenizer(json["type"].get<std::string>()); });
  const auto agree = [&](const char* key, int64_t expected) {
    if (json.contains(key) && json[key] != expected)
      throw Error(cat(file, ": ", key, " of the \"", tokenizer->name(), "\" tokenizer is ", expected,
                      ", the file says ", json[key].dump()),
                  Exit::usage);
  };
  agree("vocab_size", tokenizer->vocab_size());
  agree("eod_id", tokenizer->eod_id());
  return tokenizer;
}

std::unique_ptr<Tokenizer> find_tokenizer(const std::string& shard_path) {
  const std::string file = beside(std::filesystem::path(shard_path).parent_path().string());
  std::error_code ignored;
  return std::filesystem::exists(file, ignored) ? load_tokenizer(file) : nullptr;
}

std::string tokenizer_descriptor(const Tokenizer& tokenizer) {
  const nlohmann::ordered_json json = {
      {"type", tokenizer.name()}, {"vocab_size", tokenizer.vocab_size()}, {"eod_id", tokenizer.eod_id()}};
  return json.dump() + "\n";
}

void write_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  make_dirs(folder);
  write_file(beside(folder), tokenizer_descriptor(tokenizer));
}

}  // namespace athanor
