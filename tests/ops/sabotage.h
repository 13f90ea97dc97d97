// Sabotage: a backend with one planted bug, to show that the checks of backends see such bugs.
#pragma once
#include <algorithm>
#include <cstring>

#include "ops/decorate.h"
#include "tests/ops/examiner.h"

namespace athanor {

class Sabotage final : public Decorated<Sabotage> {
 public:
  struct Plan {
    std::string op, tensor;
    Fault fault;
    int threads = 1;  // threads of the sabotaged backend
  };
  Sabotage(std::unique_ptr<Ops> inner, Plan plan) : inner_(std::move(inner)), plan_(std::move(plan)) {}
  const Ops& inner() const { return *inner_; }
  using Decorated::fuses;
  bool fuses(const Orthogonalize&) const override { return true; }  // a bug is planted in the op, not in its parts

  template <class Op>
  void on(const Op& op, void* scratch) {
    Op copy = op;
    const Tensor* victim = nullptr;
    for (const Field& f : copy.fields())
      if (*f.t && plan_.op == Op::kName && plan_.tensor == f.name && applies(f.io)) victim = f.t;
    if (victim && plan_.fault == Fault::threw) throw Error("planted");
    if (victim && plan_.fault == Fault::unwritten) save_last(*victim);
    inner_->run(op, scratch);
    if (!victim) return;
    ++runs_;
    corrupt(*victim, scratch, inner_->scratch(op));
  }

 private:
  // A tensor may be an input in one form of an op and an output in another.
  bool applies(Io io) const {
    if (plan_.fault == Fault::out_of_bounds || plan_.fault == Fault::threw) return true;
    return (plan_.fault == Fault::modified_input) == (io == Io::in);
  }
  static char* last(const Tensor& t) {
    const int64_t rows = t.shape.rank == 2 ? t.rows() : 1, cols = t.numel() / rows;
    return static_cast<char*>(t.at((rows - 1) * (rows > 1 ? t.stride() : 0) + cols - 1));
  }
  void save_last(const Tensor& t) { std::memcpy(saved_, last(t), size_of(t.dtype)); }
  // The highest byte holds sign and exponent bits, the lowest the least significant mantissa bits.
  static void flip_high(const Tensor& t) { last(t)[size_of(t.dtype) - 1] ^= 0x40; }
  static void flip_low(const Tensor& t) { last(t)[0] ^= 1; }

  void corrupt(const Tensor& t, void* scratch, size_t scratch_bytes) {
    switch (plan_.fault) {
      case Fault::wrong_value:
      case Fault::gradient:
      case Fault::modified_input:
        return flip_high(t);
      case Fault::out_of_bounds:
        if (plan_.tensor == "scratch")
          static_cast<char*>(scratch)[scratch_bytes] ^= 1;
        else
          last(t)[size_of(t.dtype)] ^= 1;
        return;
      case Fault::unwritten:
        std::memcpy(last(t), saved_, size_of(t.dtype));
        return;
      case Fault::irreproducible:
        if (runs_ % 2 == 0) flip_low(t);
        return;
      case Fault::thread_dependent:
        if (plan_.threads == 3) flip_low(t);
        return;
      case Fault::threw:
        return;
    }
  }

  std::unique_ptr<Ops> inner_;
  Plan plan_;
  char saved_[8] = {};
  int runs_ = 0;
};

}  // namespace athanor
