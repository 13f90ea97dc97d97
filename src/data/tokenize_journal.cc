#include "data/tokenize_journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace athanor {
namespace {

constexpr int64_t kMaxBytes = 64 << 10;

nlohmann::ordered_json to_json(const ShardState& s) {
  return {{"tokens", s.tokens}, {"shard_tokens", s.shard_tokens}, {"shards", s.shards}, {"closed", s.closed}};
}

ShardState shards_of(const nlohmann::json& json) {
  return {.tokens = json.at("tokens").get<int64_t>(),
          .shard_tokens = json.at("shard_tokens").get<int64_t>(),
          .shards = json.at("shards").get<int64_t>(),
          .closed = json.at("closed").get<bool>()};
}

bool is_sane(const TokenizeState& s) {
  const StreamPosition& p = s.position;
  for (const int64_t number :
       {p.input, p.offset, p.total, p.block_end, s.documents, s.outside_utf8, s.outside_utf8_input})
    if (number < 0) return false;
  for (const ShardState& part : s.parts)
    if (part.tokens < 0 || part.shards < 0 || part.shard_tokens < 0 || part.shard_tokens > part.tokens ||
        (part.shards == 0) != (part.tokens == 0))
      return false;
  return p.part >= 0 && p.part <= 1 && p.in_document >= 0 && p.in_document <= 3;
}

// True if `path` is still the open file: another run may have removed it when it ended.
bool is_at(const Fd& file, const std::string& path) {
  struct stat open {
  }, named{};
  return ::fstat(file.get(), &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

}  // namespace

TokenizeLock::TokenizeLock(const std::string& prefix) : path_(prefix + ".lock") {
  make_dirs(parent_dir(prefix));
  do {
    file_ = create_below(parent_dir(path_), base_name(path_), O_RDWR);
    if (!lock_file(file_, path_, cat("two `athanor tokenize` with the prefix ", prefix)))
      throw Error(cat(path_, ": another `athanor tokenize` is writing shards of this output prefix",
                      ": wait for it, stop it, or choose another prefix"),
                  Exit::usage);
  } while (!is_at(file_, path_));
}

TokenizeLock::~TokenizeLock() { ::unlink(path_.c_str()); }

std::optional<TokenizeState> TokenizeJournal::load() const {
  std::error_code ignored;
  if (!std::filesystem::exists(path_, ignored)) return {};
  const std::string text = read_file(path_, kMaxBytes);
  TokenizeState s;
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    if (json.at("identity") != identity_)
      throw Error(cat(path_,
                      ": a run with other inputs, options or tokenizer was interrupted here; repeat its command, "
                      "choose another prefix, or start again with --overwrite"),
                  Exit::usage);
    const nlohmann::json& p = json.at("position");
    s.position = {.input = p.at("input").get<int64_t>(),
                  .offset = p.at("offset").get<int64_t>(),
                  .total = p.at("total").get<int64_t>(),
                  .block_end = p.at("block_end").get<int64_t>(),
                  .part = p.at("part").get<int64_t>(),
                  .in_document = p.at("in_document").get<int64_t>()};
    s.parts = {shards_of(json.at("train")), shards_of(json.at("valid"))};
    s.documents = json.at("documents").get<int64_t>();
    s.outside_utf8 = json.value("outside_utf8", int64_t{0});  // absent in older progress files
    s.outside_utf8_input = json.value("outside_utf8_input", int64_t{0});
  } catch (const nlohmann::json::exception& e) {
    throw Error(cat(path_, ": damaged: ", json_problem(e.what()), "; start again with --overwrite"), Exit::usage);
  }
  if (!is_sane(s))
    throw Error(cat(path_, ": damaged: numbers out of range; start again with --overwrite"), Exit::usage);
  return s;
}

void TokenizeJournal::save(const TokenizeState& s) const {
  const StreamPosition& p = s.position;
  const nlohmann::ordered_json json = {{"identity", identity_},
                                       {"position",
                                        {{"input", p.input},
                                         {"offset", p.offset},
                                         {"total", p.total},
                                         {"block_end", p.block_end},
                                         {"part", p.part},
                                         {"in_document", p.in_document}}},
                                       {"train", to_json(s.parts[kTrain])},
                                       {"valid", to_json(s.parts[kValid])},
                                       {"documents", s.documents},
                                       {"outside_utf8", s.outside_utf8},
                                       {"outside_utf8_input", s.outside_utf8_input}};
  write_file(path_, json.dump() + "\n");
}

void TokenizeJournal::remove() const { remove_tree(path_); }

}  // namespace athanor
