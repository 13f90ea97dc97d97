// Rows of the residual stream [N, C] under tensor parallelism. Without sequence parallelism every rank has all rows;
// with it each rank has N / ranks [Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
// Models"]: the rows are cut into Ctx::row_pieces consecutive pieces, and each piece is sharded in rank order. With
// several pieces, the GEMM of one piece overlaps the all-gather or reduce-scatter of another. Norms and residuals are
// row-wise; column-parallel GEMMs read all rows, and row-parallel GEMMs compute partial sums of all rows.
#pragma once
#include <array>

#include "tape/ctx.h"

namespace athanor {

constexpr int kMostRowPieces = 4;

bool shares_rows(const Ctx&);
// Number of rows of the residual stream on this rank, out of `all`.
int64_t rows_of_stream(const Ctx&, int64_t all);
// Returns the rows of piece `i` of `pieces`, which are equal if `pieces` divides the number of rows.
Tensor piece_of(const Tensor&, int pieces, int i);

// All rows of a tensor of the residual stream: all-gathered, or the tensor itself if a rank has all rows.
class RowsOfAll {
 public:
  RowsOfAll() = default;
  explicit RowsOfAll(Buffer all) : all_(std::move(all)) {}  // rows that need no gather
  // overlapped: the gather overlaps work launched before the wait.
  RowsOfAll(Ctx&, const Buffer& own, bool overlapped);
  Buffer take() { return std::move(all_); }          // [N, C], whose rows may still be arriving
  int coming() const { return pieces_ - arrived_; }  // number of pieces not yet waited for
  // Waits for the next piece and returns its index.
  int wait(Ctx&);
  Buffer get(Ctx&);  // waits for all rows

 private:
  Buffer own_, all_;
  std::array<TensorPass, kMostRowPieces> passes_;
  int pieces_ = 0, arrived_ = 0;
};

// all_rows() all-gathers rows without overlap; own_rows() selects this rank's rows of all rows.
Buffer all_rows(Ctx&, const Buffer& own);
Buffer own_rows(Ctx&, const Buffer& all);

// This rank's partial sums of all rows, until they are reduced over the ranks.
class PartsOfRows {
 public:
  PartsOfRows() = default;
  PartsOfRows(Ctx&, Tensor own);              // own: [rows_of_stream(N), C], the result
  PartsOfRows(Ctx&, Tensor own, int pieces);  // own: rows of some pieces of the result
  // Without `partial` each rank computes the result itself: t() is `own`, and add_up() does nothing.
  static PartsOfRows if_partial(Ctx&, const Tensor& own, bool partial);
  const Tensor& t() const { return workspace_ ? workspace_.t : own_; }  // [N, C]
  void add_up(Ctx&);                                                    // reduces over the ranks into the result
  void begin(Ctx&);  // starts add_up(), which overlaps work launched before end()
  void end(Ctx&);

 private:
  Tensor own_;
  Buffer workspace_;  // empty if each rank has all rows: then the result itself holds the partial sums
  std::array<TensorPass, kMostRowPieces> passes_;
  int pieces_ = 1;
  bool partial_ = true;
};

}  // namespace athanor
