#include "tokenizer/descriptor.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"

namespace athanor {
namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw Error(cat(where, ": ", what), Exit::usage);
}

template <class T>
T value_of(const nlohmann::json& json, const char* key, T otherwise, const std::string& where) {
  if (!json.contains(key)) return otherwise;
  try {
    return json.at(key).get<T>();
  } catch (const nlohmann::json::exception&) {
    refuse(where, cat(key, " has the wrong type: ", json.at(key).dump().substr(0, 80)));
  }
}

int32_t id_of(const nlohmann::json& json, const char* key, const std::string& where) {
  const auto id = value_of<int64_t>(json, key, -1, where);
  if (id < -1 || id > std::numeric_limits<int32_t>::max())
    refuse(where, cat(key, " ", id, " is not the id of a token"));
  return int32_t(id);
}

}  // namespace

std::string descriptor_text(const Descriptor& d) {
  nlohmann::ordered_json json = {{"type", d.type}, {"vocab_size", d.vocab_size}, {"eod_id", d.eod_id}};
  if (!d.files.empty()) json["files"] = d.files;
  if (!d.fingerprint.empty()) json["fingerprint"] = d.fingerprint;
  if (!d.split.empty()) json["split"] = d.split;
  if (!d.special_tokens.empty()) json["special_tokens"] = d.special_tokens;
  if (d.allow_special) json["allow_special"] = true;
  return json.dump() + "\n";
}

Descriptor parse_descriptor(const std::string& text, const std::string& where) {
  require_json_depth(text, where);
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("type") || !json["type"].is_string())
    refuse(where, "expected a JSON object with a string \"type\", such as {\"type\": \"byte\"}");
  Descriptor d;
  d.type = json["type"].get<std::string>();
  d.vocab_size = value_of<int64_t>(json, "vocab_size", 0, where);
  d.eod_id = id_of(json, "eod_id", where);
  d.files = value_of<std::vector<std::string>>(json, "files", {}, where);
  d.fingerprint = value_of<std::string>(json, "fingerprint", "", where);
  d.split = value_of<std::string>(json, "split", "", where);
  d.allow_special = value_of<bool>(json, "allow_special", false, where);
  const auto tokens = value_of<nlohmann::json>(json, "special_tokens", nlohmann::json::object(), where);
  if (!tokens.is_object()) refuse(where, "special_tokens: expected an object of texts and ids");
  for (const auto& [token, id] : tokens.items()) d.special_tokens[token] = id_of(tokens, token.c_str(), where);
  for (const std::string& name : d.files)
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      refuse(where, cat("files: expected names of files in its folder, got \"", name, "\""));
  if (d.vocab_size < 0 || d.vocab_size > std::numeric_limits<int32_t>::max())
    refuse(where, cat("vocab_size ", d.vocab_size, " is out of range"));
  return d;
}

std::string fingerprint_of(const std::vector<TokenizerFile>& files) {
  Xxh3 hash;
  for (const TokenizerFile& file : files) {
    hash.update(cat(file.content.size(), "\n").data(), cat(file.content.size(), "\n").size());
    hash.update(file.content.data(), file.content.size());
  }
  return hash.hex();
}

}  // namespace athanor
