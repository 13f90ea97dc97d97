// Tracks which collective a device is in: marks in pinned memory that the host reads while the device runs. The marks
// are kernels, so they also work in captured graphs, where the host cannot query events.
#pragma once
#include "cuda/device/cuda_device.h"
namespace athanor::cuda {

class CollectiveMarks {
 public:
  // State of the last mark that a stream has passed.
  struct State {
    uint32_t passed = 0;  // number of marks, two per collective; odd: inside one
    uint32_t what = 0;    // as given to begin()
    bool inside() const { return passed % 2 == 1; }
    uint32_t collectives() const { return (passed + 1) / 2; }  // collectives begun
  };

  explicit CollectiveMarks(CudaDevice&);
  ~CollectiveMarks();
  CollectiveMarks(const CollectiveMarks&) = delete;
  CollectiveMarks& operator=(const CollectiveMarks&) = delete;

  void begin(Stream, uint32_t what);  // queues the mark before a collective; end() queues the one after it
  void end(Stream stream) { mark(stream, 0); }
  State read(Stream) const;  // thread-safe, never blocks

 private:
  static constexpr size_t kStreams = kDeviceStreams;
  void mark(Stream, uint32_t what);
  CudaDevice& device_;
  uint32_t* passed_;   // [kStreams] in device memory
  uint64_t* visible_;  // [kStreams] in pinned memory: passed << 32 | what
};
}  // namespace athanor::cuda
