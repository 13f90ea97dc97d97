#include "tape/block_inputs.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace athanor {
namespace {

// Does not use the copy streams: pipeline stages send in them, so a copy would wait until another stage has received.
Ctx::Ticket copy(Ctx& c, const Tensor& to, const Tensor& from) {
  return c.overlap([&](Stream stream) { c.device.copy(to.data, from.data, from.bytes(), stream); });
}

}  // namespace

void BlockInputs::plan(MemoryPlan& plan, int64_t blocks, DType dtype, const Shape& input) {
  home_.resize(size_t(std::max<int64_t>(0, blocks - 1)));
  for (size_t i = 0; i < home_.size(); ++i)
    plan.add(MemoryKind::activations, cat("input of block ", i), dtype, input, &home_[i], Mem::pinned);
}

size_t BlockInputs::bytes() const { return home_.empty() ? 0 : home_.size() * home_.front().bytes(); }

int64_t BlockInputs::keep(Ctx& c, Buffer input) {
  c.wait(std::move(moving_.copied));  // after this wait the memory of the previous input can be reused
  const int64_t number = next_++;
  moving_.input = std::move(input);
  moving_.number = number;
  if (number == int64_t(home_.size())) return number;  // the last input stays in device memory
  const Tensor &from = moving_.input.t, &home = home_.at(size_t(number));
  CHECK(home.shape == from.shape && home.dtype == from.dtype, "input ", from.shape, " of block ", number, ", planned ",
        home.shape);
  moving_.copied = copy(c, home, from);
  return number;
}

Buffer BlockInputs::bring(Ctx& c, int64_t number) {
  CHECK(moving_.number == number, "the input of block ", number, " is asked for, and block ", moving_.number,
        " is the next one of backward");
  c.wait(std::move(moving_.copied));
  Buffer input = std::exchange(moving_.input, {});
  next_ = number;
  moving_.number = number - 1;
  if (number == 0) return input;
  const Tensor& home = home_[size_t(number) - 1];
  moving_.input = c.alloc("input of a block", home.dtype, home.shape);
  moving_.copied = copy(c, moving_.input.t, home);
  return input;
}

}  // namespace athanor
