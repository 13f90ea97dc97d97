// All-reduce of momentum in 1 bit per element with error feedback, for 1-bit Adam [Tang et al. 2021, "1-bit Adam:
// Communication Efficient Large-Scale Training with Adam's Convergence Speed"]. A vector of whole blocks is compressed
// block by block: C(x) = scale * sign(x) with sign(0) = 1 and scale = the root mean square of the block. The error x -
// C(x) is added to the next input of the compression. Workers serve blocks round-robin; a server averages its blocks,
// compresses the averages, and sends them to all workers:
//   1. OneBitMomentum: x = b1 m + (1 - b1) g. Sends C(x + error) of each block to its server; own blocks stay x.
//   2. OneBitMean: own blocks: y = mean over workers of the received values and own x, plus error; sends C(y) to all.
//   3. OneBitDirection: m = C(y) for all blocks.
// A worker sends nothing to itself, so one error vector serves both compressions. The paper instead has one scale per
// tensor and also compresses a server's own part; per-block scales suit rows of an embedding that differ in frequency.
// Elements with v = 0 had no gradient before v was frozen: they are excluded from scales and stay unchanged.
// Everything is computed in f32, rounded after every operation, except sums of squares, which are in f64.
#pragma once
#include <cmath>
#include <limits>

#include "base/host_device.h"
#include "base/int.h"
#include "ops/lamb.h"

namespace athanor {

constexpr int64_t kOneBitBlock = 256;

// A compressed block. Bit i % 32 of signs[i / 32] is set if element i is negative.
struct OneBitRecord {
  float scale;
  uint32_t signs[kOneBitBlock / 32];
  ATHANOR_HOST_DEVICE float value(int64_t i, float v) const {
    if (v == 0) return 0;
    return (signs[i / 32] >> (i % 32) & 1) != 0 ? -scale : scale;
  }
};
static_assert(sizeof(OneBitRecord) == 36);

// Assigns blocks to servers and records to slots: the records of a vector are grouped by server, starting with the
// server of its first block. The assignment depends only on the unit, not on how ranks within a worker shard it.
struct OneBitBlocks {
  int64_t count = 0;  // blocks of the vector
  int64_t first = 0;  // index of the vector's first block in the unit
  int workers = 1, worker = 0;

  ATHANOR_HOST_DEVICE int order(int server) const {  // index of a server in the vector's order of servers
    return static_cast<int>((server - first % workers + workers) % workers);
  }
  ATHANOR_HOST_DEVICE bool is_own(int64_t block) const { return block % workers == order(worker); }
  ATHANOR_HOST_DEVICE int64_t served(int order) const { return (count - order + workers - 1) / workers; }
  ATHANOR_HOST_DEVICE int64_t begin(int order) const {
    const int64_t longer = count % workers;
    return count / workers * order + (order < longer ? order : longer);
  }
  ATHANOR_HOST_DEVICE int64_t slot(int64_t block) const {
    return begin(static_cast<int>(block % workers)) + block / workers;
  }
};

inline void check_one_bit(const char* op, const OneBitBlocks& blocks, const Tensor& state, const Tensor& v,
                          const Tensor& records) {
  Expect e{op};
  e.that(blocks.count > 0 && blocks.workers > 0 && blocks.worker >= 0 && blocks.worker < blocks.workers, "blocks",
         "some, of one of the workers");
  e.is("state", state, DType::u8, {int64_t(sizeof(StepState))});
  e.is("v", v, DType::f32, {blocks.count * kOneBitBlock});
  e.is("records", records, DType::u8, {blocks.count * int64_t(sizeof(OneBitRecord))});
}

// Step 1 above, with g = grad * state.grad_scale. Own blocks of grad become x; other blocks keep their values. In a
// skipped step errors are unchanged and the records have scale 0.
struct OneBitMomentum {
  Tensor state;    // StepState
  Tensor m, v;     // [n] f32
  Tensor grad;     // [n] f32
  Tensor error;    // [n] f32
  Tensor records;  // [count * 36] OneBitRecord; blocks of other servers are written
  double beta1 = 0.9;
  OneBitBlocks blocks;  // n = count * kOneBitBlock
  static constexpr const char* kName = "one_bit_momentum";
  auto fields() {
    return fields_of(Field::in("state", state), Field::in("m", m), Field::in("v", v), Field::inout("grad", grad),
                     Field::inout("error", error), Field::inout("records", records));
  }
  void check() const {
    check_one_bit(kName, blocks, state, v, records);
    Expect{kName}
        .is("m", m, DType::f32, v.shape)
        .is("grad", grad, DType::f32, v.shape)
        .is("error", error, DType::f32, v.shape);
  }
  Cost cost() const { return {8.0 * double(v.numel()), traffic(*this)}; }
};

// Step 2 above. `received` holds the records of this worker's blocks from each worker, in worker order; its own entry
// is not read. Values are added in worker order. In a skipped step errors are unchanged and the records have scale 0.
struct OneBitMean {
  Tensor state;     // StepState
  Tensor v;         // [n] f32
  Tensor grad;      // [n] f32: x in own blocks
  Tensor received;  // [workers * own blocks * 36]; absent with one worker
  Tensor error;     // [n] f32
  Tensor records;   // [count * 36]; own blocks are written
  OneBitBlocks blocks;
  static constexpr const char* kName = "one_bit_mean";
  auto fields() {
    return fields_of(Field::in("state", state), Field::in("v", v), Field::in("grad", grad),
                     Field::in("received", received), Field::inout("error", error), Field::inout("records", records));
  }
  void check() const {
    check_one_bit(kName, blocks, state, v, records);
    Expect e{kName};
    e.is("grad", grad, DType::f32, v.shape).is("error", error, DType::f32, v.shape);
    const int64_t own = blocks.served(blocks.order(blocks.worker));
    e.that(own > 0, "blocks", "at least one that this worker serves");
    e.that(bool(received) == (blocks.workers > 1), "received", "exactly with several workers");
    if (received) e.is("received", received, DType::u8, {blocks.workers * own * int64_t(sizeof(OneBitRecord))});
  }
  Cost cost() const { return {4.0 * double(v.numel()) / blocks.workers, traffic(*this)}; }
};

// Step 3 above. The gradient becomes Adam's direction with a frozen variance, u = (m / c1) / (sqrt(v / c2) + eps), with
// c1, c2 the corrections of the two averages. In a skipped step m is unchanged and the gradient becomes 0. 1-bit LAMB
// [Li et al. 2021, "1-bit LAMB: Communication Efficient Large-Scale Large-Batch Training with LAMB's Convergence
// Speed"] also updates a fresh variance from the gradients that the momenta imply:
//   fresh = b2 fresh + (1 - b2) ((C(y) - b1 m) / (1 - b1))^2; a fresh variance of 0 starts as v.
// ratios = maximum over a block of (sqrt(v / c2) + eps) / (sqrt(fresh / c3) + eps), or 0 if no element has a variance.
// The direction then includes LAMB's decay: u + wd w, without it if `cautious` and w u < 0. A skipped step leaves fresh
// and ratios unchanged.
struct OneBitDirection {
  Tensor state;                                                    // StepState
  Tensor records;                                                  // [count * 36]
  Tensor v;                                                        // [n] f32
  Tensor m;                                                        // [n] f32
  Tensor grad;                                                     // [n] f32
  Tensor fresh;                                                    // [n] f32, 1-bit LAMB only, like ratios and w
  Tensor ratios;                                                   // [count] f32
  Tensor w;                                                        // [n] f32
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;  // betas and weight_decay: 1-bit LAMB only
  int64_t decayed = std::numeric_limits<int64_t>::max();           // weight decay applies to elements below this index
  bool cautious = false;
  int average1 = 0, average2 = 1, average3 = 1;  // indices into StepState::corrections
  OneBitBlocks blocks;
  static constexpr const char* kName = "one_bit_direction";
  auto fields() {
    return fields_of(Field::in("state", state), Field::in("records", records), Field::in("v", v), Field::inout("m", m),
                     Field::out("grad", grad), Field::inout("fresh", fresh), Field::inout("ratios", ratios),
                     Field::in("w", w));
  }
  void check() const {
    check_one_bit(kName, blocks, state, v, records);
    Expect e{kName};
    e.is("m", m, DType::f32, v.shape).is("grad", grad, DType::f32, v.shape);
    e.that(bool(fresh) == bool(ratios) && bool(fresh) == bool(w), "ratios and w", "exactly with fresh");
    e.that(fresh || weight_decay == 0, "weight_decay", "0 without w");
    if (!fresh) return;
    e.is("fresh", fresh, DType::f32, v.shape).is("w", w, DType::f32, v.shape);
    e.is("ratios", ratios, DType::f32, {blocks.count});
  }
  Cost cost() const { return {(fresh ? 16.0 : 5.0) * double(v.numel()), traffic(*this)}; }
};

// Scalars of OneBitDirection: those of LAMB, and the correction of the fresh variance. Op: the op or the kernel
// argument made from it.
struct OneBitScalars : LambScalars {
  float root_bias3;
};
template <class Op>
ATHANOR_HOST_DEVICE OneBitScalars one_bit_scalars(const Op& op, const StepState& s) {
  return {lamb_scalars(op, s), float(std::sqrt(double(s.corrections[op.average3])))};
}

// Scale of a block: squares is the sum of squares of its `count` elements with a nonzero variance.
ATHANOR_HOST_DEVICE inline float one_bit_scale(double squares, int count) {
  return count > 0 ? float(std::sqrt(squares / count)) : 0.f;
}

}  // namespace athanor
