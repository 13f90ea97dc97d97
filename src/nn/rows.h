// Rows of the residual stream [N, C] on ranks that share products. Without sequence parallelism every rank has all of
// them; with it each has N / ranks [Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer
// Models"]: the rows are cut in Ctx::row_pieces consecutive pieces, and every piece is shared out in the order of the
// ranks. With several, products compute with the rows of one piece while those of another are gathered or added up.
// Norms and residuals need a row alone; products shared by their outputs read all rows, and products shared by their
// inputs make parts of the sums of all rows.
#pragma once
#include <array>

#include "tape/ctx.h"

namespace athanor {

constexpr int kMostRowPieces = 4;

bool shares_rows(const Ctx&);
// Rows of the stream on this rank, of `all`.
int64_t rows_of_stream(const Ctx&, int64_t all);
// The rows of piece `i` of so many, equal ones where they divide.
Tensor piece_of(const Tensor&, int pieces, int i);

// All rows of a tensor of the stream: gathered, or the tensor itself.
class RowsOfAll {
 public:
  RowsOfAll() = default;
  explicit RowsOfAll(Buffer all) : all_(std::move(all)) {}  // which are there
  // beside: what is launched until they are waited for.
  RowsOfAll(Ctx&, const Buffer& own, bool beside);
  Buffer take() { return std::move(all_); }          // [N, C], whose rows may still be on their way
  int coming() const { return pieces_ - arrived_; }  // pieces that were not waited for
  // Waits for the first of them, and returns its number among the pieces.
  int wait(Ctx&);
  Buffer get(Ctx&);  // all, once they are there

 private:
  Buffer own_, all_;
  std::array<TensorPass, kMostRowPieces> passes_;
  int pieces_ = 0, arrived_ = 0;
};

// All rows, gathered at once; and of all rows those of the stream on this rank.
Buffer all_rows(Ctx&, const Buffer& own);
Buffer own_rows(Ctx&, const Buffer& all);

// A rank's part of sums of all rows, until they are added up.
class PartsOfRows {
 public:
  PartsOfRows() = default;
  PartsOfRows(Ctx&, Tensor own);                              // [rows_of_stream(N), C]: the result
  PartsOfRows(Ctx&, Tensor own, int pieces);                  // or so many pieces' rows of it
  const Tensor& t() const { return room_ ? room_.t : own_; }  // [N, C]
  void add_up(Ctx&);                                          // over the ranks, into the result
  void begin(Ctx&);                                           // the same, beside what is launched until end()
  void end(Ctx&);

 private:
  Tensor own_;
  Buffer room_;  // none where every rank has all rows: then the result holds the parts
  std::array<TensorPass, kMostRowPieces> passes_;
  int pieces_ = 1;
};

}  // namespace athanor
