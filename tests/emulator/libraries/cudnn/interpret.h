// Runs an operation graph node by node in fp32, rounding what is stored (virtual tensors too) to each tensor's type.
#pragma once
#include <map>

#include "graph.h"

namespace emu::fakes {

struct GraphRun {
  std::map<int64_t, void*> pointers;  // by tensor id: device memory
  std::map<int64_t, float> values;    // tensors by value
};

void run_graph(const CudnnGraph& graph, const GraphRun& run);

}  // namespace emu::fakes
