// Best-fit packing of documents into rows of equal capacity [Ding et al. 2024, arXiv 2404.10830]: documents longer than
// a row are cut into rows; all other pieces stay whole and go, longest first, into the fullest row with enough space
// (best-fit decreasing, O(n log capacity)). The result depends only on the lengths and on a key, which decides the
// order of equally long documents and of the rows; the number of rows depends only on the lengths.
#pragma once
#include <cstdint>
#include <iosfwd>
#include <span>
#include <vector>

namespace athanor {

// Tokens [begin, begin + length) of a document.
struct PackedPiece {
  int32_t document = 0;  // index into the lengths
  int32_t begin = 0, length = 0;
};

struct PackedRows {
  std::vector<PackedPiece> pieces;   // [pieces]: all rows, one after the other
  std::vector<int32_t> first_piece;  // [rows + 1]
  int64_t rows() const { return int64_t(first_piece.size()) - 1; }
  std::span<const PackedPiece> row(int64_t i) const {
    return std::span(pieces).subspan(size_t(first_piece[size_t(i)]),
                                     size_t(first_piece[size_t(i) + 1] - first_piece[size_t(i)]));
  }
};

struct PackingCounts {
  int64_t documents = 0, cut = 0;  // numbers of non-empty documents, and of those split over several rows
  int64_t rows = 0, pieces = 0;
  int64_t tokens = 0, unused = 0;  // tokens of all documents; unfilled positions in rows
  PackingCounts& operator+=(const PackingCounts&);
};
std::ostream& operator<<(std::ostream&, const PackingCounts&);  // for logs

struct BestFit {
  int64_t capacity = 0;           // positions per row
  int64_t extra = 0;              // positions that a piece takes besides its tokens: 1 for a BOS token in front of it
  uint64_t seed = 0, stream = 0;  // key of the random numbers
};

PackedRows best_fit(std::span<const uint32_t> lengths, const BestFit& how);
// The counts of best_fit() for these lengths; they do not depend on the key.
PackingCounts count_best_fit(std::span<const uint32_t> lengths, int64_t capacity, int64_t extra);

}  // namespace athanor
