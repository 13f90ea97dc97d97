#include "nn/rows.h"

namespace athanor {
namespace {

Buffer room_for_all(Ctx& c, const char* name, const Tensor& own) {
  return c.alloc(name, own.dtype, {own.rows() * c.mesh.tensor().size(), own.cols()});
}

}  // namespace

bool shares_rows(const Ctx& c) { return c.sequence_parallel && c.mesh.tensor().size() > 1; }

int64_t rows_of_stream(const Ctx& c, int64_t all) {
  if (!shares_rows(c)) return all;
  const int ranks = c.mesh.tensor().size();
  CHECK(all % (int64_t{ranks} * c.row_pieces) == 0, all, " rows in ", c.row_pieces, " pieces on ", ranks, " ranks");
  return all / ranks;
}

Tensor piece_of(const Tensor& t, int pieces, int i) {
  return t.slice(t.rows() * i / pieces, t.rows() * (i + 1) / pieces);
}

RowsOfAll::RowsOfAll(Ctx& c, const Buffer& own, bool overlapped) {
  if (!shares_rows(c)) {
    all_ = own;
    return;
  }
  all_ = room_for_all(c, "rows of all ranks", own.t);
  for (int i = 0; i < c.row_pieces; ++i) {
    const Tensor all = piece_of(all_.t, c.row_pieces, i), mine = piece_of(own.t, c.row_pieces, i);
    if (overlapped)
      passes_[size_t(i)] = c.begin_tensor_gather(all, mine);
    else
      c.tensor_gather(all, mine);
  }
  if (!overlapped) return;
  pieces_ = c.row_pieces;
  own_ = own;
}

int RowsOfAll::wait(Ctx& c) {
  CHECK(coming() > 0, "all rows have come");
  c.end_pass(std::move(passes_[size_t(arrived_)]));
  if (arrived_ + 1 == pieces_) own_ = {};
  return arrived_++;
}

Buffer RowsOfAll::get(Ctx& c) {
  while (coming() > 0) wait(c);
  return take();
}

Buffer all_rows(Ctx& c, const Buffer& own) { return RowsOfAll(c, own, false).get(c); }

Buffer own_rows(Ctx& c, const Buffer& all) {
  if (!shares_rows(c)) return all;
  const int ranks = c.mesh.tensor().size(), rank = c.mesh.tensor().rank();
  Buffer own = c.alloc("own rows", all.t.dtype, {rows_of_stream(c, all.t.rows()), all.t.cols()});
  for (int i = 0; i < c.row_pieces; ++i) {
    const Tensor y = piece_of(own.t, c.row_pieces, i), a = piece_of(piece_of(all.t, c.row_pieces, i), ranks, rank);
    if (y.dtype != DType::i32)
      c.run(Combine{.y = y, .a = a});
    else if (!c.arena.recording())
      c.device.copy(y.data, a.data, y.bytes(), Stream::compute);
  }
  return own;
}

PartsOfRows::PartsOfRows(Ctx& c, Tensor own) : PartsOfRows(c, own, shares_rows(c) ? c.row_pieces : 1) {}

PartsOfRows::PartsOfRows(Ctx& c, Tensor own, int pieces) : own_(own), pieces_(pieces) {
  if (shares_rows(c)) workspace_ = room_for_all(c, "parts of the rows of all ranks", own);
}

PartsOfRows PartsOfRows::if_partial(Ctx& c, const Tensor& own, bool partial) {
  if (partial) return {c, own};
  PartsOfRows whole;
  whole.own_ = own, whole.partial_ = false;
  return whole;
}

void PartsOfRows::add_up(Ctx& c) {
  if (!partial_) return;
  for (int i = 0; workspace_ && i < pieces_; ++i)
    c.tensor_scatter(piece_of(own_, pieces_, i), piece_of(workspace_.t, pieces_, i));
  if (!workspace_) c.tensor_sum(own_);
  workspace_ = {};
}

void PartsOfRows::begin(Ctx& c) {
  for (int i = 0; workspace_ && i < pieces_; ++i)
    passes_[size_t(i)] = c.begin_tensor_scatter(piece_of(own_, pieces_, i), piece_of(workspace_.t, pieces_, i));
  if (!workspace_) passes_[0] = c.begin_tensor_sum(own_);
}

void PartsOfRows::end(Ctx& c) {
  for (int i = 0; i < pieces_; ++i) c.end_pass(std::move(passes_[size_t(i)]));
  workspace_ = {};
}

}  // namespace athanor
