// All token shards of a data set under one sample numbering: sample number -> source, epoch, window -> T+1 tokens.
// Windows of T+1 consecutive tokens start T apart, so every token but a shard's tail is predicted once per epoch. The
// order depends only on (files, weights and their stages, T, seed). Thread-safe once open.
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/fill_in_the_middle.h"
#include "data/order.h"
#include "data/packed_source.h"
#include "data/packing.h"
#include "data/token_file.h"

namespace athanor {

struct ShardSource {
  std::string path_glob;       // a file, or a pattern with * ? [abc]; matches are sorted by byte order of names
  double weight = 1;           // fraction of samples, relative to the other sources
  std::string dtype = "auto";  // "auto" or the token type: see TokenFile::open
};

struct SampleOrder {
  uint64_t seed = 0;
  bool shuffled = true;  // false: windows in file order, blended by weight
};

// Location of a sample: tokens [token, token + T + 1) of shard `shard` of a source; for a packed source, row `window`
// of the epoch in this order.
struct Sample {
  int64_t source, epoch, window, shard, token;
  SampleOrder order = {};
};

class Dataset {
 public:
  // Opens and validates every shard, and checks its first and last 64 KiB against vocab_size (0 = unchecked).
  // stages: weights of the sources that apply from a sample number on, in order.
  static Dataset open(const std::vector<ShardSource>& sources, int64_t seq_length, int64_t vocab_size,
                      const std::vector<MixtureStage>& stages = {});
  // Opens shards of images of this size, of at most `classes` classes: a window is an image. Row 0 of a sample is the
  // class token (token 1) with the label as its target; the other rows of seq_length are patches (token 0, no target).
  static Dataset open_images(const std::vector<ShardSource>& sources, int64_t seq_length, const ImageFormat& images,
                             const std::vector<MixtureStage>& stages = {});

  // After this call, documents are reordered for fill-in-the-middle (data/fill_in_the_middle.h).
  void reorder(const FillInTheMiddle& fim);
  // After this call, samples are best-fit packed rows of whole documents instead of windows (data/packed_source.h).
  void pack(const RowPacking& packing);

  int64_t seq_length() const { return seq_length_; }
  int64_t windows() const { return windows_; }  // distinct samples over all sources
  int64_t sources() const { return int64_t(sources_.size()); }
  int64_t windows(int64_t source) const { return sources_[size_t(source)].windows(); }
  double share(int64_t source) const;  // fraction of the samples, in the first stage
  const Mixture& mixture() const { return mixture_; }
  int64_t tokens() const { return tokens_; }  // tokens of all shards; of images: bytes
  const std::optional<ImageFormat>& images() const { return images_; }
  PackingOptions whole_rows() const { return {.image_pixels = images_ ? images_->pixels() : 0}; }  // windows or images

  // Sample number n >= 0, unbounded: a source starts its next epoch after all its windows.
  Sample locate(const SampleOrder& order, int64_t n) const;
  Sample at(int64_t source, int64_t window) const;  // a sample of the first epoch
  // Index of a sample's window over all sources; the same in every epoch. Not for packed sources.
  int64_t window_number(const Sample&) const;
  Sample window(int64_t number) const;
  // Reads a window as a row with its documents and masks; returns the result of pack().
  int64_t read_row(const Sample&, const PackingOptions& options, const Row& row) const;
  bool has_document_indices() const;  // true if every shard has one
  bool has_loss_mask() const;         // true if any shard has one
  // Path of a shard of `other` that is also in this data set, compared by size and first and last 64 KiB; "" if none.
  std::string first_shared_shard(const Dataset& other) const;
  // Path of a shard whose folder has another tokenizer than that of `shard`; "" if none.
  std::string first_of_other_tokenizer(const std::string& shard) const;
  const std::string& first_shard() const { return sources_.front().shards.front().path(); }

  // 32 hex digits: a hash of all that the first `samples` samples depend on: base names, sizes, first and last 64 KiB
  // and dtypes of shards, T, weights, and the weights of stages that begin before. Stored in checkpoints to detect a
  // resume with other data; later stages may change.
  const std::string& fingerprint(int64_t samples = std::numeric_limits<int64_t>::max()) const;
  // Warnings: tokens that no window covers, headerless files that are probably read with the wrong type.
  std::vector<std::string> doubts() const;
  // One line per source, for logs.
  const std::string& description() const { return description_; }

 private:
  struct Source {
    std::string path_glob;
    std::vector<TokenFile> shards;
    std::vector<int64_t> first_window;  // [shards + 1], ascending: shard s has windows [first[s], first[s + 1])
    int64_t unread = 0;                 // tokens that no window covers
    int64_t short_shards = 0;           // shards shorter than a window
    std::string doubt;                  // warning about the token type
    std::unique_ptr<PackedSource> packed = {};
    int64_t windows() const { return packed ? packed->rows() : first_window.back(); }
  };

  Dataset(int64_t seq_length, Mixture mixture) : seq_length_(seq_length), mixture_(std::move(mixture)) {}
  static Dataset open(const std::vector<ShardSource>&, int64_t seq_length, int64_t vocab_size,
                      const std::vector<MixtureStage>&, const std::optional<ImageFormat>&);
  Source open_source(const ShardSource& source, int64_t vocab_size) const;
  Source open_image_source(const ShardSource& source) const;
  static void require_targets(const Source&);
  std::vector<std::string> compute_fingerprints() const;
  Window read_window(const Source&, const Sample&, const PackingOptions&) const;
  void count_windows();
  std::string describe() const;

  int64_t seq_length_ = 0, windows_ = 0, tokens_ = 0;
  Mixture mixture_;
  RowPacking packing_ = {};
  FillInTheMiddle fim_ = {};
  std::optional<ImageFormat> images_ = {};
  std::vector<Source> sources_;
  std::vector<std::string> fingerprints_;  // [stages]: hash over all stages up to this one
  std::string description_;
};

}  // namespace athanor
