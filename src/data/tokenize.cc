#include "data/tokenize.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "data/shard_writer.h"
#include "data/tokenizer.h"

namespace athanor {
namespace {

void require_sane(const TokenizeOptions& o) {
  const auto refuse = [](auto... parts) { throw Error(cat("tokenize: ", parts...), Exit::usage); };
  if (o.inputs.empty()) refuse("expected at least one input file, got none");
  if (o.output_prefix.empty() || o.output_prefix.back() == '/')
    refuse("output prefix: expected a path that ends in the start of a name, such as data/mine, got \"",
           o.output_prefix, "\"");
  if (o.valid_every < 0 || o.valid_every == 1)
    refuse("valid-every: expected 0 (hold out nothing) or at least 2, got ", o.valid_every);
  if (o.block < 1) refuse("block: expected at least 1 byte, got ", o.block);
}

// One part of the split, and whether the current document has reached it.
struct Part {
  ShardWriter shards;
  bool in_document = false;
};

// Deals the inputs' bytes out to the parts, block by block.
class Splitter {
 public:
  Splitter(const TokenizeOptions& options, const Tokenizer& tokenizer, Part& train, Part& valid)
      : options_(options), tokenizer_(tokenizer), train_(train), valid_(valid), buffer_(size_t{1} << 20, '\0') {}

  void add_file(const std::string& path) {
    const Fd file = open_regular(path);
    for (;;) {
      const ssize_t got = ::read(file.get(), buffer_.data(), buffer_.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw_io("reading", path, errno);
      if (got == 0) break;
      add_text(std::string_view(buffer_).substr(0, size_t(got)));
    }
    const int32_t eod = tokenizer_.eod_id();
    for (Part* part : {&train_, &valid_}) {
      if (part->in_document) part->shards.append({&eod, 1});
      part->in_document = false;
    }
  }
  int64_t bytes() const { return offset_; }

 private:
  void add_text(std::string_view text) {
    while (!text.empty()) {
      const int64_t block = offset_ / options_.block;
      const int64_t left = options_.block - offset_ % options_.block;
      const std::string_view piece = text.substr(0, size_t(std::min<int64_t>(left, int64_t(text.size()))));
      Part& part = options_.valid_every > 0 && (block + 1) % options_.valid_every == 0 ? valid_ : train_;
      part.shards.append(tokenizer_.encode(piece));
      part.in_document = true;
      text.remove_prefix(piece.size());
      offset_ += int64_t(piece.size());
    }
  }

  const TokenizeOptions& options_;
  const Tokenizer& tokenizer_;
  Part& train_;
  Part& valid_;
  std::string buffer_;
  int64_t offset_ = 0;
};

ShardOptions shards_for(const TokenizeOptions& o, const Tokenizer& tokenizer, const char* part) {
  return {.prefix = cat(o.output_prefix, "_", part, "_"),
          .vocab_size = tokenizer.vocab_size(),
          .shard_tokens = o.shard_tokens,
          .overwrite = o.overwrite};
}

std::string summarise(const TokenizeOptions& o, const Tokenizer& tokenizer, const TokenizeResult& r) {
  std::ostringstream out;
  out << r.input_bytes << " bytes in " << o.inputs.size() << " file(s), tokenizer " << tokenizer.name()
      << ", vocabulary " << tokenizer.vocab_size() << "\n";
  const auto part = [&](const char* name, int64_t tokens, const std::vector<std::string>& shards) {
    out << name << ": " << tokens << " tokens";
    if (!shards.empty()) out << " in " << shards.size() << " shard(s): " << shards.front();
    if (shards.size() > 1) out << " to " << shards.back();
    out << "\n";
  };
  part("training", r.train_tokens, r.train_shards);
  part("validation", r.valid_tokens, r.valid_shards);
  return out.str();
}

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
  require_sane(options);
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(options.tokenizer);
  for (const std::string& path : options.inputs) open_regular(path);  // all are there before the first is read
  Part train{ShardWriter(shards_for(options, *tokenizer, "train"))};
  Part valid{ShardWriter(shards_for(options, *tokenizer, "valid"))};
  Splitter splitter(options, *tokenizer, train, valid);
  for (const std::string& path : options.inputs) splitter.add_file(path);
  if (train.shards.tokens() == 0)
    throw Error(cat("tokenize: the inputs hold ", splitter.bytes(), " bytes, nothing to train on"), Exit::usage);

  TokenizeResult result;
  result.input_bytes = splitter.bytes();
  result.train_tokens = train.shards.tokens();
  result.valid_tokens = valid.shards.tokens();
  write_tokenizer(*tokenizer, parent_dir(options.output_prefix));
  result.valid_shards = valid.shards.finish();
  result.train_shards = train.shards.finish();
  result.summary = summarise(options, *tokenizer, result);
  return result;
}

}  // namespace athanor
