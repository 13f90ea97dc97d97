// A set of operation numbers: what is known to have happened before something. Most sets are "all up to n and a few
// more", so the leading full words are only counted.
#pragma once
#include <cstdint>
#include <vector>
namespace emu {

class OperationSet {
 public:
  bool has(uint32_t id) const {
    uint32_t word = id / 64;
    if (word < full_words_) return true;
    word -= full_words_;
    return word < words_.size() && (words_[word] >> id % 64 & 1) != 0;
  }
  void add(uint32_t id) {
    uint32_t word = id / 64;
    if (word < full_words_) return;
    word -= full_words_;
    if (words_.size() <= word) words_.resize(word + 1);
    words_[word] |= uint64_t{1} << id % 64;
    drop_full_words();
  }
  void merge(const OperationSet& other) {
    if (other.full_words_ > full_words_) skip_to(other.full_words_);
    for (size_t i = 0; i < other.words_.size(); ++i) {
      uint32_t word = other.full_words_ + uint32_t(i);
      if (word < full_words_) continue;
      word -= full_words_;
      if (words_.size() <= word) words_.resize(word + 1);
      words_[word] |= other.words_[i];
    }
    drop_full_words();
  }
  void add_all_below(uint32_t end) {
    if (end / 64 > full_words_) skip_to(end / 64);
    for (uint32_t id = end / 64 * 64; id < end; ++id) add(id);
  }
  void clear() { *this = OperationSet(); }

 private:
  void skip_to(uint32_t word) {
    size_t dropped = word - full_words_;
    words_.erase(words_.begin(), words_.begin() + int64_t(dropped < words_.size() ? dropped : words_.size()));
    full_words_ = word;
  }
  void drop_full_words() {
    size_t full = 0;
    while (full < words_.size() && words_[full] == ~uint64_t{0}) ++full;
    if (full != 0) skip_to(full_words_ + uint32_t(full));
  }

  uint32_t full_words_ = 0;
  std::vector<uint64_t> words_{1};  // bit 0: operation 0 is "before everything"
};
}  // namespace emu
