// Weights that are stored in another form than GEMMs read. Frozen weights: one byte record per tensor of the file
// (param/nf4.h), sharded like values. Trained weights: GEMMs read two of every four values (2:4 sparsity).
#include <algorithm>
#include <cmath>
#include <map>

#include "base/int.h"
#include "ops/int8_gemm.h"
#include "param/param_store.h"

namespace athanor {
namespace {

// Returns the byte offset of the scales from the start of an int8 parameter.
int64_t int8_scales_at(const ParamSpec& spec) { return round_up<int64_t>(spec.shape.numel(), 64); }

}  // namespace

void ParamStore::use_together(int unit, int added) {
  int last = unit;
  while (units_[size_t(last)]->next_together >= 0) last = units_[size_t(last)]->next_together;
  units_[size_t(last)]->next_together = added;
}

bool ParamStore::is_added(int unit) const {
  return std::ranges::any_of(units_, [&](const auto& each) { return each->next_together == unit; });
}

// A unit whose parameters all change their form is not split.
void ParamStore::store_as(StoredAs form, const std::vector<Param>& params) {
  std::map<int, std::vector<int>> by_unit;
  for (const Param p : params) {
    CHECK(spec(p).frozen, spec(p).name, " is trained, and only frozen weights are stored in another form");
    specs_[size_t(p.id)].stored = form;
    by_unit[spec(p).unit].push_back(p.id);
  }
  for (const auto& entry : by_unit) {
    const int u = entry.first;
    const std::vector<int>& ids = entry.second;
    if (ids.size() == units_[size_t(u)]->params.size()) continue;
    const int to = int(units_.size());
    units_.push_back(std::make_unique<Unit>());
    units_.back()->params = ids;
    std::erase_if(units_[size_t(u)]->params, [&](int id) { return std::ranges::find(ids, id) != ids.end(); });
    for (const int id : ids) specs_[size_t(id)].unit = to;
    use_together(u, to);
  }
}

Nf4Record ParamStore::record_of(const ParamSpec& spec, size_t slice) const {
  return {spec.slices[slice].shape.numel(), spec.stored == StoredAs::nf4_nested};
}
Nf4Record ParamStore::record_of(const Piece& piece) const {
  return {piece.slice->shape.numel(), specs_[size_t(piece.param)].stored == StoredAs::nf4_nested};
}

// Returns the byte offset from the start of the parameter; after the last slice, the size of all records. This rank has
// no records of experts of other ranks.
int64_t ParamStore::record_offset(int id, size_t slice) const {
  const ParamSpec& spec = specs_[size_t(id)];
  if (is_int8(spec.stored)) return spec.slices[slice].offset;
  int64_t at = 0;
  for (size_t s = 0; s < slice; ++s)
    if (placements_.empty() || placements_[size_t(id)].slices[s].numel > 0) at += record_of(spec, s).bytes;
  return at;
}

Shape ParamStore::stored_shape(int id) const {
  const ParamSpec& spec = specs_[size_t(id)];
  const Placement& placement = placements_[size_t(id)];
  if (spec.stored == StoredAs::values) return placement.shape;
  for (size_t s = 0; s < spec.slices.size(); ++s)
    CHECK(placement.slices[s].numel == 0 || placement.slices[s].numel == spec.slices[s].shape.numel(), spec.name,
          " is cut over ranks, and a record is not");
  if (is_int8(spec.stored)) return {int8_scales_at(spec) + spec.shape[spec.in_out ? 1 : 0] * int64_t(sizeof(float))};
  return {record_offset(id, spec.slices.size())};
}

Buffer ParamStore::gemm_value(Ctx& c, Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  Buffer values;
  if (spec.stored == StoredAs::values) {
    if (!spec.two_of_four.empty()) return sparse_value(c, p);
    values.t = value(p);
    return values;
  }
  const Unit& unit = *units_[size_t(spec.unit)];
  const Tensor& stored = unit.gathered ? unit.gathered.t : unit.value;
  CHECK(unit.gathered || (unit.home == Mem::device && !unit.is_shard(stored)), spec.name,
        " is read outside of use() and done() of its unit");
  const Placement& mine = placement(p);
  values = c.alloc("weights of NF4", mine.shape);
  const Tensor flat = values.t.view({values.t.numel()});
  int64_t at = offsets_[size_t(p.id)];
  for (size_t s = 0; s < spec.slices.size(); ++s) {
    const Placement::Slice& slice = mine.slices[s];
    if (slice.numel == 0) continue;  // an expert of another rank
    const Nf4Record record = record_of(spec, s);
    c.run(record.dequantize(stored.at(at), flat.slice(slice.offset, slice.offset + slice.numel)));
    at += record.bytes;
  }
  return values;
}

void ParamStore::read_two_of_four(Param p, size_t slice) {
  ParamSpec& s = specs_[size_t(p.id)];
  s.two_of_four.resize(s.slices.size());
  s.two_of_four[slice] = true;
}

Buffer ParamStore::sparse_value(Ctx& c, Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  CHECK(!placement(p).is_cut(), spec.name, " is cut over ranks, and so may be a group of four weights");
  const Tensor dense = value(p);
  Buffer values = c.alloc("2:4 weights", dense.dtype, dense.shape);
  for (size_t s = 0; s < spec.slices.size(); ++s) {
    const int64_t begin = spec.slices[s].offset, end = begin + spec.slices[s].shape.numel();
    const Tensor y = values.t.view({dense.numel()}).slice(begin, end),
                 x = dense.view({dense.numel()}).slice(begin, end);
    if (spec.two_of_four[s])
      c.run(KeepTwoOfFour{.y = y, .x = x});
    else
      c.run(Cast{.y = y, .x = x});
  }
  return values;
}

void ParamStore::set_record(Device& device, const Piece& piece, std::span<const std::byte> record) const {
  const Unit& unit = *units_[size_t(piece.unit)];
  const auto end = piece.offset + int64_t(record.size());
  const Range held = unit.is_shard(unit.value) ? unit.owned(piece.offset, end) : Range{piece.offset, end};
  if (held.begin >= held.end) return;
  const Tensor to = unit.part(unit.value, held);
  device.copy(to.data, record.data() + (held.begin - piece.offset), to.bytes(), Stream::compute);
  device.sync();
}

std::optional<ParamStore::Int8Weight> ParamStore::int8_weight(Param p) const {
  const ParamSpec& spec = specs_[size_t(p.id)];
  if (!is_int8(spec.stored)) return std::nullopt;
  const Unit& unit = *units_[size_t(spec.unit)];
  const int64_t at = offsets_[size_t(p.id)], n = spec.shape[spec.in_out ? 1 : 0];
  return Int8Weight{.quantized = {unit.value.at(at), DType::u8, {n, spec.shape.numel() / n}},
                    .scales = {unit.value.at(at + int8_scales_at(spec)), DType::f32, {n}},
                    .outlier = spec.stored == StoredAs::int8_outliers ? kLlmInt8Threshold : 0};
}

void ParamStore::set_int8(Device& device, const Piece& piece, std::span<const float> values) const {
  const ParamSpec& spec = specs_[size_t(piece.param)];
  const Unit& unit = *units_[size_t(piece.unit)];
  CHECK(!unit.is_shard(unit.value) && (!spec.in_out || spec.slices.size() == 1), spec.name,
        " is shared by ranks, or has parts side by side");
  const Shape& shape = piece.slice->shape;
  const int64_t outputs = shape[spec.in_out ? 1 : 0], inputs = shape.numel() / outputs;
  std::vector<uint8_t> quantized(values.size());
  std::vector<float> scales(outputs);
  for (int64_t j = 0; j < outputs; ++j) {
    const auto value = [&](int64_t k) { return values[size_t(spec.in_out ? k * outputs + j : j * inputs + k)]; };
    float amax = 0;
    for (int64_t k = 0; k < inputs; ++k) amax = std::max(amax, std::fabs(value(k)));
    const float inverse = int8_inverse(amax);
    for (int64_t k = 0; k < inputs; ++k)
      quantized[size_t(j * inputs + k)] = uint8_t(int(int8_code(value(k), inverse)) + kInt8Offset);
    scales[size_t(j)] = amax / kInt8Most;
  }
  device.copy(unit.value.at(piece.offset), quantized.data(), quantized.size(), Stream::compute);
  const int64_t row = piece.slice->offset / inputs;
  device.copy(unit.value.at(offsets_[size_t(piece.param)] + int8_scales_at(spec) + row * int64_t(sizeof(float))),
              scales.data(), scales.size() * sizeof(float), Stream::compute);
  device.sync();
}

}  // namespace athanor
