// What a parameter is: shape, role for optimizers, initial values, and names in files.
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
};

// How a parameter may be sliced for tensor parallelism: along `axis`, within each of its consecutive parts (queries,
// keys and values; gate and up; the tokens of a vocabulary), so that every rank has a slice of each part. axis -1: not
// sliced.
struct Cut {
  int axis = -1;
  std::vector<int64_t> parts = {};  // their lengths along the axis
  int64_t whole = 1;                // elements that stay together: a head
  // From this part on, neighbouring ranks have the same piece where there are fewer pieces than ranks: keys and values
  // of heads that queries on several ranks read. -1: none.
  int repeated = -1;
  // Above 0, of one part: ranks' slices may differ by one, and each is padded with zeros to this multiple.
  int64_t padded_to = 0;
};

// When ranks of a tensor-parallel group have all of a parameter, but parts of its gradient's sum.
enum class PartialGradient : uint8_t {
  never,     // products and look-ups read all rows
  of_heads,  // each rank uses it for its heads
  of_rows    // with sequence parallelism: for its rows of the residual stream
};

struct ParamSpec {
  std::string name;
  Shape shape;
  Role role;
  int unit = 0;         // gathered, sharded and recomputed together: embedding, each block, head
  float init_mean = 0;  // initial values: normal(mean, std) from (seed, slice name, index within the slice)
  float init_std = 0;
  std::vector<HfSlice> slices = {};
  Cut cut = {};  // how ranks of a tensor-parallel group may share it
  PartialGradient partial = PartialGradient::never;
  bool in_out = false;         // of a matrix: its rows are inputs, not outputs
  int attention = -1;          // its outputs are the queries, keys and values of the attention in this layer; -1: not
  bool read_by_rows = false;   // look-ups read its values, whatever products read
  bool low_precision = false;  // products read codes of it and of what they multiply it with
  bool as_codes = false;       // ranks that shard it gather codes of it in place of its values: ParamStore::Unit::codes
  // Its rows are those of `experts` equal matrices, of which a token meets `chosen`.
  int64_t experts = 1, chosen = 1;
  bool trainable = true;  // false: stays what it was; optimizers and the gradient norm leave it out
  // Never trained, and known elsewhere: there are values in the compute dtype alone, which ranks share out with the
  // weights, and no gradient, master or state; checkpoints leave it out. As all parameters of its unit, or none.
  bool frozen = false;
  // By slice: GEMMs read the two of every four neighbours with the largest magnitude (ops/two_of_four.h), and gradients
  // are for all. Empty: no slice.
  std::vector<bool> two_of_four = {};
  StoredAs stored = StoredAs::values;  // others only where frozen; as all parameters of its unit, or none
  // State that no gradient reaches: f32 whatever the recipe is, whole on every rank, without master, gradient or
  // optimizer state; saved with the weights. As all parameters of its unit, or none.
  bool buffer = false;
};

}  // namespace athanor
