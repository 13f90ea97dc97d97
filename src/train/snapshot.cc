#include "train/snapshot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "checkpoint/weights.h"
#include "convert/floats.h"
#include "engine/quantized_state.h"
#include "train/routing_report.h"
#include "train/saved_tensors.h"

namespace athanor {
namespace {

constexpr int64_t kMaxStateBytes = 16 << 20;

using Range = ParamStore::Range;

// Destination of a unit's elements: master weights or weights (flat), or an optimizer state.
struct Target {
  const ParamStore::Unit& unit;
  Tensor flat;  // absent if this rank has no elements of a state
  const ParamStore::State* state = nullptr;
  bool is_shard = false;

  static Target weights(const ParamStore::Unit& unit) {
    const Tensor& flat = unit.master ? unit.master : unit.value;
    return {unit, flat, nullptr, unit.is_shard(flat)};
  }
  // Returns the intersection of [begin, end) with this rank's elements.
  Range held(int64_t begin, int64_t end) const { return is_shard ? unit.owned(begin, end) : Range{begin, end}; }
  Tensor part(Range range) const { return state ? state->part(range) : unit.part(flat, range); }
  int64_t block() const { return state ? state->block : 1; }  // elements per value
};

void copy_to(Device& device, const Tensor& to, const void* from) {
  device.copy(to.data, from, to.bytes(), Stream::compute);
  device.sync();
}

// Loads split master weights as upper and lower halves.
void load_split(Device& device, const ParamStore::Unit& unit, Range range, const float* from) {
  std::vector<bf16> weights;
  std::vector<int16_t> rests;
  for (int64_t i = 0; i < range.end - range.begin; ++i) {
    const float x = settled(from[i]);
    weights.push_back(from_float<bf16>(x));
    rests.push_back(rest_of(x));
  }
  copy_to(device, unit.part(unit.value, range), weights.data());
  copy_to(device, unit.part(unit.master, range), rests.data());
}

// Copies values of elements that this rank holds, in `range` of the unit; converts floats if the dtypes differ.
void load_run(Device& device, const Target& to, Range range, std::span<const std::byte> bytes, DType dtype,
              const std::string& name) {
  if (dtype == to.flat.dtype) return copy_to(device, to.part(range), bytes.data());
  std::vector<float> values;
  to_floats(bytes, dtype, values);
  if (to.flat.dtype == DType::i16) return load_split(device, to.unit, range, values.data());
  std::vector<std::byte> converted;
  from_floats(values, to.flat.dtype, name, converted);
  copy_to(device, to.part(range), converted.data());
}

// Calls fn(at, range) for each run of a tensor's elements that this rank has: index of the first one in the tensor of
// the file, and range in the unit.
template <class Fn>
void for_each_held(const ParamStore::Piece& piece, const Target& to, Fn&& fn) {
  const auto held = [&](int64_t at, int64_t part_at, int64_t length) {
    const int64_t begin = piece.offset + part_at;
    const Range mine = to.held(begin, begin + length);
    if (mine.begin < mine.end) fn(at + mine.begin - begin, mine);
  };
  if (to.block() > 1) return held(0, 0, piece.part->numel);
  for_each_run(piece.part->strips, 0, piece.slice->shape.numel(), held);
}

void require_shape(const std::string& where, const std::string& name, const Shape& has, const Shape& needed) {
  if (has != needed)
    throw Error(cat(where, ": tensor ", name, " has shape ", has, ", the model needs ", needed,
                    ": the folder is of another model"));
}

// Reads only this rank's part of a piece into device memory, converting floats if the dtypes differ.
void load_piece(Device& device, const WeightFiles& files, const std::string& name, const ParamStore::Piece& piece,
                const Target& to) {
  const Shape& shape = piece.slice->shape;
  const WeightFiles::Place in_file = files.at(name);
  const int64_t block = to.block();
  require_shape(in_file.file->path(), name, in_file.entry->checked_shape(),
                block > 1 ? Shape{shape.numel() / block} : shape);
  const DType dtype = in_file.entry->checked_dtype();
  std::vector<std::byte> bytes;
  for_each_held(piece, to, [&](int64_t at, Range mine) {
    const auto size = int64_t(size_of(dtype));
    bytes.resize(size_t((mine.end - mine.begin) / block * size));
    in_file.file->read_part(*in_file.entry, at / block * size, bytes);
    load_run(device, to, mine, bytes, dtype, name);
  });
}

// Loads this rank's part of a weight from the values of the whole weight.
void load_floats(Device& device, const ParamStore& params, const ParamStore::Piece& piece,
                 const std::vector<float>& values) {
  const Target to = Target::weights(*params.units()[size_t(piece.unit)]);
  for_each_held(piece, to, [&](int64_t at, Range mine) {
    const auto run = std::span(values).subspan(size_t(at), size_t(mine.end - mine.begin));
    load_run(device, to, mine, std::as_bytes(run), DType::f32, piece.slice->name);
  });
}

// Loads a state that is replicated on all ranks. The ranks that saved it may have had parts of a layer of sizes that
// are not quantized: then the layer has no amax history, and starts without one.
void load_numbers(Device& device, const WeightFiles& files, const std::string& name, const Tensor& to) {
  if (name.starts_with(kAmaxHistory) && !files.tensors().contains(name))
    return copy_to(device, to, std::vector<std::byte>(to.bytes()).data());
  const auto [file, entry] = files.at(name);
  require_shape(file->path(), name, entry->checked_shape(), to.shape);
  if (entry->checked_dtype() != to.dtype)
    throw Error(
        cat(file->path(), ": tensor ", name, " is ", entry->checked_dtype(), ", the optimizer needs ", to.dtype));
  std::vector<std::byte> bytes(size_t(entry->bytes));
  file->read(*entry, bytes);
  copy_to(device, to, bytes.data());
}

// Loads weights and optimizer states of this rank's worker, except the state called `without`.
void load_tensors(const ParamStore& params, Device& device, const std::string& folder, const std::string& without) {
  const WeightFiles model(folder);
  std::optional<WeightFiles> optimizer;  // opened when the first state is read, since plain SGD has no file
  const std::vector<ParamStore::Piece> pieces = params.pieces();
  for (const SavedTensor& t : saved_tensors(params)) {
    const ParamStore::Piece& piece = pieces[t.piece];
    if (!params.here(size_t(piece.unit)) || (t.worker >= 0 && t.worker != params.worker().worker)) continue;
    if (t.state >= 0 && params.state_specs()[size_t(t.state)].name == without) continue;
    const ParamStore::Unit& unit = *params.units()[size_t(piece.unit)];
    if (!t.model && !optimizer) optimizer.emplace(folder, "optimizer");
    const WeightFiles& files = t.model ? model : *optimizer;
    if (t.state < 0) {
      load_piece(device, files, t.name, piece, Target::weights(unit));
    } else if (const ParamStore::State& state = unit.states[size_t(t.state)]; params.has_sizes(size_t(t.state))) {
      const int64_t first = state.first_of(t.piece);
      load_numbers(device, files, t.name,
                   state.t.slice(first, first + params.state_specs()[size_t(t.state)].sizes[t.piece]));
    } else {
      load_piece(device, files, t.name, piece, {unit, state.t, &state, params.sharded()});
    }
  }
}

// Non-finite values are stored as strings: JSON has no such numbers.
nlohmann::json magnitude_json(double x) {
  if (std::isfinite(x)) return x;
  return std::isnan(x) ? "nan" : "inf";
}
double parse_magnitude(const nlohmann::json& j) {
  if (!j.is_string()) return j.get<double>();
  return j == "inf" ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
}

SpikeWindow parse_window(const nlohmann::json& j) {
  SpikeWindow window;
  window.count = j.at("count").get<int64_t>();
  j.at("loss").get_to(window.loss);
  j.at("norm").get_to(window.norm);
  return window;
}

}  // namespace

std::string state_json(const RunState& s) {
  const StepState& d = s.device;
  nlohmann::ordered_json j = {{"step", s.step},
                              {"consumed_samples", s.consumed_samples},
                              {"nan_steps", s.nan_steps},
                              {"micro_batch_size", s.micro_batch_size},
                              {"optimizer_steps", d.updates},
                              {"skipped_steps", d.skipped},
                              {"skipped_in_row", d.skipped_in_row},
                              {"loss_scale", double(d.loss_scale)},
                              {"good_steps", d.good_steps},
                              {"hysteresis_left", d.hysteresis_left},
                              {"spikes", d.spikes},
                              {"spikes_in_row", d.spikes_in_row}};
  if (d.squared_lr_sum > 0) {
    j["peak_lr"] = d.peak_lr;
    j["squared_lr_sum"] = d.squared_lr_sum;
  }
  if (s.peak.flops > 0) j["mfu_peak"] = {{"flops", s.peak.flops}, {"of", s.peak.of}};
  if (s.noise_scale.noise() != 0)
    j["noise_scale"] = {{"signal", s.noise_scale.signal()}, {"noise", s.noise_scale.noise()}};
  if (s.rollbacks > 0) j["rollbacks"] = s.rollbacks;
  if (s.reached_loss) j["reached_loss"] = *s.reached_loss;
  for (const RunBranch& b : s.branches)
    j["branches"].push_back({{"step", b.step},
                             {"parent", b.parent},
                             {"parent_config", b.parent_config},
                             {"lr_decay_iters", {b.old_decay_iters, b.new_decay_iters}}});
  if (s.window) j["latest_steps"] = {{"count", s.window->count}, {"loss", s.window->loss}, {"norm", s.window->norm}};
  for (const auto& [name, q] : s.quantized)
    j["quantized"][name.first][name.second] = {q.values, q.saturated, q.underflowed, magnitude_json(q.amax)};
  std::vector<nlohmann::json> routing;
  for (const double sum : s.routing) routing.push_back(magnitude_json(sum));
  if (!routing.empty()) j["routing"] = routing;
  if (s.routing_alarm) j["routing_alarm"] = true;
  if (s.workers > 0) j["workers"] = s.workers;
  if (!s.in_flight.empty()) j["fragments_in_flight"] = s.in_flight;
  if (s.foreign_serial >= 0) j["foreign_serial"] = s.foreign_serial;
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
    if (const auto peak = j.find("mfu_peak"); peak != j.end())
      s.peak = {peak->at("flops").get<double>(), peak->at("of").get<std::string>()};
    s.device.peak_lr = j.value("peak_lr", 0.0);  // absent unless an average is weighted by it
    s.device.squared_lr_sum = j.value("squared_lr_sum", 0.0);
    s.device.spikes = j.value("spikes", int64_t{0});  // absent in checkpoints written by older versions
    s.device.spikes_in_row = j.value("spikes_in_row", int64_t{0});
    if (const auto scale = j.find("noise_scale"); scale != j.end())
      s.noise_scale = {scale->at("signal").get<double>(), scale->at("noise").get<double>()};
    s.rollbacks = j.value("rollbacks", int64_t{0});
    if (j.contains("reached_loss")) s.reached_loss = j.at("reached_loss").get<double>();
    for (const auto& b : j.value("branches", nlohmann::json::array()))
      s.branches.push_back({.step = b.at("step").get<int64_t>(),
                            .parent = b.at("parent").get<std::string>(),
                            .parent_config = b.at("parent_config").get<std::string>(),
                            .old_decay_iters = b.at("lr_decay_iters").at(0).get<int64_t>(),
                            .new_decay_iters = b.at("lr_decay_iters").at(1).get<int64_t>()});
    if (j.contains("latest_steps")) s.window = parse_window(j.at("latest_steps"));
    const nlohmann::json quantized = j.value("quantized", nlohmann::json::object());
    for (const auto& [layer, operands] : quantized.items())
      for (const auto& [operand, q] : operands.items())
        s.quantized[{layer, operand}] = {q.at(0).get<double>(), q.at(1).get<double>(), q.at(2).get<double>(),
                                         parse_magnitude(q.at(3))};
    for (const auto& sum : j.value("routing", nlohmann::json::array())) s.routing.push_back(parse_magnitude(sum));
    s.routing_alarm = j.value("routing_alarm", false);
    s.workers = j.value("workers", int64_t{0});
    s.in_flight = j.value("fragments_in_flight", std::vector<int64_t>{});
    s.foreign_serial = j.value("foreign_serial", int64_t{-1});
    if (s.step < 0 || s.device.spikes < 0 || s.device.spikes_in_row < 0 || (s.window && s.window->count < 0) ||
        s.consumed_samples < 0 || s.device.updates < 0 || s.micro_batch_size <= 0 || !(s.device.loss_scale > 0))
      throw Error(cat(where, ": numbers out of range; the checkpoint is damaged"));
    return s;
  } catch (const nlohmann::json::exception& e) {
    throw Error(cat(where, ": not a run state: ", json_problem(e.what()), "; the checkpoint is damaged"));
  }
}

void load_weights(const ParamStore& params, Device& device, const ModelFolder& folder) {
  const bool adapts = std::ranges::any_of(params.specs(), &ParamSpec::frozen);
  for (const auto& piece : params.pieces()) {
    if (!params.here(size_t(piece.unit)) || (adapts && params.is_saved(piece))) continue;
    const ParamStore::Unit& unit = *params.units()[size_t(piece.unit)];
    const ModelFolder::Weight& weight = folder.at(piece.slice->name);
    require_shape(folder.path(), weight.name, weight.shape, piece.slice->shape);
    if (params.is_int8(piece)) {
      std::vector<float> values;
      std::vector<std::byte> bytes;
      folder.read(weight, 0, weight.shape[0], bytes);
      to_floats(bytes, weight.dtype, values);
      params.set_int8(device, piece, values);
      continue;
    }
    if (params.has_record(piece)) {
      if (piece.part->numel == 0) continue;  // an expert of another rank
      params.set_record(device, piece, folder.nf4_record(weight, params.record_of(piece).nested));
      continue;
    }
    const Target to = Target::weights(unit);
    const int64_t most = ModelFolder::kBlockBytes / int64_t(size_of(weight.dtype));
    std::vector<std::byte> bytes;
    for_each_held(piece, to, [&](int64_t at, Range mine) {
      for (Range block{mine.begin, mine.begin}; block.begin < mine.end; block.begin = block.end) {
        block.end = std::min(mine.end, block.begin + most);
        folder.read_run(weight, at + block.begin - mine.begin, at + block.end - mine.begin, bytes);
        load_run(device, to, block, bytes, weight.dtype, weight.name);
      }
    });
  }
}

void load_weights(Engine& engine, Device& device, const ModelFolder& folder) {
  load_weights(engine.model().params(), device, folder);
  engine.refresh_values();
  engine.start_states();
}

// Computes norms, in double, of the weights that GEMMs read: quantized if the base is quantized.
void init_magnitudes(Engine& engine, Device& device, const ModelFolder& base) {
  const LoraOptions& lora = engine.options().lora;
  if (lora.variant != LoraVariant::dora) return;
  const ParamStore& params = engine.model().params();
  const std::string end = lora_magnitude_name("");
  for (const auto& piece : params.pieces()) {
    const std::string& name = piece.slice->name;
    if (!params.here(size_t(piece.unit)) || !name.ends_with(end)) continue;
    const ModelFolder::Weight& w = base.at(name.substr(0, name.size() - end.size()) + ".weight");
    const std::optional<bool> nested =
        lora.base == BasePrecision::nf4 ? std::optional(lora.double_quant) : std::nullopt;
    load_floats(device, params, piece, base.output_norms(w, nested));
  }
  engine.refresh_values();
  engine.start_states();
}

void load_adapters(Engine& engine, Device& device, const AdapterFolder& folder, const ModelFolder& base) {
  const ParamStore& params = engine.model().params();
  const LoraOptions &own = engine.options().lora, &theirs = folder.options();
  const auto refuse = [&](const auto&... why) {
    throw Error(cat("lora.adapter: ", folder.path(), " ", why...), Exit::usage);
  };
  if (const std::string found = weights_fingerprint(base);
      !folder.fingerprint().empty() && found != folder.fingerprint())
    refuse("has adapters of other weights than those of ", base.path(), " (fingerprint ", folder.fingerprint(),
           ", here ", found, "): set init_from to their own base, ", folder.base(),
           ", or export them with --format peft to use them on these weights all the same");
  if (own.rank != theirs.rank || own.scale() != theirs.scale())
    refuse("has rank ", theirs.rank, " and a scale of ", theirs.scale(), ", the run has lora.rank ", own.rank,
           " and a scale of ", own.scale(), " (lora.alpha ", own.alpha, "); give the run those of the folder");
  if ((own.variant == LoraVariant::dora) != (theirs.variant == LoraVariant::dora))
    refuse(theirs.variant == LoraVariant::dora ? "has" : "has no",
           " magnitudes of DoRA, and lora.variant of the run is ", name_of(own.variant),
           "; give the run that of the folder");
  size_t found = 0;
  for (const auto& piece : params.pieces()) {
    if (!params.is_saved(piece)) continue;
    const std::string& name = piece.slice->name;
    const std::string module = name.substr(0, name.rfind(".lora_"));
    if (!folder.adapts(module)) refuse("has no adapters of ", module, ", which lora.targets of the run names");
    found += name.ends_with(lora_a_name(""));
    if (!params.here(size_t(piece.unit))) continue;
    folder.require_shape(name, piece.slice->shape);
    load_floats(device, params, piece, folder.read(name));
  }
  if (found != folder.modules().size())
    refuse("has adapters of ", folder.modules().size(), " layers, lora.targets of the run names ", found, " of them");
  engine.refresh_values();
  engine.start_states();
}

RunState load_checkpoint(Engine& engine, Device& device, const std::string& folder, const std::string& without) {
  RunState state = read_run_state(folder);
  require_same_workers(state, engine.workers(), folder);
  engine.receive_deltas();
  load_tensors(engine.model().params(), device, folder, without);
  engine.refresh_values();
  state.routing = with_dropped(engine.model().config(), std::move(state.routing));
  const auto sums = size_t(routing_size(engine.model().config()));
  if (!state.routing.empty() && state.routing.size() != sums)
    throw Error(cat(folder, "/state.json: routing has ", state.routing.size(), " sums, expected ", sums,
                    "; the checkpoint is damaged"));
  if (!engine.set_in_flight(state.in_flight))
    throw Error(
        cat(folder, "/state.json: fragments_in_flight do not match this run's fragments; the checkpoint is damaged"));
  const EngineOptions& options = engine.options();
  if (!options.scaling.dynamic) state.device.loss_scale = float(options.loss_scale);  // may have changed since
  // Without detection no step would end a row of spikes, during which saves are put off.
  if (!engine.looks_for_spikes()) state.device.spikes_in_row = 0, state.window.reset();
  engine.write_state(state.device);
  if (engine.looks_for_spikes()) engine.write_window(state.window.value_or(SpikeWindow{}));
  return state;
}

void require_same_workers(const RunState& state, int64_t workers, const std::string& folder) {
  if (state.workers == workers) return;
  const auto have = [](int64_t n) {
    return n == 0 ? std::string("no workers") : cat(n, n == 1 ? " worker" : " workers");
  };
  throw Error(cat("data_parallel_replicate_size: ", folder, " was saved with ", have(state.workers),
                  ", each with an optimizer state of its own, and this run has ", have(workers),
                  " (local_updates.steps, or optimizer onebit_adam or onebit_lamb); start as many ranks and copies as "
                  "before, or start a new run from its weights with init_from"),
              Exit::usage);
}

RunState read_run_state(const std::string& folder) {
  const std::string path = folder + "/state.json";
  return parse_state(read_file(path, kMaxStateBytes), path);
}

}  // namespace athanor
