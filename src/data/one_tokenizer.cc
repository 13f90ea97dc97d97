#include "data/one_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/glob.h"
#include "tokenizer/descriptor.h"
#include "tokenizer/load.h"

namespace athanor {
namespace {

// True if the folder's descriptor has this content or is missing. An unreadable descriptor counts as different.
bool has_tokenizer(const std::string& folder, const std::string& content) {
  try {
    const auto found = tokenizer_files_of(folder + "/shard");
    return found.empty() || found[0].content == content;
  } catch (const Error&) {
    return false;
  }
}

// A file in the folder that may be a shard of another run; "" if there is none.
std::string foreign_shard(const std::string& folder, std::span<const std::string> own) {
  for (const char* kind : {"/*.bin", "/*.ds"})
    for (const std::string& path : match_glob(escape_glob(folder) + kind)) {
      const std::string name = base_name(path);
      if (std::ranges::none_of(own, [&](const std::string& start) { return name.starts_with(start); })) return name;
    }
  return "";
}

// A file in the folder with the name but not the content of one that belongs to the tokenizer; "" if there is none.
std::string other_file(const std::string& folder, const Tokenizer& tokenizer) {
  for (const TokenizerFile& file : std::span(tokenizer.files()).subspan(1)) {
    const std::string path = cat(folder, "/", file.name);
    std::error_code missing;
    const auto bytes = std::filesystem::file_size(path, missing);
    if (!missing && (bytes != file.content.size() || read_file(path, int64_t(bytes)) != file.content)) return path;
  }
  return "";
}

}  // namespace

void require_one_tokenizer(const std::string& folder, const Tokenizer& tokenizer, std::span<const std::string> own,
                           bool overwrite) {
  if (has_tokenizer(folder, tokenizer.files()[0].content)) {
    const std::string other = overwrite ? "" : other_file(folder, tokenizer);
    if (other.empty()) return;
    throw Error(cat(other,
                    ": is of another tokenizer, and the shards' own would replace it; choose another folder, or "
                    "--overwrite"),
                Exit::usage);
  }
  const std::string others = foreign_shard(folder, own);
  if (!overwrite || !others.empty())
    throw Error(cat(folder, "/", kTokenizerFile, ": this folder has shards of another tokenizer",
                    others.empty() ? "; choose another folder, or --overwrite"
                                   : cat(", such as ", others,
                                         ", which are not of this prefix and would be read with "
                                         "the new one; choose another folder")),
                Exit::usage);
}

TokenizerOfShards::TokenizerOfShards(const Tokenizer& tokenizer, const std::string& folder) : folder_(folder) {
  for (const TokenizerFile& file : tokenizer.files())
    if (std::string path = cat(folder, "/", file.name); !std::filesystem::exists(path))
      added_.push_back(std::move(path));
  try {
    write_tokenizer(tokenizer, folder);
  } catch (const Error&) {
    remove();
    throw;
  }
}

TokenizerOfShards::~TokenizerOfShards() { remove(); }

void TokenizerOfShards::remove() const {
  try {
    if (added_.empty() || !foreign_shard(folder_, {}).empty()) return;
    for (const std::string& path : added_) remove_tree(path);
  } catch (const Error& e) {
    log::warn("tokenize: a tokenizer without shards was left behind, since it cannot be removed: ", e.what());
  }
}

}  // namespace athanor
