#include "nn/rows.h"

namespace athanor {

bool shares_rows(const Ctx& c) { return c.sequence_parallel && c.mesh.tensor().size() > 1; }

int64_t rows_of_stream(const Ctx& c, int64_t all) {
  if (!shares_rows(c)) return all;
  const int ranks = c.mesh.tensor().size();
  CHECK(all % ranks == 0, all, " rows on ", ranks, " ranks");
  return all / ranks;
}

Buffer all_rows(Ctx& c, const Buffer& own) {
  if (!shares_rows(c)) return own;
  Buffer all = c.alloc("rows of all ranks", own.t.dtype, {own.t.rows() * c.mesh.tensor().size(), own.t.cols()});
  c.tensor_gather(all.t, own.t);
  return all;
}

RowsOfAll::RowsOfAll(Ctx& c, const Buffer& own) : own_(own) {
  if (!shares_rows(c)) return;
  all_ = c.alloc("rows of all ranks", own.t.dtype, {own.t.rows() * c.mesh.tensor().size(), own.t.cols()});
  pass_ = c.begin_tensor_gather(all_.t, own.t);
}

Buffer RowsOfAll::get(Ctx& c) {
  if (all_) c.end_pass(std::move(pass_));
  own_ = all_ ? all_ : own_;
  return std::move(own_);
}

PartsOfRows::PartsOfRows(Ctx& c, Tensor own) : own_(own) {
  if (shares_rows(c))
    room_ = c.alloc("parts of the rows of all ranks", own.dtype, {own.rows() * c.mesh.tensor().size(), own.cols()});
}

void PartsOfRows::add_up(Ctx& c) {
  if (room_)
    c.tensor_scatter(own_, room_.t);
  else
    c.tensor_sum(own_);
  room_ = {};
}

void PartsOfRows::begin(Ctx& c) { pass_ = room_ ? c.begin_tensor_scatter(own_, room_.t) : c.begin_tensor_sum(own_); }

void PartsOfRows::end(Ctx& c) {
  c.end_pass(std::move(pass_));
  room_ = {};
}

}  // namespace athanor
