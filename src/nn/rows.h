// Rows of the residual stream [N, C] on ranks that share products. Without sequence parallelism every rank has all of
// them; with it each has N / ranks consecutive ones, in the order of the ranks [Korthikanti et al. 2022, "Reducing
// Activation Recomputation in Large Transformer Models"]. Norms and residuals need a row alone; products shared by
// their outputs read all rows, and products shared by their inputs make parts of the sums of all rows.
#pragma once
#include "tape/ctx.h"

namespace athanor {

bool shares_rows(const Ctx&);
// Rows of the stream on this rank, of `all`.
int64_t rows_of_stream(const Ctx&, int64_t all);
// All rows of a tensor of the stream: gathered, or the tensor itself.
Buffer all_rows(Ctx&, const Buffer& own);

// The same, gathered beside what is launched until get().
class RowsOfAll {
 public:
  RowsOfAll(Ctx&, const Buffer& own);
  Buffer get(Ctx&);

 private:
  Buffer own_, all_;
  TensorPass pass_;
};

// A rank's part of sums of all rows, until they are added up.
class PartsOfRows {
 public:
  PartsOfRows() = default;
  PartsOfRows(Ctx&, Tensor own);                              // [rows_of_stream(N), C]: the result
  const Tensor& t() const { return room_ ? room_.t : own_; }  // [N, C]
  void add_up(Ctx&);                                          // over the ranks, into the result
  void begin(Ctx&);                                           // the same, beside what is launched until end()
  void end(Ctx&);

 private:
  Tensor own_;
  Buffer room_;  // none where every rank has all rows: then the result holds the parts
  TensorPass pass_;
};

}  // namespace athanor
