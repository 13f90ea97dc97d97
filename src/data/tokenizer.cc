#include "data/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/byte_tokenizer.h"
#include "data/output_file.h"

namespace athanor {
namespace {

std::string beside(const std::string& folder) {
  return (std::filesystem::path(folder.empty() ? "." : folder) / kTokenizerFile).string();
}

nlohmann::json read_descriptor(const std::string& path) {
  constexpr std::streamsize kLimit = 64 << 10;
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error(cat(path, ": cannot open the tokenizer's descriptor"));
  std::string text(size_t(kLimit) + 1, '\0');
  in.read(text.data(), kLimit + 1);
  text.resize(size_t(in.gcount()));
  if (in.bad() || text.size() > size_t(kLimit))
    throw Error(cat(path, ": expected a readable JSON descriptor of at most ", kLimit, " bytes"));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
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

void write_tokenizer(const Tokenizer& tokenizer, const std::string& folder) {
  const nlohmann::ordered_json json = {
      {"type", tokenizer.name()}, {"vocab_size", tokenizer.vocab_size()}, {"eod_id", tokenizer.eod_id()}};
  OutputFile file(beside(folder));
  file.append(json.dump() + "\n");
  file.close();
  file.publish();
}

}  // namespace athanor
