// Embedding look-up and its gradient, and row moves by index. Indices are checked, which helps debugging.
#include <cstring>

#include "reference/reference_ops.h"
#include "reference/values.h"

namespace athanor {
namespace {

// Returns indices[i], which must be a row of `table`.
int64_t row_index(const char* what, const Tensor& indices, int64_t i, const Tensor& table) {
  const int32_t row = indices.as<int32_t>()[i];
  CHECK(row >= 0 && row < table.rows(), what, ": entry ", i, " is ", row, " of ", table.rows(), " rows");
  return row;
}

// Returns the row of token i in `table`; -1 if another vocabulary shard has it.
int64_t token_row(const char* what, const Tensor& tokens, int64_t i, const VocabPart& part, const Tensor& table) {
  if (!part) return row_index(what, tokens, i, table);
  const int32_t token = tokens.as<int32_t>()[i];
  CHECK(token >= 0 && token < part.total, what, ": entry ", i, " is ", token, " of a vocabulary of ", part.total);
  return part.row(token);
}

Values row_of(const Tensor& t, int64_t i) { return load(t.slice(i, i + 1)); }

void add_row(Values& table, int64_t i, const Values& x) {
  for (int64_t c = 0; c < table.cols; ++c) table(i, c) = double(float(table(i, c) + x[c]));
}

// Rows are copied as bytes: no rounding, no NaN quieting.
void copy_row(const Tensor& to, int64_t to_row, const Tensor& from, int64_t from_row) {
  std::memcpy(to.slice(to_row, to_row + 1).data, from.slice(from_row, from_row + 1).data,
              size_t(to.cols()) * size_of(to.dtype));
}

}  // namespace

void ReferenceOps::run(const EmbeddingFwd& op, void*) {
  for (int64_t i = 0; i < op.y.rows(); ++i) {
    const int64_t row = token_row("embedding_fwd.tokens", op.tokens, i, op.part, op.wte);
    Values y = row < 0 ? zeros_like(op.y.slice(i, i + 1)) : row_of(op.wte, row);
    if (op.wpe) {
      const Values at = row_of(op.wpe, row_index("embedding_fwd.positions", op.positions, i, op.wpe));
      for (int64_t c = 0; c < y.cols; ++c) y[c] += at[c];
    }
    store(op.y.slice(i, i + 1), y);
  }
}

// Sums in f32 and in the order of i, as the op's header specifies.
void ReferenceOps::run(const EmbeddingBwd& op, void*) {
  Values dwte = load(op.dwte), dwpe = op.dwpe ? load(op.dwpe) : dwte;
  for (int64_t i = 0; i < op.dy.rows(); ++i) {
    const Values dy = row_of(op.dy, i);
    const int64_t row = token_row("embedding_bwd.tokens", op.tokens, i, op.part, op.dwte);
    if (row >= 0) add_row(dwte, row, dy);
    if (op.dwpe) add_row(dwpe, row_index("embedding_bwd.positions", op.positions, i, op.dwpe), dy);
  }
  store(op.dwte, dwte);
  if (op.dwpe) store(op.dwpe, dwpe);
}

void ReferenceOps::run(const Patchify& op, void*) {
  const int64_t rows = 1 + op.shape.patches();
  Values y = zeros_like(op.y);
  for (int64_t i = 0; i < y.rows; ++i) {
    if (i % rows == 0) continue;
    const auto* image = op.pixels.as<uint8_t>() + i / rows * op.shape.pixels();
    for (int64_t c = 0; c < y.cols; ++c) {
      const auto channel = size_t(op.shape.channel(c));
      y(i, c) = double(op.scale[channel]) * image[op.shape.pixel(i % rows - 1, c)] + double(op.shift[channel]);
    }
  }
  store(op.y, y);
}

void ReferenceOps::run(const GatherRows& op, void*) {
  for (int64_t i = 0; i < op.y.rows(); ++i) copy_row(op.y, i, op.x, row_index("gather_rows.rows", op.rows, i, op.x));
}

void ReferenceOps::run(const ScatterRows& op, void*) {
  for (int64_t i = 0; i < op.x.rows(); ++i) copy_row(op.y, row_index("scatter_rows.rows", op.rows, i, op.y), op.x, i);
}

}  // namespace athanor
