#include "param/placement.h"

#include <numeric>

#include "base/int.h"
#include "param/cut.h"

namespace athanor {
namespace {

Placement::Slice whole_slice(const HfSlice& slice) {
  const int64_t n = slice.shape.numel();
  return {.offset = slice.offset, .numel = n, .strips = {{.length = n}}};
}

// Returns the part of a tensor that is sliced by rows: the rows of `ranges` of the parameter that belong to the tensor.
Placement::Slice some_rows(const HfSlice& slice, const std::vector<AxisRange>& ranges, int64_t row) {
  const int64_t first = slice.offset / row, end = first + slice.shape[0];
  Placement::Slice part;
  for (const AxisRange& r : ranges) {
    const int64_t from = std::max(r.begin, first), to = std::min(r.end, end);
    if (from >= to) continue;
    part.strips.push_back({.length = (to - from) * row, .at = (from - first) * row, .part_at = part.numel});
    part.numel += (to - from) * row;
  }
  return part;
}

Placement::Slice some_columns(const HfSlice& slice, const std::vector<AxisRange>& ranges, int64_t columns) {
  const int64_t rows = slice.shape[0], width = slice.shape[1];
  Placement::Slice part{.offset = 0, .numel = rows * columns, .strips = {}};
  int64_t at = 0;
  for (const AxisRange& r : ranges) {
    part.strips.push_back(
        {.count = rows, .length = r.end - r.begin, .at = r.begin, .step = width, .part_at = at, .part_step = columns});
    at += r.end - r.begin;
  }
  return part;
}

// Gives each rank the same number of whole experts.
void cut_experts(const ParamSpec& spec, const ExpertRank& experts, Placement& p) {
  CHECK(spec.experts % experts.ranks == 0, spec.name, ": ", spec.experts, " experts on ", experts.ranks,
        " ranks, not equal");
  p.cuts = {Axis::ep};
  p.sums = p.sums - p.cuts;
  p.shards = p.shards - p.cuts;
  const int64_t rows = spec.shape[0] / experts.ranks, row = spec.shape.numel() / spec.shape[0];
  p.shape.dim[0] = rows;
  const std::vector<AxisRange> own{{rows * experts.rank, rows * (experts.rank + 1)}};
  int64_t offset = 0;
  for (const HfSlice& slice : spec.slices) {
    p.slices.push_back(some_rows(slice, own, row));
    p.slices.back().offset = offset;
    offset += p.slices.back().numel;
  }
}

}  // namespace

Placement place(const ParamSpec& spec, const TensorRank& tensor, int zero_stage, bool on_one_stage,
                const ExpertRank& experts) {
  Placement p{.shape = spec.shape, .slices = {}, .cuts = {}, .shards = {}, .sums = kDataParallel, .stages = {}};
  if (on_one_stage) p.stages = {Axis::pp};
  if (zero_stage > 0) p.shards = {Axis::dp_shard, Axis::ep, Axis::cp};
  if (tensor.ranks == 1 || spec.cut.axis < 0) {
    const bool of_rows = spec.partial == PartialGradient::of_rows && tensor.sequence_parallel;
    if (tensor.ranks > 1 && (of_rows || spec.partial == PartialGradient::of_heads)) p.sums = p.sums | Axes{Axis::tp};
    if (experts.ranks > 1 && spec.experts > 1)
      cut_experts(spec, experts, p);
    else
      for (const HfSlice& slice : spec.slices) p.slices.push_back(whole_slice(slice));
    return p;
  }
  p.cuts = {Axis::tp};
  const std::vector<AxisRange> ranges = cut(spec, tensor.ranks, tensor.rank);
  int64_t& dimension = p.shape.dim[spec.cut.axis];
  const int64_t row = spec.shape.numel() / spec.shape[0];
  dimension = spec.cut.padded_to > 0
                  ? round_up(div_ceil(spec.cut.parts.at(0), int64_t(tensor.ranks)), spec.cut.padded_to)
                  : std::accumulate(ranges.begin(), ranges.end(), int64_t{0},
                                    [](int64_t sum, const AxisRange& r) { return sum + r.end - r.begin; });
  for (const AxisRange& r : ranges) {
    if (r.ranks > 1) p.repeats = r.ranks;
    if (r.ranks == 1) p.repeated_from += r.end - r.begin;
  }
  p.repeated_from *= row;
  CHECK(p.repeats == 1 || spec.cut.axis == 0, spec.name, ": repeated pieces are rows");
  int64_t offset = 0;
  for (const HfSlice& slice : spec.slices) {
    p.slices.push_back(spec.cut.axis == 0 ? some_rows(slice, ranges, row) : some_columns(slice, ranges, dimension));
    p.slices.back().offset = offset;
    offset += p.slices.back().numel;
  }
  CHECK(spec.cut.padded_to > 0 ? offset <= p.shape.numel() : offset == p.shape.numel(), spec.name, ": parts of ",
        offset, " elements make no ", p.shape);
  return p;
}

Placement place_part(const ParamSpec& spec, const Placement& mine, int parts, int part) {
  const bool of_experts = mine.cuts.has(Axis::ep);
  return place(spec, of_experts ? TensorRank{} : TensorRank{parts, part}, 0, false,
               of_experts ? ExpertRank{parts, part} : ExpertRank{});
}

}  // namespace athanor
