// What a parameter is: its shape, its role for optimizers, its initial values and its names in files.
#pragma once
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace athanor {

// Optimizers choose by role: vectors (norm weights, biases) are not decayed.
enum class Role : uint8_t { matrix, embedding, vector };

// A contiguous part of a parameter that is one tensor of a Hugging Face file. Parts outside every slice (vocabulary
// padding) are zero and stay zero; they exist in memory only.
struct HfSlice {
  std::string name;
  Shape shape;
  int64_t offset = 0;  // elements from the start of the parameter
};

// How a parameter may be divided among ranks: along `axis`, within each of the parts that lie there one after the other
// (queries, keys and values; gate and up), so that every rank has its share of each. axis -1: every rank has all of it.
struct Cut {
  int axis = -1;
  std::vector<int64_t> parts = {};  // their lengths along the axis
  int64_t whole = 1;                // elements that stay together: a head
};

struct ParamSpec {
  std::string name;
  Shape shape;
  Role role;
  int unit = 0;         // gathered, sharded and recomputed together: embedding, each block, head
  float init_mean = 0;  // initial values: normal(mean, std) from (seed, slice name, index within the slice)
  float init_std = 0;
  std::vector<HfSlice> slices = {};
  Cut cut = {};             // how ranks of a tensor-parallel group may share it
  bool in_out = false;      // of a matrix: its rows are inputs, not outputs
  bool eight_bits = false;  // products read codes of it and of what they multiply it with
  bool trainable = true;    // false: stays what it was; optimizers and the gradient norm leave it out
};

}  // namespace athanor
