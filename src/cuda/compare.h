// Compares the results of two kernels for the same op during autotuning: a wrong kernel may be the fastest.
#pragma once
#include <cuda_runtime_api.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "cuda/autotune.h"
#include "cuda/check.h"
#include "ops/op.h"
namespace athanor::cuda {

// Maximum relative distance |x - expected| / |expected| (root mean squares) over groups of 64 rows: rounding to bf16
// gives up to 0.006, a wrong tile 0.1 or more. 0 where both are 0; NaN if a value is NaN. x and expected have one shape
// and float type; rows may be strided. Waits for the stream.
double largest_distance(const Tensor& x, const Tensor& expected, cudaStream_t stream);
constexpr double kMostDistance = 0.02;  // limit for results that differ only by rounding

// Copies of tensors that an op writes.
class WrittenCopies {
 public:
  WrittenCopies(const std::vector<Tensor>& tensors, cudaStream_t stream);
  void restore(const std::vector<Tensor>& tensors, cudaStream_t stream) const;
  Tensor copy(size_t i) const { return copies_[i]; }

 private:
  std::vector<DeviceMemory> memory_;
  std::vector<Tensor> copies_;
};
void fill_with_nan(const std::vector<Tensor>& tensors, cudaStream_t stream);

// Runs expected() and then candidate(), which both compute `op` on its tensors, from the same initial contents. If an
// output differs by more than rounding explains, returns its name and the difference; otherwise an empty string.
template <class Op, class Expected, class Candidate>
std::string difference(Op op, cudaStream_t stream, Expected&& expected, Candidate&& candidate) {
  std::vector<Tensor> outputs, kept, written;
  std::vector<std::string> names;
  for (const Field& field : op.fields()) {
    if (!*field.t || field.io == Io::in) continue;
    (field.io == Io::inout ? kept : outputs).push_back(*field.t);
    written.push_back(*field.t);
    names.emplace_back(field.name);
  }
  const WrittenCopies before(kept, stream);
  fill_with_nan(outputs, stream);  // exposes elements that the kernel does not write
  expected();
  const WrittenCopies results(written, stream);
  before.restore(kept, stream);
  fill_with_nan(outputs, stream);
  candidate();
  for (size_t i = 0; i < written.size(); ++i) {
    const double distance = largest_distance(written[i], results.copy(i), stream);
    if (std::isnan(distance)) return cat(names[i], " has values that are NaN or were not written");
    if (distance > kMostDistance)
      return cat(names[i], " differs by ", distance, " of its size, by more than ", kMostDistance);
  }
  return "";
}
}  // namespace athanor::cuda
