// 2:4 sparsity of weights that are trained dense: of every four consecutive weights, GEMMs use the two of largest
// magnitude. Magnitudes are compared as bf16, so that f32 master weights in a checkpoint and bf16 weights in a run
// select the same two. Among equal magnitudes the later ones are kept.
#pragma once
#include "base/host_device.h"
#include "ops/optimizer.h"

namespace athanor {

constexpr int64_t kSparseGroup = 4, kSparseKept = 2;

// Returns the magnitude bits of a float after rounding to bf16. bits: the f32's bits.
ATHANOR_HOST_DEVICE inline uint32_t bf16_magnitude(uint32_t bits) {
  return ((bits & 0x7fffffffu) + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
// True if element i of a group of four with these magnitudes is kept.
ATHANOR_HOST_DEVICE inline bool is_kept(const uint32_t* magnitudes, int i) {
  int larger = 0;
  for (int j = 0; j < int(kSparseGroup); ++j)
    larger += magnitudes[j] > magnitudes[i] || (magnitudes[j] == magnitudes[i] && j > i);
  return larger < int(kSparseKept);
}

// y = x for kept elements, else 0.
struct KeepTwoOfFour {
  Tensor y, x;  // [n] of one float type; n a multiple of 4
  static constexpr const char* kName = "keep_two_of_four";
  auto fields() { return fields_of(Field::out("y", y), Field::in("x", x)); }
  void check() const {
    Expect e{kName};
    e.floating("x", x).contiguous("x", x).is("y", y, x.dtype, x.shape);
    e.that(x.numel() % kSparseGroup == 0, "x", "whole groups of four");
  }
  Cost cost() const { return {double(x.numel()), traffic(*this)}; }
};

// SR-STE's decay of pruned weights [Zhou et al. 2021, "Learning N:M Fine-grained Structured Sparse Neural Networks From
// Scratch", eq. 9]: grad += decay w / StepState::grad_scale for weights that are not kept, since grad is multiplied by
// grad_scale later. A skipped step leaves gradients unchanged.
struct DecayPruned {
  Tensor grad;   // [n] f32 or bf16; n a multiple of 4
  Tensor w;      // [n] any float
  Tensor state;  // StepState
  float decay = 0;
  static constexpr const char* kName = "decay_pruned";
  auto fields() { return fields_of(Field::inout("grad", grad), Field::in("w", w), Field::in("state", state)); }
  void check() const {
    Expect e{kName};
    e.floating("w", w).contiguous("w", w).gradient("grad", grad, w.shape);
    e.is("state", state, DType::u8, {int64_t(sizeof(StepState))});
    e.that(w.numel() % kSparseGroup == 0, "w", "whole groups of four");
  }
  Cost cost() const { return {2 * double(w.numel()), traffic(*this)}; }
};

// Returns the factor of w in DecayPruned; 0 if nothing is added.
ATHANOR_HOST_DEVICE inline float pruned_decay(float decay, const StepState& s) {
  return s.skip || s.grad_scale == 0 ? 0.0f : decay / s.grad_scale;
}

}  // namespace athanor
