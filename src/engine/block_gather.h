// BlockGather: gathers the tensors of a checkpoint on the ranks that write them, one block per rank and round, so that
// a save needs memory for only a few blocks, whatever the size of the model. The caller chooses which rank writes which
// block, and the order.
#pragma once
#include <span>
#include <vector>

#include "param/param_store.h"

namespace athanor {

// Values [begin, end) of a checkpoint tensor, in the order of the file: the master weights of a piece (state -1) or one
// of its optimizer states.
struct SavedBlock {
  size_t piece = 0;
  int state = -1;
  int64_t begin = 0, end = 0;
  bool empty() const { return begin == end; }
};

class BlockGather {
 public:
  static constexpr int64_t kBytes = 4 << 20;
  static constexpr const char* kPhase = "blocks of a checkpoint";

  // In a dry run the constructor records the memory that it needs; otherwise it begins the recorded phase of the arena,
  // which the destructor ends. bytes: max size of a block. A tensor that is sliced by columns is gathered in whole
  // rows, at least one.
  BlockGather(const Ctx&, const ParamStore&, int64_t bytes);
  ~BlockGather();
  BlockGather(const BlockGather&) = delete;
  BlockGather& operator=(const BlockGather&) = delete;

  int64_t values(size_t piece, int state) const;
  DType dtype(size_t piece, int state) const;
  size_t block_bytes() const { return block_bytes_; }  // size of the largest block
  // Returns the end of the block that begins at `begin`.
  int64_t block_end(size_t piece, int state, int64_t begin) const;
  // Collective over ProcessMesh::weights(). wanted: the block that each of these ranks gets (empty: none); a rank can
  // only get blocks of units that it has. Returns this rank's block [values], in device memory or where master weights
  // and states are; valid until the next call.
  Tensor next(std::span<const SavedBlock> wanted);

 private:
  // Part of a piece, on one of the ranks that have different parts of it (Placement::cuts).
  struct Part {
    int64_t begin;  // offset in the unit
    std::vector<Strips> strips;
    int first;  // the first of these ranks that has the same part
  };
  // Range of a part, sent by one rank.
  struct Transfer {
    int from;
    ParamStore::Range range;  // elements of the unit
    int64_t at;               // offset in the block, in elements
  };
  const Placement& placement(size_t piece) const { return params_.placement({pieces_[piece].param}); }
  const ParamStore::Unit& unit_of(const SavedBlock& b) const { return *units_[size_t(pieces_[b.piece].unit)]; }
  bool has_sizes(const SavedBlock& b) const { return b.state >= 0 && params_.has_sizes(size_t(b.state)); }
  bool is_split(const SavedBlock& b) const { return b.state < 0 && unit_of(b).is_split(); }
  int64_t elements_of_value(int state) const;
  int64_t most_values(size_t piece, int state) const;  // max number of values of a block
  bool is_cut_by_columns(size_t piece) const;
  Tensor view(const SavedBlock&, ParamStore::Range, bool rests) const;
  std::vector<Transfer> transfers(const SavedBlock&, int writer) const;
  Tensor in_place(const SavedBlock&) const;
  void exchange(std::span<const SavedBlock> wanted, const Tensor& to, bool rests);
  Tensor in_order(const SavedBlock&, const Tensor& parts);
  Tensor sendable(const Tensor& bytes, int w);

  Ctx c_;
  const ParamStore& params_;
  const std::vector<std::unique_ptr<ParamStore::Unit>>& units_;
  const std::vector<ParamStore::Piece> pieces_;
  const int ranks_, rank_;
  const RankGrid grid_;                   // mesh coordinates of the ranks of ProcessMesh::weights()
  std::vector<std::vector<Part>> parts_;  // parts of each piece
  bool any_columns_ = false;
  bool elsewhere_ = false;  // blocks may contain elements of other ranks
  const int64_t most_bytes_;
  size_t block_bytes_ = 0;
  Buffer block_, parts_of_block_, halves_;
  Buffer sent_;  // copies of data for other ranks, if the tensors may be in host memory
};

}  // namespace athanor
