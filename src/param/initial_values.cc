// Initial values of parameters: each element is a function of the seed, the tensor's name in files and the element's
// index in that tensor.
#include <algorithm>

#include "base/rng.h"
#include "ops/ops.h"
#include "param/nf4.h"
#include "param/param_store.h"
#include "param/state_stream.h"

namespace athanor {
namespace {

constexpr int64_t kInitChunk = int64_t{1} << 24;  // split masters: max elements that are f32 at a time

}  // namespace

void ParamStore::init(Ctx& c, uint64_t seed, Init which) {
  const auto init_within = [&](const Piece& piece, Range within) {
    const ParamSpec& spec = specs_[size_t(piece.param)];
    if (spec.frozen && which == Init::trained) return;
    const RandomNormal values{
        .seed = seed, .stream = stream_of(piece.slice->name), .mean = spec.init_mean, .std = spec.init_std};
    has_record(piece) ? init_record(c, piece, values) : init_piece(c, piece, values, within);
  };
  std::vector<std::vector<Piece>> by_unit(units_.size());
  for (const Piece& piece : pieces())
    if (here(size_t(piece.unit))) by_unit[size_t(piece.unit)].push_back(piece);
  stream_states(c, *this, state_stretches(*this, {.masters = true, .values = true}), [&](const StateStretch& s) {
    for (const Piece& piece : by_unit[s.unit]) init_within(piece, s.range);
  });
  refresh_values(c);
}

// Initializes this rank's elements of the tensor. Each value depends on its index in the full tensor, so sharding does
// not change it.
void ParamStore::init_piece(Ctx& c, const Piece& piece, RandomNormal values, Range within) {
  const Unit& unit = *units_[size_t(piece.unit)];
  const Tensor& flat = unit.master ? unit.master : unit.value;
  const auto fill = [&](const Tensor& x, Range range) {  // range: elements of the unit
    for_each_run(piece.part->strips, 0, piece.slice->shape.numel(), [&](int64_t at, int64_t part_at, int64_t length) {
      const int64_t start = piece.offset + part_at;
      const int64_t begin = std::max(start, range.begin), end = std::min(start + length, range.end);
      if (begin >= end) return;
      values.first = uint64_t(at + begin - start);
      values.x = x.slice(begin - range.begin, end - range.begin);
      c.run(values);
    });
  };
  const int64_t end = piece.offset + piece.part->numel;
  Range range = unit.is_shard(flat) ? unit.owned(piece.offset, end) : Range{piece.offset, end};
  range = {std::max(range.begin, within.begin), std::min(range.end, within.end)};
  if (range.begin >= range.end) return;
  if (!unit.is_split()) return fill(unit.master ? unit.masters_on_device(range) : unit.values_on_device(range), range);
  for (; range.begin < range.end; range.begin += kInitChunk) {
    const Range chunk{range.begin, std::min(range.begin + kInitChunk, range.end)};
    const Buffer masters = c.alloc("initial masters", DType::f32, {chunk.end - chunk.begin});
    fill(masters.t, chunk);
    c.run(
        SplitMaster{.param = unit.values_on_device(chunk), .rest = unit.masters_on_device(chunk), .master = masters.t});
  }
}

// Initializes with the same values as unquantized parameters, and quantizes them on the host.
void ParamStore::init_record(Ctx& c, const Piece& piece, const RandomNormal& values) const {
  constexpr int64_t kTogether = 1 << 16;
  CHECK(!is_int8(piece), piece.slice->name, " in int8 is for weights that are loaded");
  if (c.arena.recording() || !here(size_t(piece.unit)) || piece.part->numel == 0) return;
  const int64_t n = piece.slice->shape.numel();
  Nf4Quantizer quantizer(n, record_of(piece).nested);
  std::vector<float> some;
  for (int64_t at = 0; at < n; at += kTogether) {
    some.resize(size_t(std::min(kTogether, n - at)));
    for (size_t i = 0; i < some.size(); ++i)
      some[i] = values.mean + values.std * random_normal(values.seed, values.stream, uint64_t(at) + i);
    quantizer.add(some);
  }
  set_record(c.device, piece, quantizer.finish());
}

}  // namespace athanor
