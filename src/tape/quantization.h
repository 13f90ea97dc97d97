// Quantized values of low-precision layers, and their scales, amax and statistics. The engine owns the memory
// (engine/quantized_state.h).
#pragma once
#include <span>

#include "ops/quantize.h"

namespace athanor {

// The quantized (FP8 or FP4) values of a matrix, with their scales.
struct QuantizedTensor {
  Tensor data;              // [the matrix's shape], or its transpose if `transposed`
  Tensor scales;            // blocks.grid()
  Tensor global = {};       // FP4: the scale of the whole matrix, [1] f32
  Blocks blocks = {};       // blocks of `data` that share a scale
  bool transposed = false;  // `data` is transposed
  // Optional transposed copy of `data`, and its scales if they differ from those of `data`.
  Tensor transposed_copy = {}, transposed_scales = {};
};

// All tensors are indexed by the parameter that is the layer's weight. Without the tensors, no statistics are counted,
// scales are current (from the tensor's own amax), and weights are quantized at each use.
struct Quantization {
  Tensor statistics = {};  // [parameters, kOperands, 4] f64: QuantizeStatistics
  Tensor factors = {};     // [parameters, kMatrices] f32: Quantize::factor, for delayed scaling
  Tensor step_amax = {};   // [parameters, kMatrices] f32: Quantize::step_amax of this step
  Tensor amax = {};        // [parameters, kMatrices] f32: amax that producers store, see LayerQuantization::amax()
  // [parameters * kOperands]: quantized once per step; entries without data are not kept.
  std::span<const QuantizedTensor> weights = {};
};

}  // namespace athanor
