#include "data/megatron_index.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace athanor {
namespace {

std::vector<int32_t> document_lengths(const MegatronTokens& from) {
  constexpr int64_t kPiece = 1 << 20, kLongest = std::numeric_limits<int32_t>::max();  // bytes per read; maximum tokens
                                                                                       // per document
  const int64_t bytes = file_bytes(from.tokens, from.path);
  std::vector<std::byte> piece;
  std::vector<int32_t> lengths;
  int64_t length = 0;
  for (int64_t at = 0; at < bytes; at += kPiece) {
    piece.resize(size_t(std::min(kPiece, bytes - at)));
    pread_all(from.tokens, piece, at, from.path);
    for (size_t i = 0; i < piece.size(); i += size_t(from.item_size)) {
      int32_t id = 0;
      std::memcpy(&id, &piece[i], size_t(from.item_size));
      ++length;
      if (length == kLongest && id != from.eod_id)
        throw Error(
            cat(from.path, ": a document of more than ", kLongest, " tokens, the most that a Megatron index holds"));
      if (id == from.eod_id) lengths.push_back(int32_t(std::exchange(length, 0)));
    }
  }
  if (length > 0) lengths.push_back(int32_t(length));
  return lengths;
}

template <class T>
void write(OutputFile& out, T value) {
  out.write(std::as_bytes(std::span(&value, 1)));
}

}  // namespace

std::string index_path(const std::string& shard_path) {
  CHECK(shard_path.ends_with(".bin"), shard_path);
  return shard_path.substr(0, shard_path.size() - 4) + ".idx";
}

void write_megatron_index(const std::string& path, const MegatronTokens& from) {
  const std::vector<int32_t> lengths = document_lengths(from);
  std::vector<int64_t> pointers, documents = {0};
  int64_t at = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    pointers.push_back(at);
    at += lengths[i] * from.item_size;
    documents.push_back(int64_t(i) + 1);
  }
  remove_tree(path);
  OutputFile out(path);
  out.write(std::string_view("MMIDIDX\0\0", 9));
  write<uint64_t>(out, 1);                           // version
  write<uint8_t>(out, from.item_size == 2 ? 8 : 4);  // uint16 or int32
  write<uint64_t>(out, lengths.size());
  write<uint64_t>(out, documents.size());
  out.write(std::as_bytes(std::span(lengths)));
  out.write(std::as_bytes(std::span(pointers)));
  out.write(std::as_bytes(std::span(documents)));
  out.finish();
}

}  // namespace athanor
