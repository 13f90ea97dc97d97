#include "engine/pruned_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "config/config.h"
#include "param/state_stream.h"
#include "tensor/half.h"

namespace athanor {
namespace {

constexpr int64_t kGroup = 4, kKept = 2;  // 2:4 pattern: 2 of 4 weights are kept
constexpr int64_t kBuckets = 1 << 16;  // a 32-bit magnitude is searched by its upper 16 bits, then by its lower 16 bits

// Magnitudes as integers that compare like the floats.
using Magnitudes = std::vector<uint32_t>;

template <class T>
std::vector<T> read(Device& device, const Tensor& t) {
  std::vector<T> out(t.bytes() / sizeof(T));
  device.copy(out.data(), t.data, t.bytes(), Stream::compute);
  device.sync();
  return out;
}

std::vector<float> masters(Device& device, const ParamStore::Unit& unit, ParamStore::Range range) {
  const Tensor master = unit.part(unit.master, range);
  std::vector<float> out;
  if (!unit.is_split()) {
    by_float(master.dtype, [&]<class T>() {
      for (const T x : read<T>(device, master)) out.push_back(to_float(x));
    });
    return out;
  }
  const auto rests = read<int16_t>(device, master);
  const auto upper = read<bf16>(device, unit.part(unit.value, range));
  for (size_t i = 0; i < rests.size(); ++i) out.push_back(joined(upper[i], rests[i]));
  return out;
}

Magnitudes magnitudes(Device& device, const ParamStore::Unit& unit, ParamStore::Range range) {
  Magnitudes out;
  for (const float x : masters(device, unit, range)) out.push_back(std::bit_cast<uint32_t>(std::abs(x)));
  return out;
}

void write(Device& device, const Tensor& to, const std::vector<uint8_t>& mask) {
  device.copy(to.data, mask.data(), to.bytes(), Stream::compute);
  device.sync();
}

void sum_over_ranks(Communicator* control, std::vector<int64_t>& counts) {
  if (control) control->all_reduce({counts.data(), DType::i64, {int64_t(counts.size())}}, Reduce::sum, Stream::compute);
}

// Returns the first bucket at which the cumulative count exceeds `wanted`; subtracts the counts of lower buckets from
// `wanted`.
int64_t bucket_of(const int64_t* counts, int64_t& wanted) {
  int64_t bucket = 0;
  while (bucket + 1 < kBuckets && counts[bucket] <= wanted) wanted -= counts[bucket++];
  return bucket;
}

}  // namespace

std::vector<bool> pruned_pieces(const ParamStore& params, const PruningOptions& options) {
  const bool groups = options.pattern == PrunePattern::two_of_four;
  std::vector<bool> pruned;
  std::vector<std::string> matrices;
  for (const ParamStore::Piece& piece : params.pieces()) {
    const ParamSpec& spec = params.spec({piece.param});
    const bool matrix = spec.role == Role::matrix && spec.trainable;
    if (matrix) matrices.push_back(piece.slice->name);
    pruned.push_back(matrix && !matches_any(options.exclude, piece.slice->name));
    if (pruned.back() && groups && (spec.in_out || piece.slice->shape[1] % kGroup != 0))
      throw Error(cat("pruning.pattern: 2:4 needs groups of ", kGroup, " neighbouring inputs of an output, and ",
                      piece.slice->name, " ", piece.slice->shape,
                      spec.in_out ? " stores neighbouring outputs next to each other (model_type gpt2)"
                                  : " has a number of inputs that is no multiple of that",
                      "; set it to unstructured, or name the matrix in pruning.exclude"),
                  Exit::usage);
  }
  for (const std::string& pattern : options.exclude)
    if (std::ranges::none_of(matrices, [&](const std::string& name) { return matches_any({pattern}, name); }))
      throw Error(cat("pruning.exclude: \"", pattern, "\" matches no matrix that is pruned, such as ",
                      "model.layers.0.mlp.down_proj.weight"),
                  Exit::usage);
  if (std::ranges::count(pruned, true) == 0)
    throw Error("pruning.exclude: leaves no matrix to prune; exclude fewer, or set pruning.sparsity to 0", Exit::usage);
  return pruned;
}

PrunedWeights::PrunedWeights(ParamStore& params, PruningOptions options)
    : params_(params), options_(std::move(options)), pieces_(pruned_pieces(params, options_)) {
  const std::vector<ParamStore::Piece> pieces = params_.pieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!pieces_[i]) continue;
    const bool all = options_.scope == PruneScope::global && !sizes_.empty();
    if (!all) sizes_.push_back(0);
    sizes_.back() += pieces[i].slice->shape.numel();
    group_of_.push_back(sizes_.size() - 1);
  }
}

StateSpec PrunedWeights::state() const { return {.name = kPrunedState, .dtype = DType::u8, .pieces = pieces_}; }

void PrunedWeights::planned() {
  const auto& states = params_.state_specs();
  const auto at = std::ranges::find(states, kPrunedState, &StateSpec::name);
  CHECK(at != states.end(), "the mask of pruned weights was not planned");
  state_ = size_t(at - states.begin());
  for (size_t i = 0; i < states.size(); ++i)
    if (states[i].name == kEmaState || states[i].name == kAverageMinusWeightState) averages_.push_back(i);
}

// Returns segments in the order of pieces, and of elements within a piece.
std::vector<PrunedWeights::Segment> PrunedWeights::segments(const ProcessMesh& mesh) const {
  std::vector<Segment> all;
  const std::vector<ParamStore::Piece> pieces = params_.pieces();
  size_t number = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!pieces_[i]) continue;
    const auto unit = size_t(pieces[i].unit);
    const ParamStore::Unit& of = *params_.units()[unit];
    // The padding after a piece does not belong to it.
    const ParamStore::Range mine = of.owned(pieces[i].offset, pieces[i].offset + pieces[i].slice->shape.numel());
    const Placement& p = params_.placement({pieces[i].param});
    const bool counts = mesh.is_first_except(p.cuts | p.shards | p.stages);
    if (mine.begin < mine.end)
      all.push_back({unit, number, group_of_[number], counts, mine, of.states[state_].part(mine)});
    ++number;
  }
  return all;
}

// An average contains the weight's values from before it was pruned, so it is masked, too.
void PrunedWeights::apply(Ctx& c) const {
  std::vector<size_t> states = averages_;
  states.push_back(state_);
  stream_states(c, params_, state_stretches(params_, {.masters = true, .states = states}), [&](const StateStretch& s) {
    const ParamStore::Unit& unit = *params_.units()[s.unit];
    const ParamStore::State& state = unit.states[state_];
    for (const ParamStore::Range& range : state.within(s.range)) {
      const Tensor mask = state.on_device(range);
      c.run(MaskedFill{.x = unit.masters_on_device(range), .mask = mask});
      if (unit.value) c.run(MaskedFill{.x = unit.part(unit.value, range), .mask = mask});
      for (const size_t average : averages_)
        for (const ParamStore::Range& part : unit.states[average].within(range))
          c.run(MaskedFill{.x = unit.states[average].on_device(part), .mask = state.on_device(part)});
    }
  });
}

std::vector<PrunedMatrix> PrunedWeights::matrices(Device& device, const ProcessMesh& mesh,
                                                  Communicator* control) const {
  std::vector<int64_t> zeros(group_of_.size());
  for (const Segment& s : segments(mesh))
    if (s.counts) zeros[s.piece] += std::ranges::count(read<uint8_t>(device, s.mask), 1);
  sum_over_ranks(control, zeros);
  std::vector<PrunedMatrix> all;
  const std::vector<ParamStore::Piece> pieces = params_.pieces();
  for (size_t i = 0; i < pieces.size(); ++i)
    if (pieces_[i]) all.push_back({pieces[i].slice->name, pieces[i].slice->shape.numel(), zeros[all.size()]});
  return all;
}

void PrunedWeights::choose(Device& device, const ProcessMesh& mesh, Communicator* control, double sparsity) const {
  if (options_.pattern == PrunePattern::two_of_four)
    choose_two_of_four(device, mesh);
  else
    choose_smallest(device, mesh, control, sparsity);
}

// Prunes the two smallest of every four elements; of equal elements the first ones.
void PrunedWeights::choose_two_of_four(Device& device, const ProcessMesh& mesh) const {
  for (const Segment& s : segments(mesh)) {
    const Magnitudes x = magnitudes(device, *params_.units()[s.unit], s.range);
    CHECK(x.size() % kGroup == 0, "a shard divides a group of ", kGroup, " weights");
    std::vector<uint8_t> mask(x.size());
    for (size_t at = 0; at < x.size(); at += kGroup) {
      std::array<size_t, kGroup> order;
      std::iota(order.begin(), order.end(), at);
      std::ranges::stable_sort(order, {}, [&](size_t i) { return x[i]; });
      for (size_t i = 0; i < size_t(kGroup - kKept); ++i) mask[order[i]] = 1;
    }
    write(device, s.mask, mask);
  }
}

// The threshold of a group is its k-th smallest magnitude, found by counting over all ranks; only one replica of a
// shard counts. Among elements equal to the threshold the first ones in the order of the files are pruned.
void PrunedWeights::choose_smallest(Device& device, const ProcessMesh& mesh, Communicator* control,
                                    double sparsity) const {
  const std::vector<Segment> mine = segments(mesh);
  const size_t groups = sizes_.size();
  std::vector<Magnitudes> all;
  for (const Segment& s : mine) all.push_back(magnitudes(device, *params_.units()[s.unit], s.range));
  const auto for_each_counted = [&](const auto& fn) {
    for (size_t i = 0; i < mine.size(); ++i)
      if (mine[i].counts)
        for (const uint32_t x : all[i]) fn(mine[i].group, x);
  };
  std::vector<int64_t> wanted, counts(groups * kBuckets);
  for (const int64_t size : sizes_) wanted.push_back(std::llround(sparsity * double(size)));
  std::vector<uint32_t> threshold(groups);
  for_each_counted([&](size_t g, uint32_t x) { ++counts[g * kBuckets + (x >> 16)]; });
  sum_over_ranks(control, counts);
  for (size_t g = 0; g < groups; ++g) threshold[g] = uint32_t(bucket_of(&counts[g * kBuckets], wanted[g])) << 16;
  std::ranges::fill(counts, 0);
  for_each_counted([&](size_t g, uint32_t x) {
    if (x >> 16 == threshold[g] >> 16) ++counts[g * kBuckets + (x & 0xffff)];
  });
  sum_over_ranks(control, counts);
  for (size_t g = 0; g < groups; ++g) threshold[g] |= uint32_t(bucket_of(&counts[g * kBuckets], wanted[g]));
  const bool sharded = params_.placement({params_.pieces().front().param}).is_sharded();
  const auto shards = size_t(sharded ? mesh.shards().size() : 1), shard = size_t(sharded ? mesh.shards().rank() : 0);
  std::vector<int64_t> equal(group_of_.size() * shards);  // [pieces, shards]
  for (size_t i = 0; i < mine.size(); ++i)
    if (mine[i].counts) equal[mine[i].piece * shards + shard] = std::ranges::count(all[i], threshold[mine[i].group]);
  sum_over_ranks(control, equal);
  std::vector<int64_t> of_piece(group_of_.size());  // elements equal to the threshold that this rank and later ones
                                                    // still have to prune, for each piece
  for (size_t piece = 0; piece < of_piece.size(); ++piece)
    for (size_t s = 0; s < shards; ++s) {
      if (s == shard) of_piece[piece] = wanted[group_of_[piece]];
      wanted[group_of_[piece]] -= equal[piece * shards + s];
    }
  for (size_t i = 0; i < mine.size(); ++i) {
    const uint32_t limit = threshold[mine[i].group];
    int64_t& left = of_piece[mine[i].piece];
    std::vector<uint8_t> mask;
    for (const uint32_t x : all[i]) mask.push_back(x < limit || (x == limit && left-- > 0) ? 1 : 0);
    write(device, mine[i].mask, mask);
  }
}

}  // namespace athanor
