// Shared by the tests of this folder: a single-rank backend, access to device memory, temporary folders. The program
// that links them chooses the backend: the CPU (rig.cc), or a GPU (tests/cuda/train/rig.cc).
#pragma once
#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/temp_dir.h"

namespace athanor::testing {

// Master weights of this rank's worker and pipeline stage, by their names in files. A collective: all ranks call it,
// and all get the result.
inline std::map<std::string, std::vector<float>> masters_by_name(Engine& engine, Device& device) {
  const ParamStore& params = engine.model().params();
  const std::vector<ParamStore::Piece> pieces = params.pieces();
  const size_t ranks = size_t(engine.devices() / (params.stages().stages * params.worker().workers));
  std::map<std::string, std::vector<float>> masters;
  const auto blocks = engine.gather_blocks();
  for (size_t p = 0; p < pieces.size(); ++p) {
    if (!params.here(size_t(pieces[p].unit)) || !params.is_saved(pieces[p])) continue;
    std::vector<float>& master = masters[pieces[p].slice->name];
    for (SavedBlock block{.piece = p}; block.begin < blocks->values(p, -1); block.begin = block.end) {
      block.end = blocks->block_end(p, -1, block.begin);
      const Tensor t = blocks->next(std::vector<SavedBlock>(ranks, block));
      std::vector<std::byte> bytes(t.bytes());
      device.copy(bytes.data(), t.data, bytes.size(), Stream::compute);
      device.sync();
      by_float(t.dtype, [&]<class T>() {
        for (int64_t i = 0; i < t.numel(); ++i) master.push_back(to_float(reinterpret_cast<const T*>(bytes.data())[i]));
      });
    }
  }
  return masters;
}

// All master weights, in file order. A collective: all ranks call it, and all get the result.
inline std::vector<float> all_masters(Engine& engine, Device& device) {
  const auto masters = masters_by_name(engine, device);
  std::vector<float> all;
  for (const ParamStore::Piece& piece : engine.model().params().pieces())
    if (engine.model().params().is_saved(piece))
      std::ranges::copy(masters.at(piece.slice->name), std::back_inserter(all));
  return all;
}

// Thread counts that must give the same bits as one thread, and the fraction (1 of n) of the law's test matrix that a
// quick run covers.
extern const std::vector<int> kThreadCounts;
extern const int kMatrixEvery;

// Tests with a large matrix of cases run every `quick`-th case, or all with ATHANOR_FULL=1 (scripts/test.sh --all).
inline int every_case(int quick) {
  const char* full = std::getenv("ATHANOR_FULL");
  return full && *full == '1' ? 1 : quick;
}

struct Rig {
  explicit Rig(int threads = 2);  // threads: on a GPU, selects another schedule where schedules can be chosen
  Backend backend() { return {*device, *ops, *mesh, tuning}; }

  template <class T>
  std::vector<T> read(const Tensor& t) {
    std::vector<T> values(size_t(t.numel()));
    CHECK(sizeof(T) == size_of(t.dtype), "read as a type of another size than ", t.dtype);
    device->copy(values.data(), t.data, t.bytes(), Stream::compute);
    device->sync();
    return values;
  }
  template <class T>
  void write(const Tensor& t, int64_t element, T value) {
    device->copy(t.at(element), &value, sizeof value, Stream::compute);
    device->sync();
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  Tuning* tuning = nullptr;  // only on a GPU
  std::unique_ptr<ProcessMesh> mesh;
};

}  // namespace athanor::testing
