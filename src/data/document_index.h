// Document ends of a shard, from an index file. Index files can be gigabytes, so they stay on disk; a query for a
// window is a binary search with pread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "data/stable_file.h"

namespace athanor {

// Number and lengths of documents, in tokens.
struct DocumentStatistics {
  int64_t count = 0, tokens = 0, shortest = 0, longest = 0;
  void add(int64_t length);
};

class DocumentIndex {
 public:
  // The int64 at `ends` + 8 i is the number of tokens before the end of document i.
  struct Flat {
    int64_t ends = 0, count = 0;
  };
  // Megatron-LM: the int64 at `ends` + 8 i is the number of sequences before the end of document i; the int64 at
  // `pointers` + 8 s is the byte offset of sequence s.
  struct Sequences {
    int64_t ends = 0, count = 0, pointers = 0, sequences = 0, item_size = 0, tokens = 0;
  };
  DocumentIndex(StableFile file, Flat flat) : file_(std::move(file)), ends_(flat.ends), count_(flat.count) {}
  DocumentIndex(StableFile file, Sequences s) : file_(std::move(file)), ends_(s.ends), count_(s.count), sequences_(s) {}

  const StableFile& file() const { return file_; }
  int64_t count() const { return count_; }
  int64_t end(int64_t i) const;
  // Distinct document ends e with at < e <= at + n, ascending.
  std::vector<int64_t> ends_within(int64_t at, int64_t n) const;
  DocumentStatistics statistics() const;

 private:
  StableFile file_;
  int64_t ends_ = 0, count_ = 0;
  Sequences sequences_;
};

// Reads a file's array of T at ascending indices, in large blocks.
template <class T>
class ValueRun {
 public:
  ValueRun(const StableFile& file, int64_t offset, int64_t count) : file_(file), offset_(offset), count_(count) {}
  T operator[](int64_t i) {
    if (i < first_ || i >= first_ + int64_t(values_.size())) {
      first_ = i;
      values_.resize(size_t(i + kPiece < count_ ? kPiece : count_ - i));
      file_.read(offset_ + i * int64_t(sizeof(T)), std::as_writable_bytes(std::span(values_)));
    }
    return values_[size_t(i - first_)];
  }

 private:
  static constexpr int64_t kPiece = 1 << 16;
  const StableFile& file_;
  int64_t offset_, count_, first_ = 0;
  std::vector<T> values_;
};

}  // namespace athanor
