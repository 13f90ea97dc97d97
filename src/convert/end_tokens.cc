#include "convert/end_tokens.h"

#include <filesystem>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/json.h"

namespace athanor {
namespace {

constexpr int64_t kMaxBytes = int64_t{64} << 20;

int32_t token_id(const nlohmann::json& id, const std::string& path) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t(std::numeric_limits<int32_t>::max()))
    throw Error(cat(path, ": eos_token_id: expected a token's id, or a list of ids, got ", json_text(id).substr(0, 100),
                    "; correct the file"),
                Exit::usage);
  return id.get<int32_t>();
}

// Returns eos_token_id of a file of the folder; empty if there is none.
std::vector<int32_t> ids_in(const ModelFolder& at, const char* name) {
  const std::string path = cat(at.path(), "/", name);
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return {};
  const auto json = parse_json_text<nlohmann::json>(read_file_in(at.path(), name, kMaxBytes, at.links()), path);
  const auto found = json.find("eos_token_id");
  if (found == json.end() || found->is_null()) return {};
  if (!found->is_array()) return {token_id(*found, path)};
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : *found) ids.push_back(token_id(id, path));
  return ids;
}

std::vector<int32_t> first_found(const ModelFolder& model, std::initializer_list<const char*> names) {
  for (const ModelFolder* at = &model; at; at = at->base())
    for (const char* name : names)
      if (std::vector<int32_t> ids = ids_in(*at, name); !ids.empty()) return ids;
  return {};
}

}  // namespace

std::vector<int32_t> end_tokens(const ModelFolder& model) {
  return first_found(model, {"generation_config.json", "config.json"});
}

std::vector<int32_t> config_end_tokens(const ModelFolder& model) { return first_found(model, {"config.json"}); }

}  // namespace athanor
