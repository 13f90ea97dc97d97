#include "engine/block_gather.h"

#include <algorithm>

#include "base/int.h"

namespace athanor {
namespace {

Tensor bytes_of(const Tensor& t) { return {t.data, DType::u8, {int64_t(t.bytes())}}; }

}  // namespace

BlockGather::BlockGather(const Ctx& c, const ParamStore& params, int64_t bytes)
    : c_(c),
      params_(params),
      units_(params.units()),
      pieces_(params.pieces()),
      ranks_(c.mesh.weights().size()),
      rank_(c.mesh.weights().rank()),
      grid_(c.mesh.grid_of_weights()),
      most_bytes_(bytes) {
  for (size_t p = 0; p < pieces_.size(); ++p) {
    const ParamStore::Piece& piece = pieces_[p];
    const ParamSpec& spec = params_.specs()[size_t(piece.param)];
    const auto number = size_t(piece.slice - spec.slices.data());
    std::vector<Part>& parts = parts_.emplace_back();
    const Placement& placed = placement(p);
    elsewhere_ = elsewhere_ || grid_.size(placed.cuts | placed.shards) > 1;
    const int ranks = grid_.size(placed.cuts);
    for (int t = 0; t < ranks; ++t) {
      Placement::Slice slice = place_part(spec, placed, ranks, t).slices[number];
      const auto same = std::ranges::find(parts, slice.strips, &Part::strips);
      parts.push_back({params_.offset({piece.param}) + slice.offset, slice.strips,
                       same == parts.end() ? t : int(same - parts.begin())});
    }
  }
  const bool any_split = params_.split();
  for (size_t p = 0; p < pieces_.size(); ++p) {
    if (!params_.here(size_t(pieces_[p].unit))) continue;
    any_columns_ = any_columns_ || is_cut_by_columns(p);
    for (int s = -1; s < int(params_.state_specs().size()); ++s)
      if (s < 0 || params_.keeps(size_t(s), p))
        block_bytes_ = std::max(block_bytes_, size_t(std::min(values(p, s), most_values(p, s))) * size_of(dtype(p, s)));
  }
  const auto block_bytes = int64_t(block_bytes_);
  if (!c_.arena.recording()) c_.arena.begin(kPhase);
  if (elsewhere_ || any_split) block_ = c_.alloc("block", DType::u8, {block_bytes});
  if (elsewhere_ && (params_.states_home().mem != Mem::device || params_.has_host_units()))
    sent_ = c_.alloc("blocks for others", DType::u8, {ranks_ * round_up<int64_t>(block_bytes, kArenaAlign)});
  if (any_columns_) parts_of_block_ = c_.alloc("parts of a block", DType::u8, {block_bytes});
  if (any_split)
    halves_ =
        c_.alloc("halves of a block of masters", DType::u8, {2 * round_up<int64_t>(block_bytes / 2, kArenaAlign)});
}

BlockGather::~BlockGather() {
  block_ = parts_of_block_ = halves_ = sent_ = {};
  if (!c_.arena.recording()) c_.arena.end();
}

int64_t BlockGather::values(size_t piece, int state) const {
  const Shape& whole = pieces_[piece].slice->shape;
  return state < 0 ? whole.numel() : params_.state_specs()[size_t(state)].shape_of(piece, whole).numel();
}

DType BlockGather::dtype(size_t piece, int state) const {
  return state < 0 ? params_.saved_dtype(pieces_[piece]) : params_.state_specs()[size_t(state)].dtype;
}

int64_t BlockGather::elements_of_value(int state) const {
  return state < 0 ? 1 : params_.state_specs()[size_t(state)].block;
}

bool BlockGather::is_cut_by_columns(size_t piece) const {
  return std::ranges::any_of(parts_[piece].front().strips, [](const Strips& s) { return s.count > 1; });
}

int64_t BlockGather::most_values(size_t piece, int state) const {
  const int64_t most = std::max<int64_t>(1, most_bytes_ / int64_t(size_of(dtype(piece, state))));
  if (!is_cut_by_columns(piece)) return most;
  const int64_t row = parts_[piece].front().strips.front().step;
  return std::max<int64_t>(1, most / row) * row;
}

// A block does not cross the end of a strip of rows of any rank, so that each rank has one range of it.
int64_t BlockGather::block_end(size_t piece, int state, int64_t begin) const {
  int64_t end = std::min(values(piece, state), begin + most_values(piece, state));
  if (parts_[piece].size() == 1 || elements_of_value(state) > 1 || is_cut_by_columns(piece)) return end;
  for (const Part& part : parts_[piece])
    for (const Strips& s : part.strips)
      for (const int64_t edge : {s.at, s.at + s.length})
        if (begin < edge) end = std::min(end, edge);
  return end;
}

// Returns a view of a range that this rank has. Split master weights: the lower halves if `rests`, else the upper
// halves.
Tensor BlockGather::view(const SavedBlock& b, ParamStore::Range range, bool rests) const {
  const ParamStore::Unit& unit = unit_of(b);
  if (b.state >= 0) return unit.states[size_t(b.state)].part(range);
  return unit.part(!unit.master || (unit.is_split() && !rests) ? unit.value : unit.master, range);
}

// Returns the transfers that make up a block, in the order of parts. Their senders differ from the writer only in the
// mesh axes that slice or shard the piece.
std::vector<BlockGather::Transfer> BlockGather::transfers(const SavedBlock& b, int writer) const {
  const ParamStore::Unit& unit = unit_of(b);
  const Placement& placed = placement(b.piece);
  const int64_t per_value = elements_of_value(b.state), share = unit.layout.numel / unit.shards;
  const int of_writer = grid_.index(writer, placed.cuts), own = grid_.index(writer, placed.shards);
  const bool is_shard = b.state >= 0 ? params_.sharded() : unit.master && unit.is_shard(unit.master);
  const std::vector<Part>& parts = parts_[b.piece];
  std::vector<Transfer> all;
  int64_t at = 0;
  for (int t = 0; t < int(parts.size()); ++t) {
    if (parts[size_t(t)].first != t) continue;
    int64_t first = INT64_MAX, last = 0, count = 0;  // range and number of the part's elements in this block
    for_each_run(parts[size_t(t)].strips, b.begin * per_value, b.end * per_value,
                 [&](int64_t, int64_t part_at, int64_t length) {
                   first = std::min(first, part_at), last = std::max(last, part_at + length), count += length;
                 });
    if (count == 0) continue;
    CHECK(count == last - first, pieces_[b.piece].slice->name, ": values ", b.begin, " to ", b.end, " are ", count,
          " elements within ", last - first, " of a rank's part");
    const int has_part = grid_.with(writer, placed.cuts, parts[size_t(of_writer)].first == t ? of_writer : t);
    const int64_t begin = parts[size_t(t)].begin + first, end = begin + count;
    for (int64_t s = is_shard ? begin / share : own; s <= (is_shard ? (end - 1) / share : own); ++s) {
      const ParamStore::Range range =
          is_shard ? ParamStore::Range{std::max(begin, s * share), std::min(end, (s + 1) * share)}
                   : ParamStore::Range{begin, end};
      all.push_back({grid_.with(has_part, placed.shards, int(s)), range, at + range.begin - begin});
    }
    at += count;
  }
  CHECK(at == (b.end - b.begin) * per_value, pieces_[b.piece].slice->name, ": ranks have ", at, " elements of ",
        b.end - b.begin, " values");
  return all;
}

// Returns this rank's block as a view of its own memory, if it has the whole block in the order of the file.
Tensor BlockGather::in_place(const SavedBlock& b) const {
  if (has_sizes(b)) {
    const ParamStore::State& state = unit_of(b).states[size_t(b.state)];
    const int64_t first = state.first_of(b.piece);
    return state.t.slice(first + b.begin, first + b.end);
  }
  if (is_split(b) || is_cut_by_columns(b.piece)) return {};
  const std::vector<Transfer> all = transfers(b, rank_);
  return all.size() == 1 && all.front().from == rank_ ? view(b, all.front().range, false) : Tensor{};
}

// Sends this rank's data of blocks that other ranks write, and receives this rank's block, in the order of parts.
void BlockGather::exchange(std::span<const SavedBlock> wanted, const Tensor& to, bool rests) {
  std::vector<Tensor> out(wanted.size()), in(wanted.size());
  for (int w = 0; w < ranks_; ++w) {
    const SavedBlock& b = wanted[size_t(w)];
    if (b.empty() || has_sizes(b) || (rests && !is_split(b)) || (w == rank_ && !to)) continue;
    const int64_t per_value = elements_of_value(b.state);
    for (const Transfer& t : transfers(b, w)) {
      const int64_t at = t.at / per_value, count = (t.range.end - t.range.begin) / per_value;
      if (t.from == rank_ && w == rank_) {
        const Tensor mine = view(b, t.range, rests);
        c_.device.copy(to.at(at), mine.data, mine.bytes(), Stream::compute);
      } else if (t.from == rank_) {
        out[size_t(w)] = sendable(bytes_of(view(b, t.range, rests)), w);
      } else if (w == rank_) {
        in[size_t(t.from)] = bytes_of(to.slice(at, at + count));
      }
    }
  }
  if (elsewhere_) c_.mesh.weights().all_to_all(out, in, Stream::compute);
}

// Returns the bytes for rank w, copied to device memory if they may be in host memory.
Tensor BlockGather::sendable(const Tensor& bytes, int w) {
  if (!sent_) return bytes;
  const int64_t each = sent_.t.numel() / ranks_;
  const Tensor copy = sent_.t.slice(w * each, w * each + bytes.numel());
  c_.device.copy(copy.data, bytes.data, bytes.bytes(), Stream::compute);
  return copy;
}

Tensor BlockGather::next(std::span<const SavedBlock> wanted) {
  CHECK(int(wanted.size()) == ranks_, wanted.size(), " blocks for ", ranks_, " ranks");
  const CollectiveSubject subject("a checkpoint");
  const SavedBlock& mine = wanted[size_t(rank_)];
  const Tensor direct = mine.empty() ? Tensor{} : in_place(mine);
  const bool gathers = !mine.empty() && !direct, split = gathers && is_split(mine);
  const int64_t n = mine.end - mine.begin;
  const auto as = [n](const Buffer& buffer, DType type, size_t offset = 0) {
    return Tensor{buffer.t.at(int64_t(offset)), type, {n}};
  };
  const bool columns = gathers && is_cut_by_columns(mine.piece);
  Tensor parts;  // the block's parts, not yet in the order of the file
  if (gathers) parts = as(columns ? parts_of_block_ : block_, dtype(mine.piece, mine.state));
  Tensor values = parts, rests;
  if (split) values = as(halves_, DType::bf16), rests = as(halves_, DType::i16, halves_.t.bytes() / 2);
  exchange(wanted, values, false);
  if (params_.split()) exchange(wanted, rests, true);
  if (split) c_.run(JoinMaster{.master = parts, .param = values, .rest = rests});
  return columns ? in_order(mine, parts) : gathers ? parts : direct;
}

// Copies column slices to their places within whole rows of the block.
Tensor BlockGather::in_order(const SavedBlock& b, const Tensor& parts) {
  const Tensor block{block_.t.data, parts.dtype, parts.shape};
  int64_t at = 0;
  for (size_t t = 0; t < parts_[b.piece].size(); ++t) {
    const Part& part = parts_[b.piece][t];
    if (part.first != int(t)) continue;
    int64_t count = 0;
    for (const Strips& s : part.strips) {
      const int64_t rows = (b.end - b.begin) / s.step;
      const Shape shape{rows, s.length};
      c_.run(Combine{.y = {block.at(s.at), block.dtype, shape, s.step},
                     .a = {parts.at(at + s.part_at), block.dtype, shape, s.part_step}});
      count += rows * s.length;
    }
    at += count;
  }
  return block;
}

}  // namespace athanor
