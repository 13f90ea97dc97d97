// Dropout [Srivastava et al. 2014] by counter-based random numbers: the mask follows from seed, layer, step and the
// element's place in the step's batch, so recomputation, resuming, micro-batches and ranks have the same.
#pragma once
#include "base/rng.h"
#include "ops/op.h"
#include "ops/optimizer.h"

namespace athanor {

// y = x / (1 - p) where the element is kept, with probability 1 - p, else 0; rounded once.
struct Dropout {
  Tensor y, x;   // [N, C]; y may be x
  Tensor state;  // StepState, of which the number of the step is read
  Tensor first;  // [1] i64: number of row 0 among the rows of the step, on all ranks and in all micro-batches
  uint64_t seed = 0, stream = 0;
  float p = 0;
  static constexpr const char* kName = "dropout";

  // The stream of a step; element i of it is kept where random_uniform(seed, stream, i) is at least p.
  ATHANOR_HOST_DEVICE static uint64_t stream_at(uint64_t stream, const StepState& state) {
    constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;  // odd: steps of a stream do not meet those of its neighbours
    return stream + uint64_t(state.updates + state.skipped) * kStep;
  }
  std::array<Field, 4> fields() {
    return {{{"y", Io::out, &y}, {"x", Io::in, &x}, {"state", Io::in, &state}, {"first", Io::in, &first}}};
  }
  void check() const {
    Expect e{kName};
    e.floating("y", y).matrix("y", y).contiguous("y", y).is("x", x, y.dtype, y.shape);
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))}).is("first", first, DType::i64, {1});
    e.that(p >= 0 && p < 1, "a probability of at least 0 and below 1");
  }
  Cost cost() const { return {20.0 * double(y.numel()), traffic(*this)}; }
};

}  // namespace athanor
