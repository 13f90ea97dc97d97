// ParamSpec: a parameter's shape, role for optimizers, initial values, and names in files.
#pragma once
#include <string>
#include <vector>

#include "base/choices.h"
#include "param/nf4.h"
#include "tensor/tensor.h"

namespace athanor {

// A contiguous range of a parameter that is one tensor of a Hugging Face file. Elements outside every slice (vocabulary
// padding) are zero, stay zero and are not saved.
struct HfSlice {
  std::string name;
  Shape shape;
  int64_t offset = 0;  // elements from the start of the parameter

  // A shape of more than two sides as a matrix or vector: [C, 3, p, p] becomes [C, 3 p p], [1, N, C] becomes [N, C],
  // [1, 1, C] becomes [C].
  Shape as_matrix() const {
    if (shape.rank <= 2) return shape;
    int first = 0;
    while (first + 1 < shape.rank && shape[first] == 1) ++first;
    if (first + 1 >= shape.rank) return {shape.numel()};
    return {shape[first], shape.numel() / shape[first]};
  }
};

// How a parameter may be sliced for tensor parallelism: along `axis`, within each of its consecutive parts (queries,
// keys and values; gate and up; the tokens of a vocabulary), so that each rank has a slice of each part. axis -1: not
// sliced.
struct Cut {
  int axis = -1;
  std::vector<int64_t> parts = {};  // lengths of the parts along the axis
  int64_t whole = 1;                // elements that stay together, such as a head
  // From this part on, neighbouring ranks hold the same slice if there are fewer slices than ranks: K and V heads that
  // are shared by queries of several ranks. -1: no such part.
  int repeated = -1;
  // If above 0 (only with one part): slices may differ by one, and each is padded with zeros to a multiple of this
  // number.
  int64_t padded_to = 0;
};

// When tensor-parallel ranks hold a whole parameter but only partial sums of its gradient.
enum class PartialGradient : uint8_t {
  never,     // GEMMs and look-ups read all rows
  of_heads,  // each rank uses it for its own heads, or for its own inputs or outputs of a layer
  of_rows    // with sequence parallelism: each rank uses it for its rows of the residual stream
};

struct ParamSpec {
  std::string name;
  Shape shape;
  Role role;
  int unit = 0;         // gathered, sharded and recomputed together: embedding, each block, head
  float init_mean = 0;  // initial values: normal(mean, std) from (seed, slice name, index within the slice)
  float init_std = 0;
  std::vector<HfSlice> slices = {};
  Cut cut = {};  // how tensor-parallel ranks may slice it
  PartialGradient partial = PartialGradient::never;
  bool in_out = false;              // a matrix whose rows are inputs, not outputs
  int attention = -1;               // layer of the attention whose q, k and v are its outputs; -1: none
  bool read_by_rows = false;        // look-ups read its values even if GEMMs read quantized ones
  bool low_precision = false;       // GEMMs read it and the other operand quantized
  bool router = false;              // matrix of a router or of a shared expert's gate, which is not quantized
  bool gathered_quantized = false;  // ranks that shard it gather it quantized: ParamStore::Unit::quantized
  // Its rows are those of `experts` equal matrices; each token uses `chosen` of these.
  int64_t experts = 1, chosen = 1;
  bool trainable = true;  // false: values stay constant; optimizers and the gradient norm skip it
  // Never trained, and saved elsewhere: only values in the compute dtype exist, sharded like weights; no gradient,
  // master weight or state. Checkpoints leave it out. A unit's parameters are all frozen or all not.
  bool frozen = false;
  // For each slice, whether it has 2:4 sparsity (ops/two_of_four.h): GEMMs read the two elements of every four with the
  // largest magnitude, and gradients are for all four. Empty: no slice has.
  std::vector<bool> two_of_four = {};
  StoredAs stored = StoredAs::values;  // other forms only if frozen; the same for all parameters of a unit
  // State without gradients: f32 with any recipe, whole on each rank, without master weight, gradient or optimizer
  // state; saved with the weights. A unit's parameters are all buffers or all not.
  bool buffer = false;
};

// True for linear layers, whose GEMMs may be quantized and which may have adapters: matrices except routers and
// experts.
inline bool is_linear(const ParamSpec& spec) { return spec.role == Role::matrix && !spec.router && spec.experts == 1; }
// True for linear layers and experts, which exports quantize and prune, and which frozen models may have in NF4.
inline bool is_linear_or_expert(const ParamSpec& spec) { return spec.role == Role::matrix && !spec.router; }

}  // namespace athanor
