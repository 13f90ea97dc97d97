// Sums of gradients that ranks send each other in 4 or 8 bits per element (ops/packed_groups.h), as in SDP4Bit [Jia et
// al. 2024, "SDP4Bit: Toward 4-bit Communication Quantization in Sharded Data Parallelism for LLM Training"]: each rank
// rounds its terms once, after a Hadamard transform, and the terms are added in f32 in rank order. A dry run sends
// nothing.
#pragma once
#include "tape/ctx.h"

namespace athanor {

// Which collectives of sharded training send packed groups. gradients: reductions over ProcessMesh::shards() in 4 bits,
// or with copies in 8 bits and over ProcessMesh::copies() in 4. weights: after an update a rank sends, in 4 bits, the
// difference between its shard and the sum of what it has sent before; all ranks, itself included, compute with the sum
// of what was sent.
struct PackedTraffic {
  bool gradients = false, weights = false;
};

// A reduce-scatter that overlaps compute between begin() and end().
class PackedScatter {
 public:
  // whole: size() shards, each of whole groups, in rank order; it may change after this call. sends: false: only
  // allocates.
  void begin(Ctx&, Communicator&, const Tensor& whole, DType format, bool sends);
  // Writes the sum of all ranks to this rank's shard, which may be a view of `whole`, and frees the buffers.
  void end(Ctx&, const Tensor& shard);
  explicit operator bool() const { return bool(received_); }
  bool sends() const { return sends_; }

 private:
  Buffer sent_, received_;
  Ctx::Ticket ticket_;
  DType format_ = DType::f4_e2m1;
  int ranks_ = 1;
  bool sends_ = false;
};

// Replaces x by the sum of all ranks' x, in 4 bits; each rank sends to all others. sends: false: only allocates.
void packed_all_reduce(Ctx&, Communicator&, const Tensor& x, bool sends = true);

}  // namespace athanor
