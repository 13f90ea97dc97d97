#include "data/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>

#include "base/error.h"
#include "base/int.h"
#include "data/glob.h"
#include "data/ngram.h"
#include "data/token_file.h"
#include "tokenizer/load.h"

namespace athanor {
namespace {

constexpr int64_t kChunk = 1 << 18;            // tokens read at a time
constexpr int64_t kSampleTokens = 32'000'000;  // maximum tokens that info reads
constexpr int64_t kNgramTokens = 8'000'000;    // maximum tokens for n-grams, of training and of validation text each
constexpr int64_t kExcerptTokens = 240;
constexpr int kTopTokens = 10, kMaxRanges = 20;

// A shard that two patterns name would be counted twice.
std::vector<std::string> expand_all(const std::vector<std::string>& patterns) {
  if (patterns.empty()) throw Error("data: expected at least one file or pattern, got none", Exit::usage);
  std::vector<std::string> paths;
  std::map<std::string, std::string> seen;  // path without links, and how it was named
  for (const std::string& pattern : patterns)
    for (std::string& path : expand_glob(pattern)) {
      std::error_code unknown;
      const std::string real = std::filesystem::canonical(path, unknown);
      if (const auto [other, added] = seen.try_emplace(unknown ? path : real, path); !added)
        throw Error(cat("data: expected each shard once, got ", path, " twice",
                        other->second == path ? "" : cat(" (also as ", other->second, ")"), ": name it once"),
                    Exit::usage);
      paths.push_back(std::move(path));
    }
  return paths;
}

int64_t vocab_of(const ShardReportOptions& options, const Tokenizer* tokenizer) {
  return options.vocab_size > 0 || !tokenizer ? options.vocab_size : tokenizer->vocab_size();
}

// Calls fn(number of the first token, tokens) for the tokens [at, end) in chunks.
template <class Fn>
void each_chunk(const TokenFile& shard, int64_t at, int64_t end, Fn&& fn) {
  std::vector<int32_t> tokens;
  for (; at < end; at += kChunk) {
    tokens.resize(size_t(std::min(kChunk, end - at)));
    shard.read_unchecked(at, tokens);
    fn(at, std::span<const int32_t>(tokens));
  }
}

// Collects runs of consecutive tokens outside the vocabulary.
class BadRanges {
 public:
  explicit BadRanges(int64_t limit) : limit_(limit) {}
  void add(int64_t at, std::span<const int32_t> tokens) {
    uint32_t largest = 0;
    for (int32_t t : tokens) largest = std::max(largest, uint32_t(t));
    if (int64_t{largest} < limit_) return;
    for (size_t i = 0; i < tokens.size(); ++i)
      if (int64_t{uint32_t(tokens[i])} >= limit_) add_one(at + int64_t(i), uint32_t(tokens[i]));
  }
  bool empty() const { return count_ == 0; }
  std::string report(const std::string& path) const {
    std::ostringstream out;
    for (const Range& r : ranges_) {
      out << "\n  " << path << ": token" << (r.end - r.begin > 1 ? "s " : " ") << r.begin;
      if (r.end - r.begin > 1) out << " to " << r.end - 1;
      out << " (largest " << r.largest << ") not below the vocabulary's size " << limit_;
    }
    if (count_ > int64_t(ranges_.size()))
      out << "\n  " << path << ": and " << count_ - int64_t(ranges_.size()) << " more ranges";
    return out.str();
  }

 private:
  struct Range {
    int64_t begin, end;
    uint32_t largest;
  };
  void add_one(int64_t at, uint32_t token) {
    if (at != last_ + 1 || empty()) {
      ++count_;
      if (count_ <= kMaxRanges) ranges_.push_back({at, at, 0});
    }
    last_ = at;
    if (count_ > kMaxRanges) return;
    ranges_.back().end = at + 1;
    ranges_.back().largest = std::max(ranges_.back().largest, token);
  }
  int64_t limit_, count_ = 0, last_ = -1;
  std::vector<Range> ranges_;
};

struct Frequencies {
  std::vector<int64_t> counts;  // [ids]
  int64_t total = 0, invalid = 0;
  void add(std::span<const int32_t> tokens) {
    constexpr int32_t kMaxIds = 1 << 22;  // no vocabulary has larger ids
    for (int32_t t : tokens) {
      if (t < 0 || t >= kMaxIds) {
        ++invalid;
        continue;
      }
      if (size_t(t) >= counts.size()) counts.resize(std::max(size_t(t) + 1, counts.size() * 2));
      ++counts[size_t(t)];
      ++total;
    }
  }
};

std::string printable(const std::string& text) {
  std::ostringstream out;
  for (char c : text) {
    const auto byte = uint8_t(c);
    if (c == '\n')
      out << "\\n";
    else if (byte < 0x20 || byte == 0x7f)  // escaped, so that text cannot control the terminal
      out << "\\x" << std::hex << std::setw(2) << std::setfill('0') << int(byte) << std::dec;
    else
      out << c;
  }
  return out.str();
}

std::string decode_or_complain(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                               TextPlace place = TextPlace::document) {
  try {
    return printable(tokenizer.decode(ids, place));
  } catch (const Error& e) {
    return cat("(", e.what(), ")");
  }
}

std::string describe(const Frequencies& f, int64_t vocab_size, const Tokenizer* tokenizer) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2);
  std::vector<int32_t> ids;
  double entropy = 0;
  for (size_t id = 0; id < f.counts.size(); ++id) {
    if (f.counts[id] == 0) continue;
    ids.push_back(narrow<int32_t>(id));
    const double p = double(f.counts[id]) / double(f.total);
    entropy -= p * std::log(p);
  }
  out << "frequencies: of " << f.total << " tokens looked at, " << ids.size() << " distinct ids";
  if (!ids.empty()) out << " from " << ids.front() << " to " << ids.back() << ", entropy " << entropy << " nats";
  if (vocab_size > 0) out << ", vocabulary " << vocab_size;
  out << "\n";
  const size_t top = std::min<size_t>(kTopTokens, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + int64_t(top), ids.end(), [&](int32_t a, int32_t b) {
    return std::pair(-f.counts[size_t(a)], a) < std::pair(-f.counts[size_t(b)], b);
  });
  for (size_t i = 0; i < top; ++i) {
    out << "  " << std::setw(6) << 100.0 * double(f.counts[size_t(ids[i])]) / double(f.total) << " %  " << ids[i];
    if (tokenizer) out << "  \"" << decode_or_complain(*tokenizer, {&ids[i], 1}, TextPlace::inside) << "\"";
    out << "\n";
  }
  return out.str();
}

// Document lengths in token runs, by the end-of-document token. If the very first token is that token, it begins
// documents instead (llm.c); lengths are the same.
class DocumentScan {
 public:
  explicit DocumentScan(int64_t eod_id) : eod_id_(eod_id) {}
  // `follows`: the tokens directly follow the previous ones; otherwise a document cut at this point is not counted.
  void add(std::span<const int32_t> tokens, bool follows) {
    if (!follows) open_ = false;
    for (const int32_t token : tokens) {
      if (looked_at_++ == 0) open_ = true, begins_ = token == eod_id_;
      if (begins_ && token == eod_id_) close();
      ++length_;
      if (!begins_ && token == eod_id_) close();
    }
  }
  // `whole`: the last tokens were the end of the data.
  DocumentStatistics finish(bool whole) {
    if (whole && length_ > 0) close();
    return statistics_;
  }

 private:
  void close() {
    if (open_ && length_ > 0) statistics_.add(length_);
    open_ = true;
    length_ = 0;
  }
  const int64_t eod_id_;
  bool begins_ = false, open_ = false;  // open_: the start of the current document was seen
  int64_t length_ = 0, looked_at_ = 0;
  DocumentStatistics statistics_;
};

std::string describe(const DocumentStatistics& d, const std::string& source) {
  std::ostringstream out;
  out << "documents: " << d.count << " (" << source << ")";
  if (d.count > 0)
    out << ", mean " << std::fixed << std::setprecision(1) << double(d.tokens) / double(d.count) << " tokens, shortest "
        << d.shortest << ", longest " << d.longest;
  return out.str() + "\n";
}

// The first `limit` tokens of the shards, in order.
std::vector<int32_t> first_tokens(const std::vector<TokenFile>& shards, int64_t limit) {
  std::vector<int32_t> tokens;
  for (const TokenFile& shard : shards) {
    const int64_t have = int64_t(tokens.size()), n = std::min(limit - have, shard.count());
    tokens.resize(size_t(have + n));
    shard.read(0, std::span(tokens).last(size_t(n)));
  }
  return tokens;
}

std::string ngram_report(const ShardReportOptions& options, const std::vector<TokenFile>& shards, int64_t vocab_size) {
  if (vocab_size <= 0)
    throw Error("data info --ngram: needs the vocabulary's size: give --vocab-size or --tokenizer", Exit::usage);
  std::vector<int32_t> train = first_tokens(shards, kNgramTokens), valid;
  if (!options.ngram_valid_glob.empty()) {
    std::vector<TokenFile> held_out;
    for (const std::string& path : expand_glob(options.ngram_valid_glob))
      held_out.push_back(TokenFile::open(path, options.dtype, vocab_size));
    valid = first_tokens(held_out, kNgramTokens);
  } else {
    const size_t kept = train.size() - train.size() / 20;
    valid.assign(train.begin() + int64_t(kept), train.end());
    train.resize(kept);
  }
  return cat("n-grams: ", to_string(ngram_baselines(train, valid, vocab_size)), "\n");
}

std::string doubt_at_start(const TokenFile& shard) {
  std::vector<int32_t> tokens(size_t(std::min(shard.count(), kChunk)));
  shard.read_unchecked(0, tokens);
  return doubt_of_type(shard.layout(), tokens);
}

// The shards that could be opened, and one line of text per shard.
struct Opened {
  std::vector<TokenFile> shards;
  int64_t tokens = 0;
  std::ostringstream lines, problems;
};

void open_all(std::span<const std::string> paths, const std::string& dtype, Opened& opened) {
  for (const std::string& path : paths) {
    try {
      TokenFile shard = TokenFile::open(path, dtype);
      const TokenLayout& layout = shard.layout();
      opened.lines << path << ": " << layout.format << ", " << layout.count << " tokens, " << shard.bytes() << " bytes"
                   << (layout.documents ? cat(", ", layout.documents->count(), " documents") : "")
                   << (layout.mask ? ", loss mask" : "") << "\n";
      opened.tokens += layout.count;
      if (const std::string doubt = doubt_at_start(shard); !doubt.empty())
        opened.problems << "problem: " << path << ": " << doubt << "\n";
      opened.shards.push_back(std::move(shard));
    } catch (const Error& e) {
      opened.problems << "problem: " << e.what() << "\n";
    }
  }
  opened.lines << "total: " << opened.shards.size() << " shard(s), " << opened.tokens << " tokens\n";
}

// Statistics of the tokens read: all tokens, or chunks spread evenly over each shard.
struct Looked {
  Frequencies frequencies;
  DocumentStatistics documents;
  int64_t tokens = 0, masked = 0;
  bool all = true;
};

Looked look(const Opened& opened, int64_t eod_id) {
  Looked found;
  DocumentScan documents(eod_id);
  const double keep = std::min(1.0, double(kSampleTokens) / double(opened.tokens));
  found.all = keep == 1.0;
  std::vector<uint8_t> mask;
  for (const TokenFile& shard : opened.shards) {
    const int64_t stride = std::max(kChunk, int64_t(double(kChunk) / keep));
    for (int64_t at = 0; at < shard.count(); at += stride)
      each_chunk(shard, at, std::min(at + kChunk, shard.count()), [&](int64_t begin, auto chunk) {
        found.frequencies.add(chunk);
        documents.add(chunk, found.all);
        found.tokens += int64_t(chunk.size());
        if (!shard.layout().mask) return;
        mask.resize(chunk.size());
        shard.read_mask(begin, mask);
        found.masked += std::count(mask.begin(), mask.end(), uint8_t{0});
      });
  }
  found.documents = documents.finish(found.all);
  return found;
}

// Document statistics from the index if the format has one, else by the end-of-document token.
std::string document_report(const Opened& opened, const Looked& looked, int64_t eod_id) {
  DocumentStatistics indexed;
  bool all_indexed = true;
  for (const TokenFile& shard : opened.shards) {
    all_indexed = all_indexed && shard.layout().documents;
    if (!shard.layout().documents) continue;
    const DocumentStatistics one = shard.layout().documents->statistics();
    indexed.shortest = indexed.count == 0 ? one.shortest : std::min(indexed.shortest, one.shortest);
    indexed.longest = std::max(indexed.longest, one.longest);
    indexed.count += one.count;
    indexed.tokens += one.tokens;
  }
  if (all_indexed) return describe(indexed, "by the index");
  if (eod_id < 0) return "documents: unknown; --eod-id or --tokenizer says what ends one\n";
  return describe(looked.documents, cat("by token ", eod_id,
                                        looked.all ? "" : cat(", whole ones in ", looked.tokens, " tokens looked at")));
}

std::unique_ptr<Tokenizer> tokenizer_of(const ShardReportOptions& options, const std::string& shard) {
  return options.tokenizer.empty() ? find_tokenizer(shard) : make_tokenizer({.source = options.tokenizer});
}

// Writes everything derived from the tokens.
void describe_tokens(const ShardReportOptions& options, Opened& opened) {
  const TokenFile& first = opened.shards.front();
  const auto tokenizer = tokenizer_of(options, first.path());
  const int64_t vocab = vocab_of(options, tokenizer.get());
  const int64_t eod_id = options.eod_id >= 0 || !tokenizer ? options.eod_id : tokenizer->eod_id();
  const Looked looked = look(opened, eod_id);
  opened.lines << document_report(opened, looked, eod_id) << describe(looked.frequencies, vocab, tokenizer.get());
  if (looked.masked > 0)
    opened.lines << "loss mask: " << looked.masked << " of " << looked.tokens
                 << " tokens looked at are not predicted\n";
  int64_t outside = looked.frequencies.invalid;
  for (size_t id = size_t(vocab); vocab > 0 && id < looked.frequencies.counts.size(); ++id)
    outside += looked.frequencies.counts[id];
  if (outside > 0)
    opened.problems << "problem: " << outside
                    << " of the tokens looked at are outside the vocabulary: `data verify` says where\n";
  if (tokenizer) {
    std::vector<int32_t> start(size_t(std::min(kExcerptTokens, first.count())));
    first.read_unchecked(0, start);
    opened.lines << "starts: \"" << decode_or_complain(*tokenizer, start) << "\"\n";
  }
  if (options.ngram && outside == 0) opened.lines << ngram_report(options, opened.shards, vocab);
}

}  // namespace

std::string data_verify(const ShardReportOptions& options) {
  std::ostringstream bad;
  int64_t tokens = 0;
  const std::vector<std::string> paths = expand_all(options.path_globs);
  if (is_image_shard(paths.front())) {
    const DataInfo info = image_info(paths);
    if (!info.sound) throw Error(cat("data verify: damaged shards, make them again:\n", info.text));
    return info.text;
  }
  for (const std::string& path : paths) {
    try {
      const auto tokenizer = tokenizer_of(options, path);
      const int64_t vocab = vocab_of(options, tokenizer.get());
      BadRanges ranges(vocab > 0 ? vocab : int64_t{std::numeric_limits<int32_t>::max()} + 1);
      const TokenFile shard = TokenFile::open(path, options.dtype);
      each_chunk(shard, 0, shard.count(), [&](int64_t at, auto chunk) { ranges.add(at, chunk); });
      tokens += shard.count();
      bad << ranges.report(path);
      if (const std::string doubt = doubt_at_start(shard); !doubt.empty()) bad << "\n  " << path << ": " << doubt;
    } catch (const Error& e) {
      bad << "\n  " << e.what();
    }
  }
  if (!bad.str().empty()) throw Error(cat("data verify: damaged shards, create or download them again:", bad.str()));
  return cat(paths.size(), " shard(s), ", tokens, " tokens: every one read and in range\n");
}

DataInfo data_info(const ShardReportOptions& options) {
  const std::vector<std::string> paths = expand_all(options.path_globs);
  if (is_image_shard(paths.front())) return image_info(paths);
  Opened opened;
  open_all(paths, options.dtype, opened);
  try {
    if (opened.tokens > 0) describe_tokens(options, opened);
  } catch (const Error& e) {
    if (e.code() == Exit::usage) throw;
    opened.problems << "problem: " << e.what() << "\n";  // a shard that opens but cannot be read
  }
  const std::string problems = opened.problems.str();
  return {opened.lines.str() + problems, problems.empty()};
}

}  // namespace athanor
