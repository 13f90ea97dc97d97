// Counted: ops run on the emulated GPU while it counts their memory accesses, to be compared with the committed budget.
// Tensors hold zeros unless a test fills them. On a real GPU there is nothing to count and this class does not exist.
#pragma once
#include "tests/cuda/kernel_test.h"
#ifdef ATHANOR_EMULATED_GPU

namespace athanor {

class Counted {
 public:
  Counted() : backend_(make_cuda_backend(1)) { emu::reset_kernel_counters(); }
  Tensor zeros(DType dtype, Shape shape, int64_t row_stride = 0) const {
    Tensor t{nullptr, dtype, shape, row_stride};
    const int64_t elements = row_stride ? shape[0] * row_stride : shape.numel();
    t.data = backend_.device->allocate(size_t(elements) * size_of(dtype), Mem::device);
    return t;
  }
  Tensor indices(const std::vector<int32_t>& values) const {
    const Tensor t = zeros(DType::i32, {int64_t(values.size())});
    backend_.device->copy(t.data, values.data(), t.bytes(), Lane::compute);
    return t;
  }
  template <class Op>
  void run(const Op& op) const {
    const size_t bytes = backend_.ops->scratch(op);
    void* scratch = bytes ? backend_.device->allocate(bytes, Mem::device) : nullptr;
    emu::count_accesses(true);
    backend_.ops->run(op, scratch);
    backend_.device->sync();
    emu::count_accesses(false);
  }
  static void expect_within_budget() {
    EXPECT_EQ(emu::compare_with_budget("tests/cuda/access_budget.txt", emu::kernel_counters()), "");
  }

 private:
  TestBackend backend_;
};
}  // namespace athanor
#endif
