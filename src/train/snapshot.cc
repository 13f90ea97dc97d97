#include "train/snapshot.h"

#include <nlohmann/json.hpp>

#include "checkpoint/weights.h"
#include "convert/floats.h"

namespace athanor {
namespace {

constexpr int64_t kMaxStateBytes = 1 << 20;

// The part of [begin, end) that this rank has in a tensor of a unit.
ParamStore::Range held(const ParamStore::Unit& unit, const Tensor& flat, int64_t begin, int64_t end) {
  return unit.is_shard(flat) ? unit.owned(begin, end) : ParamStore::Range{begin, end};
}

void load_part(Device& device, const ParamStore::Unit& unit, const Tensor& flat, ParamStore::Range range,
               const void* from) {
  const Tensor to = unit.part(flat, range);
  device.copy(to.data, from, to.bytes(), Lane::compute);
  device.sync();
}

// Masters in two halves.
void load_split(Device& device, const ParamStore::Unit& unit, ParamStore::Range range, const float* from) {
  std::vector<bf16> weights;
  std::vector<int16_t> rests;
  for (int64_t i = 0; i < range.end - range.begin; ++i) {
    const float x = settled(from[i]);
    weights.push_back(from_float<bf16>(x));
    rests.push_back(rest_of(x));
  }
  load_part(device, unit, unit.value, range, weights.data());
  load_part(device, unit, unit.master, range, rests.data());
}

// Elements from `begin` on of a tensor of a unit, of which this rank takes what it holds; floats of another dtype are
// converted.
void load_elements(Device& device, const ParamStore::Unit& unit, const Tensor& flat, int64_t begin,
                   std::span<const std::byte> bytes, DType dtype, const std::string& name) {
  const ParamStore::Range range = held(unit, flat, begin, begin + int64_t(bytes.size() / size_of(dtype)));
  if (range.begin == range.end) return;
  const auto skip = size_t(range.begin - begin);
  if (dtype == flat.dtype) return load_part(device, unit, flat, range, bytes.data() + skip * size_of(dtype));
  std::vector<float> values;
  to_floats(bytes, dtype, values);
  if (flat.dtype == DType::i16) return load_split(device, unit, range, values.data() + skip);
  std::vector<std::byte> converted;
  from_floats(values, flat.dtype, name, converted);
  load_part(device, unit, flat, range, converted.data() + skip * size_of(flat.dtype));
}

void require_shape(const std::string& where, const std::string& name, const Shape& has, const Shape& needed) {
  if (has != needed)
    throw Error(cat(where, ": tensor ", name, " has shape ", has, ", the model needs ", needed,
                    ": the folder is of another model"));
}

// Reads what this rank holds of a piece into device memory, converting floats where dtypes differ.
void load_piece(Device& device, const WeightFiles& files, const std::string& name, const ParamStore::Unit& unit,
                const ParamStore::Piece& piece, const Tensor& flat) {
  const Shape& shape = piece.slice->shape;
  const auto [file, entry] = files.at(name);
  require_shape(file->path(), name, entry->checked_shape(), shape);
  const ParamStore::Range range = held(unit, flat, piece.offset, piece.offset + shape.numel());
  if (range.begin == range.end) return;
  std::vector<std::byte> bytes(size_t(entry->bytes));
  file->read(*entry, bytes);
  load_elements(device, unit, flat, piece.offset, bytes, entry->checked_dtype(), name);
}

}  // namespace

std::string state_json(const RunState& s) {
  const StepState& d = s.device;
  const nlohmann::ordered_json j = {{"step", s.step},
                                    {"consumed_samples", s.consumed_samples},
                                    {"nan_steps", s.nan_steps},
                                    {"micro_batch_size", s.micro_batch_size},
                                    {"optimizer_steps", d.updates},
                                    {"skipped_steps", d.skipped},
                                    {"skipped_in_row", d.skipped_in_row},
                                    {"loss_scale", double(d.loss_scale)},
                                    {"good_steps", d.good_steps},
                                    {"hysteresis_left", d.hysteresis_left}};
  return j.dump(2) + "\n";
}

RunState parse_state(const std::string& text, const std::string& where) {
  try {
    const auto j = nlohmann::json::parse(text);
    RunState s;
    s.step = j.at("step").get<int64_t>();
    s.consumed_samples = j.at("consumed_samples").get<int64_t>();
    s.nan_steps = j.at("nan_steps").get<int64_t>();
    s.micro_batch_size = j.at("micro_batch_size").get<int64_t>();
    s.device.updates = j.at("optimizer_steps").get<int64_t>();
    s.device.skipped = j.at("skipped_steps").get<int64_t>();
    s.device.skipped_in_row = j.at("skipped_in_row").get<int64_t>();
    s.device.loss_scale = float(j.at("loss_scale").get<double>());
    s.device.good_steps = j.at("good_steps").get<int32_t>();
    s.device.hysteresis_left = j.at("hysteresis_left").get<int32_t>();
    if (s.step < 0 || s.consumed_samples < 0 || s.device.updates < 0 || s.micro_batch_size <= 0 ||
        !(s.device.loss_scale > 0))
      throw Error(cat(where, ": numbers out of range; the checkpoint is damaged"));
    return s;
  } catch (const nlohmann::json::exception& e) {
    throw Error(cat(where, ": not a run state: ", e.what(), "; the checkpoint is damaged"));
  }
}

void load_weights(const ParamStore& params, Device& device, const ModelFolder& folder) {
  for (const auto& piece : params.pieces()) {
    const ParamStore::Unit& unit = *params.units()[size_t(piece.unit)];
    const Tensor& flat = unit.master ? unit.master : unit.value;
    const ModelFolder::Weight& weight = folder.at(piece.slice->name);
    require_shape(folder.path(), weight.name, weight.shape, piece.slice->shape);
    int64_t at = piece.offset;
    folder.for_each_block(weight, [&](std::span<const std::byte> block) {
      load_elements(device, unit, flat, at, block, weight.dtype, weight.name);
      at += int64_t(block.size() / size_of(weight.dtype));
    });
  }
}

void load_weights(Engine& engine, Device& device, const ModelFolder& folder) {
  load_weights(engine.model().params(), device, folder);
  engine.refresh_values();
}

RunState load_checkpoint(Engine& engine, Device& device, const std::string& folder) {
  const ParamStore& params = engine.model().params();
  const WeightFiles weights(folder);
  for (const auto& piece : params.pieces()) {
    const ParamStore::Unit& unit = *params.units()[size_t(piece.unit)];
    load_piece(device, weights, piece.slice->name, unit, piece, unit.master ? unit.master : unit.value);
  }
  engine.refresh_values();
  const WeightFiles moments(folder, "optimizer");
  for (const auto& piece : params.pieces()) {
    const ParamStore::Unit& unit = *params.units()[size_t(piece.unit)];
    for (size_t s = 0; s < unit.states.size(); ++s)
      load_piece(device, moments, cat(params.state_specs()[s].name, ".", piece.slice->name), unit, piece,
                 unit.states[s]);
  }
  const RunState state = read_run_state(folder);
  engine.write_state(state.device);
  return state;
}

RunState read_run_state(const std::string& folder) {
  const std::string path = folder + "/state.json";
  return parse_state(read_file(path, kMaxStateBytes), path);
}

}  // namespace athanor
