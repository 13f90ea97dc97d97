// MemoryPlan: all device memory of a run, and the pinned host memory of offloaded tensors, known before the first
// allocation. Owners add their tensors as lines; commit() makes one allocation per kind of memory and points every
// tensor into it, so allocated bytes equal planned bytes exactly.
#pragma once
#include <string>
#include <vector>

#include "device/arena.h"
#include "device/device.h"

namespace athanor {

enum class MemoryKind : uint8_t { weights, masters, gradients, optimizer, activations, inputs, constants, cache };
constexpr int kMemoryKinds = 8;
const char* name_of(MemoryKind);

class MemoryPlan {
 public:
  struct Line {
    MemoryKind kind;
    std::string name;
    DType dtype;
    size_t bytes;  // rounded up to kArenaAlign
    Tensor* target;
    size_t offset;
    Mem where;  // device or pinned
  };
  MemoryPlan() = default;
  MemoryPlan(const MemoryPlan&) = delete;
  MemoryPlan& operator=(const MemoryPlan&) = delete;
  ~MemoryPlan();

  // Sets dtype and shape of *target and, until commit(), a fake address that must not be dereferenced. `target` must
  // not move.
  void add(MemoryKind, std::string name, DType, Shape, Tensor* target, Mem where = Mem::device);
  // Adds the memory of the arena's phases; call after all phases are recorded.
  void add(Arena&);

  size_t total(Mem where = Mem::device) const { return where == Mem::device ? total_ : host_total_; }
  size_t total(MemoryKind, Mem where = Mem::device) const;
  const std::vector<Line>& lines() const { return lines_; }
  // Returns the options that would make a kind smaller, without those already in force.
  std::string knobs(MemoryKind) const;
  // Throws an Error with the largest kinds and their options when total() + reserve exceeds capacity.
  void require_fits(size_t capacity, size_t reserve) const;
  // Like require_fits(), for host memory. extra: further bytes of host memory that the run needs.
  void require_host_fits(size_t capacity, size_t extra) const;
  void commit(Device&);  // the memory is zero-filled

 private:
  const char* params_offload() const;
  std::vector<Line> lines_;
  size_t total_ = 0, host_total_ = 0;
  Arena* arena_ = nullptr;
  Device* device_ = nullptr;
  void *memory_ = nullptr, *host_memory_ = nullptr;
};

}  // namespace athanor
