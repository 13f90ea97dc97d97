#include "train/snapshot.h"

#include <nlohmann/json.hpp>

#include "checkpoint/weights.h"
#include "convert/floats.h"

namespace athanor {
namespace {

constexpr int64_t kMaxStateBytes = 1 << 20;

Tensor part(const Tensor& flat, int64_t offset, const Shape& shape) { return {flat.at(offset), flat.dtype, shape}; }

// Tensors as the writer wants them: in place where the host can read device memory, else copied.
class HostTensors {
 public:
  explicit HostTensors(Device& device) : device_(device) {}
  void add(const std::string& name, const Tensor& t) {
    Tensor host = t;
    if (!device_.unified()) {
      copies_.emplace_back(t.bytes());
      host.data = copies_.back().data();
      device_.copy(host.data, t.data, t.bytes(), Lane::copy);
    }
    tensors_.push_back({tensor_data(name, host), std::nullopt});
  }
  std::span<const CheckpointTensor> finish() {
    device_.sync();
    return tensors_;
  }

 private:
  Device& device_;
  std::vector<std::vector<std::byte>> copies_;
  std::vector<CheckpointTensor> tensors_;
};

// Reads a tensor of a file into device memory, converting floats where dtypes differ.
void load_tensor(Device& device, const WeightFiles& files, const std::string& name, const Tensor& to) {
  const auto [file, entry] = files.at(name);
  if (entry->checked_shape() != to.shape)
    throw Error(cat(file->path(), ": tensor ", name, " has shape ", entry->checked_shape(), ", the model needs ",
                    to.shape, ": the folder is of another model"));
  std::vector<std::byte> bytes(size_t(entry->bytes));
  file->read(*entry, bytes);
  if (entry->checked_dtype() != to.dtype) {
    std::vector<float> values;
    to_floats(bytes, entry->checked_dtype(), values);
    from_floats(values, to.dtype, name, bytes);
  }
  device.copy(to.data, bytes.data(), bytes.size(), Lane::compute);
  device.sync();
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

std::string save_checkpoint(const RunLock& lock, Engine& engine, Device& device, const RunState& state,
                            const SaveExtras& extras, CheckpointOptions options) {
  const ParamStore& params = engine.model().params();
  CheckpointWriter writer(lock, state.step, std::move(options));
  HostTensors weights(device), moments(device);
  for (const auto& piece : params.pieces()) {
    const ParamStore::Unit& unit = *params.units()[size_t(piece.unit)];
    weights.add(piece.slice->name, part(unit.master, piece.offset, piece.slice->shape));
    for (size_t s = 0; s < unit.states.size(); ++s)
      moments.add(cat(params.state_specs()[s].name, ".", piece.slice->name),
                  part(unit.states[s], piece.offset, piece.slice->shape));
  }
  writer.add_safetensors("model.safetensors", weights.finish());
  writer.add_safetensors("optimizer.safetensors", moments.finish());
  writer.add_text("config.json", extras.hf_config);
  writer.add_text("config.resolved.json", extras.resolved_config);
  writer.add_text("state.json", state_json(state));
  if (!extras.tuning.empty()) writer.add_text("tuning.json", extras.tuning);
  for (const auto& [name, content] : extras.tokenizer) writer.add_text(name, content);
  return writer.commit();
}

void load_weights(const ParamStore& params, Device& device, const std::string& folder) {
  const WeightFiles files(folder);
  for (const auto& piece : params.pieces()) {
    const ParamStore::Unit& unit = *params.units()[size_t(piece.unit)];
    load_tensor(device, files, piece.slice->name,
                part(unit.master ? unit.master : unit.value, piece.offset, piece.slice->shape));
  }
}

void load_weights(Engine& engine, Device& device, const std::string& folder) {
  load_weights(engine.model().params(), device, folder);
  engine.refresh_values();
}

void load_weights(Engine& engine, Device& device, const ModelFolder& folder) {
  std::vector<float> values;
  std::vector<std::byte> bytes;
  for (const auto& piece : engine.model().params().pieces()) {
    const ParamStore::Unit& unit = *engine.model().params().units()[size_t(piece.unit)];
    const Tensor& flat = unit.master ? unit.master : unit.value;
    const ModelFolder::Weight& weight = folder.at(piece.slice->name);
    int64_t at = piece.offset;
    folder.for_each_block(weight, [&](std::span<const std::byte> block) {
      to_floats(block, weight.dtype, values);
      from_floats(values, flat.dtype, weight.name, bytes);
      device.copy(flat.at(at), bytes.data(), bytes.size(), Lane::compute);
      device.sync();
      at += int64_t(values.size());
    });
  }
  engine.refresh_values();
}

RunState load_checkpoint(Engine& engine, Device& device, const std::string& folder) {
  load_weights(engine, device, folder);
  const WeightFiles moments(folder + "/optimizer.safetensors");
  const ParamStore& params = engine.model().params();
  for (const auto& piece : params.pieces()) {
    const ParamStore::Unit& unit = *params.units()[size_t(piece.unit)];
    for (size_t s = 0; s < unit.states.size(); ++s)
      load_tensor(device, moments, cat(params.state_specs()[s].name, ".", piece.slice->name),
                  part(unit.states[s], piece.offset, piece.slice->shape));
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
