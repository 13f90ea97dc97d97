// Softmax cross-entropy: loss and gradient in one pass over the logits, which become their own gradient.
#pragma once
#include "ops/op.h"

namespace athanor {

// losses[i] = logsumexp(logits[i, :vocab]) - logits[i, targets[i]]; 0 where targets[i] < 0 (ignored).
// With grad, logits become scale * inv_count * (softmax - onehot); columns >= vocab (padding) and ignored rows become
// 0. z_loss adds z_loss * logsumexp^2 to what is differentiated, and nothing to the losses [Chowdhery et al. 2022
// (PaLM), section 5]: softmax becomes (1 + 2 z_loss logsumexp) softmax.
struct CrossEntropy {
  Tensor logits;        // [n, Vp]; inout with grad
  Tensor losses;        // [n] f32
  Tensor targets;       // [n] i32
  Tensor scale;         // [1] f32: the loss scale of fp16; read on the device
  float inv_count = 0;  // 1 / number of targets in the whole global batch
  int64_t vocab = 0;    // columns that exist; the rest is padding
  bool grad = true;
  float z_loss = 0;
  static constexpr const char* kName = "cross_entropy";
  std::array<Field, 4> fields() {
    return {{{"logits", grad ? Io::inout : Io::in, &logits},
             {"losses", Io::out, &losses},
             {"targets", Io::in, &targets},
             {"scale", Io::in, &scale}}};
  }
  void check() const {
    Expect e{kName};
    e.floating("logits", logits)
        .matrix("logits", logits)
        .contiguous("logits", logits)
        .is("losses", losses, DType::f32, {logits.rows()});
    e.is("targets", targets, DType::i32, {logits.rows()})
        .that(vocab > 0 && vocab <= logits.cols(), "0 < vocab <= columns");
    if (grad) e.is("scale", scale, DType::f32, {1});
  }
  Cost cost() const { return {8.0 * double(logits.numel()), traffic(*this)}; }
};

}  // namespace athanor
