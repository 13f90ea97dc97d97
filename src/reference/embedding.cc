// Embedding look-up and its gradient, and row moves by index. Indices are checked: the reference is also a debugger.
#include <cstring>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

// Index number i, which must name a row of `table`.
int64_t row_index(const char* what, const Tensor& indices, int64_t i, const Tensor& table) {
  const int32_t row = indices.as<int32_t>()[i];
  CHECK(row >= 0 && row < table.rows(), what, ": entry ", i, " is ", row, " of ", table.rows(), " rows");
  return row;
}

Values row_of(const Tensor& t, int64_t i) { return load(t.slice(i, i + 1)); }

void add_row(const Tensor& t, int64_t i, const Values& x) {
  Values sum = row_of(t, i);
  for (int64_t c = 0; c < sum.cols; ++c) sum[c] += x[c];
  store(t.slice(i, i + 1), sum);
}

// Rows move as bytes: no rounding, no NaN quieting.
void copy_row(const Tensor& to, int64_t to_row, const Tensor& from, int64_t from_row) {
  std::memcpy(to.slice(to_row, to_row + 1).data, from.slice(from_row, from_row + 1).data,
              size_t(to.cols()) * size_of(to.dtype));
}

}  // namespace

void ReferenceOps::run(const EmbeddingFwd& op, void*) {
  for (int64_t i = 0; i < op.y.rows(); ++i) {
    Values y = row_of(op.wte, row_index("embedding_fwd.tokens", op.tokens, i, op.wte));
    if (op.wpe) {
      const Values at = row_of(op.wpe, row_index("embedding_fwd.positions", op.positions, i, op.wpe));
      for (int64_t c = 0; c < y.cols; ++c) y[c] += at[c];
    }
    store(op.y.slice(i, i + 1), y);
  }
}

// In f32 and in the order of i, as the header fixes it.
void ReferenceOps::run(const EmbeddingBwd& op, void*) {
  for (int64_t i = 0; i < op.dy.rows(); ++i) {
    const Values dy = row_of(op.dy, i);
    add_row(op.dwte, row_index("embedding_bwd.tokens", op.tokens, i, op.dwte), dy);
    if (op.dwpe) add_row(op.dwpe, row_index("embedding_bwd.positions", op.positions, i, op.dwpe), dy);
  }
}

void ReferenceOps::run(const GatherRows& op, void*) {
  for (int64_t i = 0; i < op.y.rows(); ++i) copy_row(op.y, i, op.x, row_index("gather_rows.rows", op.rows, i, op.x));
}

void ReferenceOps::run(const ScatterRows& op, void*) {
  for (int64_t i = 0; i < op.x.rows(); ++i) copy_row(op.y, row_index("scatter_rows.rows", op.rows, i, op.y), op.x, i);
}

}  // namespace athanor
