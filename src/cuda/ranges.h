// One launch over several flat buffers: a table of ranges in the kernel's parameters maps each block to its range.
#pragma once
#include "cuda/flat.h"
#include "cuda/host_tools.h"
#include "cuda/launch.h"
namespace athanor::cuda {

constexpr int kMostRanges = 128;  // 12 KiB of a kernel's 32 KiB of parameters; more ranges need further launches

template <class Range>
struct Ranges {
  int count = 0;
  unsigned first_block[kMostRanges + 1] = {};  // first block of each range, and the number of blocks
  Range range[kMostRanges] = {};

  void add(const Range& r, int64_t blocks) {
    range[count] = r;
    first_block[count + 1] = grid_size(first_block[count] + blocks);
    ++count;
  }
  unsigned blocks() const { return first_block[count]; }
  // The range of a block: the last range whose first block is `block` or earlier.
  __device__ __forceinline__ int find(unsigned block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_block[middle] <= block) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// Calls launch(Ranges<Range>) with all ranges of a list, in several tables if they do not fit in one.
template <class Range, class List, class Add, class Launch>
void in_tables(const List& list, Add add, Launch launch) {
  Ranges<Range> table;
  for (const auto& each : list) {
    add(table, each);
    if (table.count < kMostRanges) continue;
    launch(table);
    table = {};
  }
  if (table.count > 0) launch(table);
}

// Launches kernel(table, arguments...) with the table's blocks of kTileThreads threads.
template <class Range, class... P, class... A>
void launch_table(void (*kernel)(Ranges<Range>, P...), const Ranges<Range>& table, cudaStream_t stream,
                  const A&... arguments) {
  CUDA_CHECK(launch(kernel, {dim3(table.blocks()), dim3(kTileThreads), 0, stream}, table, arguments...));
}

// Launches kernel(table, arguments...) for all ranges of a list; see in_tables().
template <class Range, class... P, class List, class Add, class... A>
void launch_tables(void (*kernel)(Ranges<Range>, P...), const List& list, Add add, cudaStream_t stream,
                   const A&... arguments) {
  in_tables<Range>(list, add, [&](const Ranges<Range>& table) { launch_table(kernel, table, stream, arguments...); });
}
}  // namespace athanor::cuda
