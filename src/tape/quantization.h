// What layers in 8 or 4 bits read and leave beside their matrices. The engine owns the memory (engine/code_state.h).
#pragma once
#include <span>

#include "ops/quantize.h"

namespace athanor {

// A matrix's codes and their scales.
struct Codes {
  Tensor data;          // of the matrix's shape, or of its transpose's
  Tensor scales;        // blocks.grid()
  Tensor global = {};   // of codes of 4 bits: [1] f32
  Blocks blocks = {};   // of `data`
  bool turned = false;  // the matrix is transposed
  // None, or the transpose of the matrix; its scales where they are others than those of `data`.
  Tensor beside = {}, beside_scales = {};
};

// By parameter: the layer's weight. Absent: nothing is counted, scales are those of the very matrix, and weights become
// codes at each use.
struct Quantization {
  Tensor statistics = {};               // [parameters, kOperands, 4] f64: QuantizeStatistics of each
  Tensor factors = {};                  // [parameters, kMatrices] f32 of delayed scaling, as Quantize::factor
  Tensor amax = {};                     // [parameters, kMatrices] f32 of the step, as Quantize::amax
  Tensor largest = {};                  // [parameters, kMatrices] f32 that producers leave: LayerCodes::largest()
  std::span<const Codes> weights = {};  // [parameters * kOperands]: kept from step to step; else without data
};

}  // namespace athanor
