// Dropout [Srivastava et al. 2014] and stochastic depth [Huang et al. 2016] with counter-based random numbers: the mask
// depends only on seed, layer, step and the element's index in the step's global batch, so it is the same under
// recomputation, resuming, and any split into micro-batches and ranks.
#pragma once
#include "base/choices.h"
#include "base/rng.h"
#include "ops/op.h"
#include "ops/optimizer.h"

namespace athanor {

// Stochastic depth of a model: `rate` is the drop probability of the last block's branches.
struct StochasticDepth {
  float rate = 0;
  StochasticDepthMode mode = StochasticDepthMode::linear;
};

// Maps rows of a micro-batch on this rank to sequences: row i belongs to sequence (row + i) / length % sequences.
struct SequenceRows {
  int64_t sequences = 1;     // sequences in the micro-batch
  int64_t length = 1;        // consecutive rows of one sequence
  int64_t per_sequence = 1;  // rows per sequence on this rank: length, or 2 * length with context parallelism
  int64_t row = 0;           // index of row 0, with sequence parallelism
  ATHANOR_HOST_DEVICE int64_t sequence(int64_t i) const { return (row + i) / length % sequences; }
};

// Dropout of a residual branch: y = residual + x / (1 - p) where x is kept, with probability 1 - p; otherwise y =
// residual. An absent residual counts as 0. Whole sequences are kept or dropped (stochastic depth), or single elements
// if `elements` is set. Computed in f32, rounded once. Its gradient is the same op: dx is DropPath of dy without a
// residual.
struct DropPath {
  Tensor y;              // [N, C]; may be x or residual
  Tensor x;              // [N, C]
  Tensor residual = {};  // optional [N, C]
  Tensor state;          // StepState; only the step number is read
  Tensor first;          // [1] i64: index of row 0 among all rows of the step, over all ranks and micro-batches
  uint64_t seed = 0, stream = 0;
  float p = 0;
  bool elements = false;  // if true, only `row` of `rows` is read, since a step's rows have one order
  SequenceRows rows = {};
  // For elements: x has columns [first_column, first_column + C) of a matrix with `all_columns` columns; 0: all of
  // them.
  int64_t first_column = 0, all_columns = 0;
  static constexpr const char* kName = "drop_path";

  // The random stream of a step; element i is kept if random_uniform(seed, stream, i) >= p.
  ATHANOR_HOST_DEVICE static uint64_t stream_at(uint64_t stream, const StepState& state) {
    constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;  // odd, so that steps of neighboring streams do not collide
    return stream + uint64_t(state.updates + state.skipped) * kStep;
  }
  // Returns the factor of x in column c of row i. stream_of_step: stream_at(). columns: C.
  ATHANOR_HOST_DEVICE float factor(uint64_t stream_of_step, int64_t first_row, int64_t i, int64_t c,
                                   int64_t columns) const {
    const int64_t number =
        elements ? (first_row + rows.row + i) * (all_columns > 0 ? all_columns : columns) + first_column + c
                 : first_row / rows.per_sequence + rows.sequence(i);
    return random_uniform(seed, stream_of_step, uint64_t(number)) >= p ? 1 / (1 - p) : 0.0f;
  }
  auto fields() {
    return fields_of(Field::out("y", y), Field::in("x", x), Field::in("residual", residual), Field::in("state", state),
                     Field::in("first", first));
  }
  void check() const {
    Expect e{kName};
    e.floating("y", y).matrix("y", y).is("y", y, y.dtype, y.shape).is("x", x, y.dtype, y.shape);
    if (residual) e.is("residual", residual, y.dtype, y.shape);
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).is("first", first, DType::i64, {1});
    e.that(p >= 0 && p < 1, "a probability of at least 0 and below 1");
    e.that(all_columns == 0 || first_column + y.cols() <= all_columns, "columns of the whole matrix");
    e.that(rows.sequences > 0 && rows.length > 0 && rows.per_sequence > 0, "rows of sequences");
  }
  Cost cost() const { return {2.0 * double(y.numel()), traffic(*this)}; }
};

}  // namespace athanor
