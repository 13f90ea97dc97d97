// Which tensors a checkpoint consists of: weights, optimizer states, and with local updates what each worker has of its
// own. The same list for writers, readers and estimates.
#pragma once
#include <string>
#include <vector>

#include "param/param_store.h"

namespace athanor {

struct SavedTensor {
  size_t piece = 0;   // of ParamStore::pieces()
  int state = -1;     // of ParamStore::state_specs(); -1: the master
  int worker = -1;    // whose; -1: the same on all
  bool model = true;  // in model.safetensors, else in optimizer.safetensors
  std::string name;
};

// Piece by piece. With local updates the model's weights are the global ones, and each worker's are beside its states.
std::vector<SavedTensor> saved_tensors(const ParamStore&);
DType dtype_of(const ParamStore&, const std::vector<ParamStore::Piece>&, const SavedTensor&);
Shape shape_of(const ParamStore&, const std::vector<ParamStore::Piece>&, const SavedTensor&);
int64_t bytes_of(const ParamStore&, const std::vector<ParamStore::Piece>&, const SavedTensor&);

}  // namespace athanor
