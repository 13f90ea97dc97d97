// A small but complete checkpoint for the tests: weights with an empty tensor and a scalar, a sharded optimizer state,
// a JSON state. Its content is a function of (generation, step), so that a mixture of two saves cannot pass for either.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "tests/checkpoint/scratch.h"

namespace athanor::test {

struct SampleTensors {
  std::vector<OwnedTensor> model, optim;
};

inline SampleTensors sample_tensors(int64_t step, uint64_t generation) {
  const uint64_t seed = uint64_t(step) * 1000 + generation;
  SampleTensors s;
  s.model.push_back(random_tensor("embed.weight", DType::bf16, {9, 5}, seed));
  s.model.push_back(random_tensor("norm.weight", DType::f32, {5}, seed));
  s.model.push_back(random_tensor("empty", DType::f32, {0, 5}, seed));
  s.model.push_back(random_tensor("scale", DType::f32, {}, seed));
  s.optim.push_back(random_tensor("embed.weight.m", DType::f32, {9, 5}, seed));
  s.optim.push_back(random_tensor("counts", DType::i64, {3}, seed));
  return s;
}

inline std::string sample_state(int64_t step, uint64_t generation) {
  return cat("{\"step\": ", step, ", \"generation\": ", generation, ", \"rng\": [1, 2]}");
}

inline std::vector<CheckpointTensor> whole_tensors(const std::vector<OwnedTensor>& owned) {
  std::vector<CheckpointTensor> t;
  for (const OwnedTensor& o : owned) t.push_back({.data = o.data, .placement = {}});
  return t;
}

// Adds everything but does not commit.
inline void add_sample(CheckpointWriter& w, int64_t step, uint64_t generation) {
  const SampleTensors s = sample_tensors(step, generation);
  w.add_safetensors("model.safetensors", whole_tensors(s.model));
  w.add_safetensors("optim.safetensors", whole_tensors(s.optim));
  w.add_text("state.json", sample_state(step, generation));
}

inline CheckpointOptions sample_options(std::function<void(std::string_view)> at_point = {}) {
  return {.program_version = "0.1.0",
          .program_commit = "abc",
          .config_hash = "cfg",
          .data_fingerprint = "data",
          .metadata = kPlainMetadata,
          .at_point = std::move(at_point)};
}

inline void save_sample(const RunLock& lock, int64_t step, uint64_t generation = 0,
                        std::function<void(std::string_view)> at_point = {}) {
  CheckpointWriter w(lock, step, sample_options(std::move(at_point)));
  add_sample(w, step, generation);
  w.commit();
}

// Which generation the folder holds, completely; -1 if it is no unmixed sample of that step.
inline int64_t loaded_generation(const std::string& dir, int64_t step, uint64_t generations) {
  const CheckpointReader r(dir);
  for (uint64_t g = 0; g < generations; ++g) {
    const SampleTensors s = sample_tensors(step, g);
    bool same = r.text("state.json") == sample_state(step, g) && r.tensors().size() == s.model.size() + s.optim.size();
    for (const auto* group : {&s.model, &s.optim})
      for (const OwnedTensor& t : *group) {
        std::vector<std::byte> got(t.bytes.size());
        r.read(t.data.name, got);
        same = same && got == t.bytes && r.at(t.data.name).dtype == t.data.dtype;
      }
    if (same) return int64_t(g);
  }
  return -1;
}

// A save folder, of a run that has not begun.
class SaveFolder : public Scratch {
 protected:
  std::string root;
  void SetUp() override {
    Scratch::SetUp();
    root = at("run/save");
  }
  std::string step(int64_t n) const { return cat(root, "/", step_folder(n)); }
};

// Names in a folder that begin with a dot, except the lock.
inline std::vector<std::string> hidden_names(const std::string& root) {
  std::vector<std::string> names;
  for (const std::string& name : folder_names(root))
    if (name[0] == '.' && name != kLockName) names.push_back(name);
  return names;
}

}  // namespace athanor::test
