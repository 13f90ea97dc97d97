#include "data/dataset.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/file.h"
#include "data/glob.h"
#include "tokenizer/load.h"

namespace athanor {
namespace {

constexpr int64_t kEndBytes = 64 << 10;   // bytes checked at each end of a shard when it is opened
constexpr int64_t kMaskTokens = 1 << 20;  // tokens per read
constexpr int64_t kMaxSeqLength = int64_t{1} << 30;

// Finds a wrong dtype, a wrong tokenizer or padding with invalid ids at a shard's ends, before training reads it.
// Returns a warning about the type of the tokens; "": none.
std::string check_ends(const TokenFile& shard) {
  std::vector<int32_t> tokens(size_t(std::min(shard.count(), kEndBytes / item_size(shard.layout().type))));
  shard.read(0, tokens);
  std::string doubt = doubt_of_type(shard.layout(), tokens);
  shard.read(shard.count() - int64_t(tokens.size()), tokens);
  return doubt;
}

void add(Xxh3& hash, int64_t value) { hash.update(&value, sizeof value); }
void add(Xxh3& hash, const std::string& text) {
  add(hash, int64_t(text.size()));  // the length distinguishes "ab", "c" from "a", "bc"
  hash.update(text.data(), text.size());
}

void add_ends(Xxh3& hash, const StableFile& file) {
  add(hash, file.bytes());
  std::vector<std::byte> end(size_t(std::min(file.bytes(), kEndBytes)));
  file.read(0, end);
  hash.update(end);
  file.read(file.bytes() - int64_t(end.size()), end);
  hash.update(end);
}

}  // namespace

Dataset::Source Dataset::open_image_source(const ShardSource& source) const {
  Source opened{.path_glob = source.path_glob, .shards = {}, .first_window = {0}, .doubt = ""};
  for (const std::string& path : expand_glob(source.path_glob)) {
    TokenFile shard = TokenFile::open_images(path);
    const ImageFormat &found = *shard.layout().images, &wanted = *images_;
    if (found.channels != wanted.channels || found.height != wanted.height || found.width != wanted.width)
      throw Error(cat(path, ": images of ", found.channels, " x ", found.height, " x ", found.width,
                      " (channels, height, width); the model reads ", wanted.channels, " x ", wanted.height, " x ",
                      wanted.width, ": change model.num_channels and model.image_size, or make the shard again"),
                  Exit::usage);
    if (found.classes > wanted.classes)
      throw Error(cat(path, ": ", found.classes, " classes; the model has ", wanted.classes,
                      ": raise model.vocab_size (num_labels)"),
                  Exit::usage);
    opened.first_window.push_back(opened.windows() + shard.count() / found.record_bytes());
    opened.shards.push_back(std::move(shard));
  }
  if (opened.windows() == 0)
    throw Error(cat("data \"", source.path_glob, "\": its ", opened.shards.size(), " shard(s) have no image"),
                Exit::usage);
  return opened;
}

Dataset::Source Dataset::open_source(const ShardSource& source, int64_t vocab_size) const {
  Source opened{.path_glob = source.path_glob, .shards = {}, .first_window = {0}, .doubt = ""};
  int64_t tokens = 0;
  for (const std::string& path : expand_glob(source.path_glob)) {
    TokenFile shard = TokenFile::open(path, source.dtype, vocab_size);
    const std::string doubt = check_ends(shard);
    if (!doubt.empty() && opened.doubt.empty()) opened.doubt = cat(path, ": ", doubt);
    tokens += shard.count();
    const int64_t windows = std::max<int64_t>(0, shard.count() - 1) / seq_length_;
    opened.short_shards += windows == 0;
    opened.unread += windows == 0 ? shard.count() : shard.count() - 1 - windows * seq_length_;
    opened.first_window.push_back(opened.windows() + windows);
    opened.shards.push_back(std::move(shard));
  }
  if (opened.windows() == 0)
    throw Error(cat("data \"", source.path_glob, "\": expected a shard of at least ", seq_length_ + 1,
                    " tokens (seq_length + 1), found ", tokens, " tokens in ", opened.shards.size(),
                    " shard(s): shorten seq_length or give more data"),
                Exit::usage);
  require_targets(opened);
  return opened;
}

// Throws if a loss mask excludes all tokens: the loss of these windows would be 0. Reads only up to the first predicted
// token.
void Dataset::require_targets(const Source& source) {
  std::vector<uint8_t> mask;
  for (const TokenFile& shard : source.shards) {
    if (!shard.layout().mask) return;
    for (int64_t at = 0; at < shard.count(); at += kMaskTokens) {
      mask.resize(size_t(std::min(kMaskTokens, shard.count() - at)));
      shard.read_mask(at, mask);
      if (std::any_of(mask.begin(), mask.end(), [](uint8_t counts) { return counts != 0; })) return;
    }
  }
  throw Error(cat("data \"", source.path_glob, "\": the loss mask leaves out every token of ", source.shards.size(),
                  " shard(s): nothing would be learned; fix the mask, or leave this data out"),
              Exit::usage);
}

std::string Dataset::first_shared_shard(const Dataset& other) const {
  const auto ends_of = [](const TokenFile& shard) {
    Xxh3 hash;
    add_ends(hash, shard.file());
    return hash.hex();
  };
  std::map<int64_t, std::vector<const TokenFile*>> mine;  // by size: only shards of equal size must be compared
  for (const Source& source : sources_)
    for (const TokenFile& shard : source.shards) mine[shard.file().bytes()].push_back(&shard);
  for (const Source& source : other.sources_)
    for (const TokenFile& shard : source.shards)
      if (const auto alike = mine.find(shard.file().bytes()); alike != mine.end())
        for (const TokenFile* candidate : alike->second)
          if (ends_of(*candidate) == ends_of(shard)) return shard.path();
  return "";
}

Dataset Dataset::open(const std::vector<ShardSource>& sources, int64_t seq_length, int64_t vocab_size,
                      const std::vector<MixtureStage>& stages) {
  return open(sources, seq_length, vocab_size, stages, {});
}

Dataset Dataset::open_images(const std::vector<ShardSource>& sources, int64_t seq_length, const ImageFormat& images,
                             const std::vector<MixtureStage>& stages) {
  return open(sources, seq_length, 0, stages, images);
}

Dataset Dataset::open(const std::vector<ShardSource>& sources, int64_t seq_length, int64_t vocab_size,
                      const std::vector<MixtureStage>& stages, const std::optional<ImageFormat>& images) {
  if (sources.empty()) throw Error("data: expected at least one source, got none", Exit::usage);
  if (seq_length < 1 || seq_length > kMaxSeqLength)
    throw Error(cat("data: expected seq_length of 1 to ", kMaxSeqLength, ", got ", seq_length), Exit::usage);
  std::vector<MixtureStage> all = {{}};
  for (const ShardSource& s : sources) all.front().weights.push_back(s.weight);
  all.insert(all.end(), stages.begin(), stages.end());
  for (size_t i = 0; i < sources.size(); ++i)
    if (std::ranges::all_of(all, [&](const MixtureStage& stage) { return stage.weights[i] == 0; }))
      throw Error(cat("data \"", sources[i].path_glob, "\": its weight is 0; leave it out"), Exit::usage);
  Dataset dataset(seq_length, Mixture(all));
  dataset.images_ = images;
  raise_file_limit();  // one descriptor per shard stays open; open() reports a limit that is still too low
  for (const ShardSource& s : sources) {
    dataset.sources_.push_back(images ? dataset.open_image_source(s) : dataset.open_source(s, vocab_size));
    for (const TokenFile& shard : dataset.sources_.back().shards) dataset.tokens_ += shard.count();
  }
  dataset.count_windows();
  return dataset;
}

void Dataset::pack(const RowPacking& packing) {
  packing_ = packing;
  packing_.row_tokens = seq_length_ + 1;
  for (Source& source : sources_) {
    source.packed = std::make_unique<PackedSource>(source.shards, packing_);
    source.unread = source.short_shards = 0;
  }
  count_windows();
}

void Dataset::reorder(const FillInTheMiddle& fim) {
  if (fim.rate > 0 && has_loss_mask())
    throw Error(cat("fim.rate: ", fim.rate, " reorders documents, and ", first_shard(),
                    " or another shard has a loss mask, which says what is predicted in the order of the text; set "
                    "fim.rate to 0, or leave the mask out"),
                Exit::usage);
  fim_ = fim;
}

std::string Dataset::first_of_other_tokenizer(const std::string& shard) const {
  std::set<std::string> seen;
  for (const Source& source : sources_)
    for (const TokenFile& own : source.shards)
      if (seen.insert(parent_dir(own.path())).second && !same_tokenizer(own.path(), shard)) return own.path();
  return "";
}

void Dataset::count_windows() {
  windows_ = 0;
  for (const Source& source : sources_) windows_ += source.windows();
  fingerprints_ = compute_fingerprints();
  description_ = describe();
}

Sample Dataset::locate(const SampleOrder& order, int64_t n) const {
  const auto [index, position] = mixture_(n);
  const Source& source = sources_[size_t(index)];
  const int64_t epoch = position / source.windows();
  int64_t window = position % source.windows();
  if (source.packed) return {index, epoch, window, -1, 0, order};
  if (order.shuffled) {
    CHECK(epoch < int64_t{1} << 32, "epoch ", epoch);  // the Philox stream has 32 bits each for source and epoch
    window = Permutation(source.windows(), order.seed, uint64_t(index) << 32 | uint64_t(epoch))(window);
  }
  Sample sample = at(index, window);
  sample.epoch = epoch;
  sample.order = order;
  return sample;
}

Sample Dataset::at(int64_t index, int64_t window) const {
  const Source& source = sources_[size_t(index)];
  CHECK(!source.packed, "windows of a packed source");
  const auto after = std::upper_bound(source.first_window.begin(), source.first_window.end(), window);
  const int64_t shard = after - source.first_window.begin() - 1;
  const int64_t step = images_ ? source.shards[size_t(shard)].layout().images->record_bytes() : seq_length_;
  return {index, 0, window, shard, (window - source.first_window[size_t(shard)]) * step};
}

int64_t Dataset::window_number(const Sample& at) const {
  CHECK(at.shard >= 0, "a window of a packed source");
  int64_t before = 0;
  for (int64_t source = 0; source < at.source; ++source) before += windows(source);
  return before + at.window;
}

Sample Dataset::window(int64_t number) const {
  CHECK(number >= 0 && number < windows_, "window ", number, " of ", windows_);
  int64_t source = 0;
  while (number >= windows(source)) number -= windows(source++);
  return at(source, number);
}

Window Dataset::read_window(const Source& source, const Sample& at, const PackingOptions& options) const {
  if (source.packed)
    return source.packed->read({.seed = at.order.seed,
                                .source = uint64_t(at.source),
                                .shuffled = at.order.shuffled,
                                .position = at.epoch * source.windows() + at.window});
  const TokenFile& shard = source.shards[size_t(at.shard)];
  const auto size = size_t(seq_length_ + 1);
  Window window{.tokens = std::vector<int32_t>(size), .mask = std::vector<uint8_t>(size), .ends = {}};
  shard.read(at.token, window.tokens);
  shard.read_mask(at.token, window.mask);
  if (!options.needs_documents() && fim_.rate == 0) return window;
  if (const auto& index = shard.layout().documents) {
    window.ends = index->ends_within(at.token, seq_length_);
    for (int64_t& end : window.ends) end -= at.token;
  } else {
    const int64_t eod_id = options.needs_documents() ? options.eod_id : fim_.eod_id;
    window.ends = ends_by_token(std::span(window.tokens).first(size - 1), eod_id);
  }
  return window;
}

int64_t Dataset::read_row(const Sample& at, const PackingOptions& options, const Row& row) const {
  CHECK(int64_t(row.tokens.size()) == seq_length_, "row of ", row.tokens.size(), " tokens, expected ", seq_length_);
  if (images_) {
    const TokenFile& shard = sources_[size_t(at.source)].shards[size_t(at.shard)];
    const ImageFormat& format = *shard.layout().images;
    std::ranges::fill(row.tokens, 0);
    std::ranges::fill(row.targets, -1);
    row.tokens.front() = 1;
    row.targets.front() = int32_t(read_image(shard.file(), format, at.token / format.record_bytes(), row.pixels));
    return 0;
  }
  Window window = read_window(sources_[size_t(at.source)], at, options);
  if (fim_.rate > 0) fill_in_the_middle(window, fim_, {at.order.seed, at.source, at.epoch, at.window});
  return athanor::pack(window, options, row);
}

bool Dataset::has_document_indices() const {
  for (const Source& source : sources_)
    for (const TokenFile& shard : source.shards)
      if (!shard.layout().documents) return false;
  return true;
}

bool Dataset::has_loss_mask() const {
  return std::ranges::any_of(sources_, [](const Source& source) {
    return std::ranges::any_of(source.shards, [](const TokenFile& shard) { return shard.layout().mask.has_value(); });
  });
}

double Dataset::share(int64_t source) const {
  return double(mixture_.shares(0)[size_t(source)]) / double(mixture_.period(0));
}

// The fingerprint of a stage hashes the fingerprint of the stage before and the weights that it changes.
std::vector<std::string> Dataset::compute_fingerprints() const {
  Xxh3 hash;
  add(hash, seq_length_);
  if (sources_.front().packed)
    for (const int64_t value : {packing_.documents, packing_.eod_id, packing_.bos_id}) add(hash, value);
  const std::vector<int64_t> shares = mixture_.shares(0);
  for (size_t i = 0; i < sources_.size(); ++i) {
    add(hash, shares[i]);
    add(hash, int64_t(sources_[i].shards.size()));
    for (const TokenFile& shard : sources_[i].shards) {
      add(hash, base_name(shard.path()));
      add(hash, shard.layout().format);
      add_ends(hash, shard.file());
      if (const auto& documents = shard.layout().documents) add_ends(hash, documents->file());
      if (const auto& mask = shard.layout().mask; mask && mask->file) add_ends(hash, *mask->file);
    }
  }
  std::vector<std::string> all = {hash.hex()};
  for (size_t stage = 1; stage < mixture_.stages(); ++stage) {
    Xxh3 next;
    add(next, all.back());
    add(next, mixture_.first_sample(stage));
    for (const int64_t share : mixture_.shares(stage)) add(next, share);
    all.push_back(next.hex());
  }
  return all;
}

const std::string& Dataset::fingerprint(int64_t samples) const {
  size_t begun = 1;
  while (begun < mixture_.stages() && mixture_.first_sample(begun) < samples) ++begun;
  return fingerprints_[begun - 1];
}

std::vector<std::string> Dataset::doubts() const {
  constexpr double kMuch = 0.1;  // fraction of a source's tokens
  std::vector<std::string> all;
  for (const Source& s : sources_) {
    if (!s.doubt.empty()) all.push_back(s.doubt);
    int64_t tokens = 0;
    for (const TokenFile& shard : s.shards) tokens += shard.count();
    if (s.short_shards == 0 && double(s.unread) <= kMuch * double(tokens)) continue;
    const std::string why =
        s.short_shards > 0 ? cat(s.short_shards, " of its ", s.shards.size(), " shard(s) are shorter than that") : "";
    all.push_back(cat(s.path_glob, ": ", s.unread, " of ", tokens, " tokens are never read, because windows of ",
                      seq_length_ + 1, " tokens (seq_length + 1) lie within one shard", why.empty() ? "" : "; ", why,
                      ": join shards, or shorten seq_length"));
  }
  return all;
}

std::string Dataset::describe() const {
  std::ostringstream out;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& s = sources_[i];
    int64_t tokens = 0;
    for (const TokenFile& shard : s.shards) tokens += shard.count();
    out << (i ? "\n" : "") << s.path_glob << ": " << s.shards.size() << " shard(s), "
        << s.shards.front().layout().format << ", ";
    if (images_)
      out << s.windows() << " images";
    else
      out << tokens << " tokens, " << s.windows() << (s.packed ? " rows of " : " windows of ") << seq_length_;
    if (s.packed) out << ", " << s.packed->counts();
    if (std::any_of(s.shards.begin(), s.shards.end(),
                    [](const TokenFile& shard) { return shard.layout().mask.has_value(); }))
      out << ", loss mask";
    for (size_t stage = 0; sources_.size() > 1 && stage < mixture_.stages(); ++stage) {
      out << (stage ? "; " : ", ") << mixture_.shares(stage)[i] << "/" << mixture_.period(stage) << " of the samples";
      if (stage) out << " from sample " << mixture_.first_sample(stage) << " on";
    }
  }
  return out.str();
}

}  // namespace athanor
