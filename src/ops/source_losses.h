// Sums of a micro-batch's losses by source of the data, for logs.
#pragma once
#include <cmath>

#include "ops/dropout.h"
#include "ops/op.h"

namespace athanor {

// sums[0, s] += losses of source s, sums[1, s] += number of these losses. Row i belongs to sequence rows.sequence(i),
// and each sequence to one source; ignored rows do not count. Each loss is rounded to a multiple of 2^-24 (losses of at
// least 0.5 already are multiples): sums below 2^29 nats are then exact, so that their bits do not depend on the order
// of addition.
struct SourceLosses {
  Tensor sums;     // [2, S] f64
  Tensor losses;   // [N] f32
  Tensor targets;  // [N] i32; negative: ignored
  Tensor sources;  // [rows.sequences] i32, each in [0, S)
  SequenceRows rows = {};
  static constexpr const char* kName = "source_losses";

  ATHANOR_HOST_DEVICE static double rounded(float loss) { return std::rint(double(loss) * 0x1p24) * 0x1p-24; }
  auto fields() {
    return fields_of(Field::inout("sums", sums), Field::in("losses", losses), Field::in("targets", targets),
                     Field::in("sources", sources));
  }
  void check() const {
    Expect{kName}
        .matrix("sums", sums)
        .is("sums", sums, DType::f64, {2, sums.cols()})
        .is("losses", losses, DType::f32, losses.shape)
        .is("targets", targets, DType::i32, losses.shape)
        .is("sources", sources, DType::i32, {rows.sequences})
        .that(rows.sequences > 0 && rows.length > 0, "rows of sequences");
  }
  Cost cost() const { return {2.0 * double(losses.numel()), traffic(*this)}; }
};

}  // namespace athanor
