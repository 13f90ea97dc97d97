#include "convert/end_tokens.h"

#include <filesystem>
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

}  // namespace

std::vector<int32_t> end_tokens(const ModelFolder& model) {
  std::vector<int32_t> ids;
  for (const ModelFolder* at = &model; at; at = at->base())
    for (const char* name : {"generation_config.json", "config.json"}) {
      const std::string path = cat(at->path(), "/", name);
      std::error_code ignored;
      if (!std::filesystem::is_regular_file(path, ignored)) continue;
      const auto json = parse_json_text<nlohmann::json>(read_file_in(at->path(), name, kMaxBytes, at->links()), path);
      const auto found = json.find("eos_token_id");
      if (found == json.end() || found->is_null()) continue;
      if (!found->is_array()) return {token_id(*found, path)};
      for (const nlohmann::json& id : *found) ids.push_back(token_id(id, path));
      return ids;
    }
  return ids;
}

}  // namespace athanor
