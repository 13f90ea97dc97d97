// cuDNN's backend (graph) interface, as far as the program's attention needs it: forward and deterministic backward of
// scaled dot products, causal and other masks, grouped heads, statistics. Any other graph is refused.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../fake_library.h"
#include "cuda/libraries/cudnn_table.h"
#include "graph.h"

// The handle that a program holds.
struct cudnnContext {
  int device = 0;
  cudaStream_t stream = nullptr;
};

namespace emu::fakes {

class FakeCudnn {
 public:
  explicit FakeCudnn(Machine machine);

  athanor::CudnnTable table() const;

  // How long an attention takes on the virtual clock, where a kernel takes 10 microseconds.
  void set_microseconds(double microseconds) { microseconds_ = microseconds; }
  uint64_t executions() const { return executions_; }
  // Plans that engines made, not those read from text.
  int plans_made() const { return plans_made_; }
  // So many of the engine configurations of every heuristic, of two, cannot be made into a plan: programs must try the
  // next, if there is one.
  void decline_engines(int first) { declined_ = first; }

  std::string last_refusal() const { return refusals_.last(); }
  std::vector<std::string> leaks() const;

 private:
  friend struct CudnnFunctions;

  cudnnStatus_t answer(const char* function, const CudnnVerdict& verdict);
  bool planned(const char* function, cudnnStatus_t* status);
  Descriptor* find(cudnnBackendDescriptor_t descriptor);
  bool lives(cudnnHandle_t handle);
  CudnnVerdict finalize(Descriptor& descriptor);
  CudnnVerdict finalize_heuristic(Descriptor& descriptor);
  CudnnVerdict finalize_plan(Descriptor& descriptor);
  CudnnVerdict results(const Descriptor& heuristic, int64_t requested, int64_t* count, void* elements);
  CudnnVerdict execute(cudnnHandle_t handle, const Descriptor& plan, const Descriptor& pack);
  CudnnVerdict gather_pointers(const CudnnGraph& graph, const Descriptor& pack, LibraryOperation* operation,
                               std::map<int64_t, void*>* pointers, std::map<int64_t, float>* values);

  Machine machine_;
  Refusals refusals_;
  mutable std::mutex mutex_;
  std::map<void*, std::unique_ptr<Descriptor>> descriptors_;
  std::map<cudnnHandle_t, std::unique_ptr<cudnnContext>> handles_;
  std::atomic<uint64_t> executions_{0};
  std::atomic<int> plans_made_{0};
  double microseconds_ = 5;
  int declined_ = 0;
  Installed<FakeCudnn> installed_;
};

}  // namespace emu::fakes
