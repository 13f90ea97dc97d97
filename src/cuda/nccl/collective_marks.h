// Where a device is among the collectives that were launched on it: marks in memory that the host reads while it runs.
// They are ordinary kernels of a lane, so that they stand in captured graphs too, where events tell the host nothing.
#pragma once
#include "cuda/cuda_device.h"
namespace athanor::cuda {

class CollectiveMarks {
 public:
  // What a lane had last passed.
  struct State {
    uint32_t passed = 0;  // marks so far, two for each collective: odd within one
    uint32_t what = 0;    // as given to begin()
    bool inside() const { return passed % 2 == 1; }
    uint32_t collectives() const { return (passed + 1) / 2; }  // begun
  };

  explicit CollectiveMarks(CudaDevice&);
  ~CollectiveMarks();
  CollectiveMarks(const CollectiveMarks&) = delete;
  CollectiveMarks& operator=(const CollectiveMarks&) = delete;

  void begin(Lane, uint32_t what);  // queued on the lane, before and after a collective
  void end(Lane lane) { mark(lane, 0); }
  State read(Lane) const;  // by any thread, at any time, without waiting

 private:
  static constexpr size_t kLanes = 3;
  void mark(Lane, uint32_t what);
  CudaDevice& device_;
  uint32_t* passed_;   // [kLanes] in device memory
  uint64_t* visible_;  // [kLanes] in pinned memory: passed << 32 | what
};
}  // namespace athanor::cuda
