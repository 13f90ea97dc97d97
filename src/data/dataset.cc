#include "data/dataset.h"

#include <glob.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <sstream>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/error.h"

namespace athanor {
namespace {

constexpr int64_t kEndBytes = 64 << 10;  // looked at from either end of a shard when it is opened

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// One descriptor per shard stays open. Soft limits of 1024 are common beside hard limits a thousand times that.
void raise_file_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // refused: open() of the first shard too many says what to do
}

// Wrong dtype, wrong tokenizer and padding with strange ids show at a shard's ends, long before training gets there.
void check_ends(const TokenFile& shard) {
  std::vector<int32_t> tokens(size_t(std::min(shard.count(), kEndBytes / shard.layout().item_size)));
  shard.read(0, tokens);
  shard.read(shard.count() - int64_t(tokens.size()), tokens);
}

class Hash {
 public:
  Hash() { XXH3_128bits_reset(&state_); }
  void add(std::string_view bytes) {
    const uint64_t size = bytes.size();  // length first: ("ab", "c") and ("a", "bc") differ
    XXH3_128bits_update(&state_, &size, sizeof size);
    XXH3_128bits_update(&state_, bytes.data(), bytes.size());
  }
  void add(int64_t value) { XXH3_128bits_update(&state_, &value, sizeof value); }
  std::string hex() const {
    const XXH128_hash_t h = XXH3_128bits_digest(&state_);
    std::ostringstream out;
    out << std::hex << std::setfill('0') << std::setw(16) << h.high64 << std::setw(16) << h.low64;
    return out.str();
  }

 private:
  XXH3_state_t state_;
};

}  // namespace

std::vector<std::string> expand_glob(const std::string& pattern) {
  glob_t found{};
  const int rc = ::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (rc == GLOB_NOMATCH)
    throw Error(
        cat("data: no file matches \"", pattern, "\": check the path; relative ones start at the working directory"),
        Exit::usage);
  if (rc != 0) throw Error(cat("data: cannot list \"", pattern, "\": ", std::strerror(errno)));
  std::sort(paths.begin(), paths.end());
  return paths;
}

Dataset::Source Dataset::open_source(const DataSource& source, int64_t seq_length, int64_t vocab_size) {
  Source opened{source.path_glob, {}, {0}};
  int64_t tokens = 0;
  for (const std::string& path : expand_glob(source.path_glob)) {
    TokenFile shard = TokenFile::open(path, source.dtype, vocab_size);
    check_ends(shard);
    tokens += shard.count();
    opened.first_window.push_back(opened.windows() + std::max<int64_t>(0, shard.count() - 1) / seq_length);
    opened.shards.push_back(std::move(shard));
  }
  if (opened.windows() == 0)
    throw Error(cat("data \"", source.path_glob, "\": expected a shard of at least ", seq_length + 1,
                    " tokens (seq_length + 1), found ", tokens, " tokens in ", opened.shards.size(),
                    " shard(s): shorten seq_length or give more data"),
                Exit::usage);
  return opened;
}

Dataset Dataset::open(const std::vector<DataSource>& sources, int64_t seq_length, int64_t vocab_size) {
  if (sources.empty()) throw Error("data: expected at least one source, got none", Exit::usage);
  if (seq_length < 1) throw Error(cat("data: expected seq_length of at least 1, got ", seq_length), Exit::usage);
  std::vector<double> weights;
  for (const DataSource& s : sources) weights.push_back(s.weight);
  Dataset dataset(seq_length, Blend(weights));
  raise_file_limit();
  for (const DataSource& s : sources) {
    dataset.sources_.push_back(open_source(s, seq_length, vocab_size));
    dataset.windows_ += dataset.sources_.back().windows();
    for (const TokenFile& shard : dataset.sources_.back().shards) dataset.tokens_ += shard.count();
  }
  dataset.fingerprint_ = dataset.compute_fingerprint(sources);
  dataset.description_ = dataset.describe();
  return dataset;
}

Sample Dataset::locate(const SampleOrder& order, int64_t n) const {
  const auto [index, position] = blend_(n);
  const Source& source = sources_[size_t(index)];
  const int64_t epoch = position / source.windows();
  int64_t window = position % source.windows();
  if (order.shuffled) {
    CHECK(epoch < int64_t{1} << 32, "epoch ", epoch);  // stream = source and epoch, 32 bits each
    window = Permutation(source.windows(), order.seed, uint64_t(index) << 32 | uint64_t(epoch))(window);
  }
  const auto after = std::upper_bound(source.first_window.begin(), source.first_window.end(), window);
  const int64_t shard = after - source.first_window.begin() - 1;
  return {index, epoch, window, shard, (window - source.first_window[size_t(shard)]) * seq_length_};
}

void Dataset::read(const SampleOrder& order, int64_t n, std::span<int32_t> tokens) const {
  CHECK(int64_t(tokens.size()) == seq_length_ + 1, "window of ", tokens.size(), " tokens, expected ", seq_length_ + 1);
  const Sample at = locate(order, n);
  sources_[size_t(at.source)].shards[size_t(at.shard)].read(at.token, tokens);
}

std::string Dataset::compute_fingerprint(const std::vector<DataSource>& sources) const {
  Hash hash;
  hash.add(seq_length_);
  hash.add(int64_t(sources_.size()));
  std::vector<char> end;
  for (size_t i = 0; i < sources_.size(); ++i) {
    hash.add(blend_.shares()[i]);
    hash.add(int64_t(sources_[i].shards.size()));
    for (const TokenFile& shard : sources_[i].shards) {
      hash.add(base_name(shard.path()));
      hash.add(shard.layout().format);
      hash.add(shard.bytes());
      end.resize(size_t(std::min(shard.bytes(), kEndBytes)));
      shard.read_bytes(0, end);
      hash.add(std::string_view(end.data(), end.size()));
      shard.read_bytes(shard.bytes() - int64_t(end.size()), end);
      hash.add(std::string_view(end.data(), end.size()));
    }
  }
  CHECK(sources.size() == sources_.size(), "sources ", sources.size(), " and ", sources_.size());
  return hash.hex();
}

std::string Dataset::describe() const {
  std::ostringstream out;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& s = sources_[i];
    int64_t tokens = 0;
    for (const TokenFile& shard : s.shards) tokens += shard.count();
    out << (i ? "\n" : "") << s.path_glob << ": " << s.shards.size() << " shard(s), "
        << s.shards.front().layout().format << ", " << tokens << " tokens, " << s.windows() << " windows of "
        << seq_length_;
    if (sources_.size() > 1) out << ", " << blend_.shares()[i] << "/" << blend_.period() << " of the samples";
  }
  return out.str();
}

}  // namespace athanor
