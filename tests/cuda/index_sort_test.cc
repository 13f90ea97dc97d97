// The sort of cuda/index_sort.cu: indices ascending, rows with equal index in their original order, each row once.
#include "cuda/index_sort.h"

#include <algorithm>
#include <numeric>

#include "cuda/scratch.h"
#include "tests/cuda/kernel_test.h"

namespace athanor {
namespace {

class IndexSort : public KernelTest {};

template <class T>
std::vector<T> read(Device& device, const T* from, size_t count) {
  std::vector<T> values(count);
  device.copy(values.data(), from, count * sizeof(T), Stream::compute);
  return values;
}

void expect_sorted(const std::vector<int>& indices, int64_t limit) {
  const TestBackend backend = make_cuda_backend(2);
  Device& device = *backend.device;
  const int64_t rows = int64_t(indices.size());
  const size_t bytes = indices.size() * sizeof(int), scratch_bytes = cuda::sort_scratch(rows, limit);
  auto* on_device = static_cast<int*>(device.allocate(bytes, Mem::device));
  device.copy(on_device, indices.data(), bytes, Stream::compute);
  void* scratch = device.allocate(scratch_bytes, Mem::device);
  const cuda::SortedIndices sorted = cuda::sort_indices({on_device, rows, limit}, scratch, nullptr);
  device.sync();
  std::vector<int> order(indices.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return indices[size_t(a)] < indices[size_t(b)]; });
  EXPECT_EQ(read(device, sorted.row, indices.size()), order) << rows << " rows below " << limit;
  std::vector<int> want;
  for (const int row : order) want.push_back(indices[size_t(row)]);
  EXPECT_EQ(read(device, sorted.index, indices.size()), want) << rows << " rows below " << limit;
  device.release(on_device, bytes, Mem::device);
  device.release(scratch, scratch_bytes, Mem::device);
}

std::vector<int> drawn(int64_t rows, int64_t limit) {
  std::vector<int> indices;
  for (int64_t i = 0; i < rows; ++i)
    indices.push_back(int(random_bits(1, uint64_t(limit), uint64_t(i)) % uint64_t(limit)));
  return indices;
}

// One row; warps and tiles that are not full; one to four radix digits.
TEST_F(IndexSort, IsStable) {
  for (const auto& [rows, limit] : {std::pair<int64_t, int64_t>{1, 1}, {31, 2}, {257, 3}, {2049, 512}, {4100, 513}})
    expect_sorted(drawn(rows, limit), limit);
  expect_sorted(drawn(300, 1 << 18), 1 << 18);
  expect_sorted(drawn(300, (1 << 18) + 1), (1 << 18) + 1);
  expect_sorted(drawn(64, int64_t{1} << 31), int64_t{1} << 31);
}

TEST_F(IndexSort, SortsEqualIndicesAndBothEndsOfTheRange) {
  expect_sorted(std::vector<int>(2500, 7), 8);
  std::vector<int> ends;
  for (int i = 0; i < 500; ++i) ends.push_back(i % 3 ? 131071 : 0);
  expect_sorted(ends, 131072);
}
}  // namespace
}  // namespace athanor
