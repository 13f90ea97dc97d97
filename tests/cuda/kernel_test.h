// Fixture of kernel tests: the op cases of tests/ops run on a GPU, or on the emulated one, compared with the reference
// in double: values, gradients, guards around every tensor, the same bits in every run. Test files are the same for
// both.
#pragma once
#include <gtest/gtest.h>

#include "tests/cuda/cuda_backend.h"
#include "tests/ops/cases.h"
#ifdef ATHANOR_EMULATED_GPU
#include "emulator/budget.h"
#include "emulator/emulator.h"
#endif

namespace athanor {

// A device whose allocations are 8 bytes off a 16-byte boundary: no 16-byte access is possible.
class MisalignedDevice final : public Device {
 public:
  explicit MisalignedDevice(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  std::string description() const override { return device_->description(); }
  void* allocate(size_t bytes, Mem mem) override {
    return static_cast<char*>(device_->allocate(bytes + kShift, mem)) + kShift;
  }
  void release(void* memory, size_t bytes, Mem mem) override {
    device_->release(static_cast<char*>(memory) - kShift, bytes + kShift, mem);
  }
  void copy(void* to, const void* from, size_t bytes, Stream stream) override {
    device_->copy(to, from, bytes, stream);
  }
  std::unique_ptr<Event> record(Stream stream) override { return device_->record(stream); }
  void wait(Stream stream, const Event& event) override { device_->wait(stream, event); }
  void sync() override { device_->sync(); }
  size_t capacity(Mem mem) const override { return device_->capacity(mem); }
  size_t allocated() const override { return device_->allocated(); }

 private:
  static constexpr size_t kShift = 8;
  std::shared_ptr<Device> device_;
};
inline TestBackend make_misaligned_backend(int threads) {
  TestBackend backend = make_cuda_backend(threads);
  return {std::make_shared<MisalignedDevice>(backend.device), backend.ops};
}

class KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
  // Runs all cases of one op of a family; on the emulated GPU, which is slow, one in `every_emulated`.
  static void agrees_with_the_reference(const std::string& op, void (*family)(Examiner&),
                                        [[maybe_unused]] int every_emulated = 1) {
    Examiner::Options options{.threads = {1, 2}, .only = op};
#ifdef ATHANOR_EMULATED_GPU
    options.every = every_emulated;
#endif
    Examiner examine(make_cuda_backend, options);
    family(examine);
    EXPECT_GT(examine.seen().at(op), 0);
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
  }
  // Runs one in `every` cases of an op in memory that is not aligned for vector access.
  static void needs_no_alignment(const char* op, void (*family)(Examiner&), int every) {
    Examiner examine(make_misaligned_backend, {.threads = {1}, .only = op, .every = every});
    family(examine);
    EXPECT_GT(examine.seen().at(op), 0);
    EXPECT_TRUE(examine.findings().empty()) << examine.report();
  }
};

#ifdef ATHANOR_EMULATED_GPU
// Counts the memory accesses of ops and compares them with tests/cuda/access_budget.txt.
class AccessBudget {
 public:
  ~AccessBudget() { emu::count_accesses(false); }
  Tensor tensor(DType dtype, const Shape& shape, int64_t row_stride = 0) const {  // filled with zeros
    Tensor t{nullptr, dtype, shape, row_stride};
    const int64_t elements = row_stride ? shape[0] * row_stride : shape.numel();
    t.data = backend_.device->allocate(size_t(elements) * size_of(dtype), Mem::device);
    return t;
  }
  Tensor indices(const std::vector<int32_t>& values) const {
    const Tensor t = tensor(DType::i32, {int64_t(values.size())});
    backend_.device->copy(t.data, values.data(), t.bytes(), Stream::compute);
    return t;
  }
  template <class... Op>
  std::string check(const Op&... op) const {
    emu::reset_kernel_counters();
    emu::count_accesses(true);
    (backend_.ops->run(op, backend_.device->allocate(backend_.ops->scratch(op), Mem::device)), ...);
    backend_.device->sync();
    emu::count_accesses(false);
    return emu::compare_with_budget("tests/cuda/access_budget.txt", emu::kernel_counters());
  }

 private:
  TestBackend backend_ = make_cuda_backend(1);
};
#endif
}  // namespace athanor
