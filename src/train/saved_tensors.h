// The list of tensors in a checkpoint: weights, optimizer states, and with local updates each worker's own tensors.
// Writers, readers and size estimates use the same list.
#pragma once
#include <string>
#include <vector>

#include "param/param_store.h"

namespace athanor {

struct SavedTensor {
  size_t piece = 0;   // index in ParamStore::pieces()
  int state = -1;     // index in ParamStore::state_specs(); -1: the master weights
  int worker = -1;    // worker to which it belongs; -1: the same on all workers
  bool model = true;  // true: in model.safetensors; false: in optimizer.safetensors
  std::string name;
};

// Lists tensors piece by piece. With local updates the model's weights are the global ones, and each worker's weights
// are stored with its states.
std::vector<SavedTensor> saved_tensors(const ParamStore&);
DType dtype_of(const ParamStore&, const std::vector<ParamStore::Piece>&, const SavedTensor&);
Shape shape_of(const ParamStore&, const std::vector<ParamStore::Piece>&, const SavedTensor&);
int64_t bytes_of(const ParamStore&, const std::vector<ParamStore::Piece>&, const SavedTensor&);

}  // namespace athanor
