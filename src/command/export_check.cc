#include "command/export_check.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/format.h"
#include "base/log.h"
#include "command/command.h"
#include "command/machine.h"
#include "config/choices.h"
#include "infer/calibrate.h"
#include "infer/compare_models.h"
#include "train/setup.h"
#include "train/snapshot.h"

namespace athanor {
namespace {

// Length of the sequences; llama.cpp's tools also measure at this length.
constexpr int64_t kLength = 512;

Config config_for(const ModelFolder& model, const std::vector<std::string>& data, int64_t threads) {
  Config config;
  config.model = model.config();
  config.threads = threads;
  config.device = DeviceChoice::cpu;
  config.precision = Precision::fp32;
  config.seq_length = std::min(kLength, config.model.max_position_embeddings);
  config.global_batch_size = config.micro_batch_size = 1;
  for (const std::string& path : data) config.valid_data.push_back({.path = path});
  return config;
}

enum class Logits : uint8_t { none, wanted };

std::unique_ptr<Engine> open_engine(const Config& config, const ModelFolder& weights, Backend backend, Logits logits) {
  auto engine = std::make_unique<Engine>(config.model, engine_options(config, false), backend);
  if (logits == Logits::wanted) engine->want_logits();
  engine->memory().require_fits(memory_capacity(config, backend.device), runtime_reserve(config, backend.device));
  engine->commit();
  load_weights(*engine, backend.device, weights);
  return engine;
}

double bits_per_weight(int64_t bytes, const ModelConfig& m) { return 8 * double(bytes) / double(parameter_count(m)); }

int64_t bytes_of(const ModelFolder& model) {
  int64_t bytes = 0;
  for (const auto& w : model.weights()) bytes += w.shape.numel() * int64_t(size_of(w.dtype));
  return bytes;
}

void print_json(const ModelDifference& d, int64_t bytes, const ModelFolder& original) {
  const nlohmann::ordered_json json = {{"bytes", bytes},
                                       {"bits_per_weight", bits_per_weight(bytes, original.config())},
                                       {"reference_loss", d.reference_loss},
                                       {"loss", d.loss},
                                       {"kl", d.kl},
                                       {"kl_error", d.kl_error},
                                       {"same_top", d.same_top},
                                       {"probability_change", d.probability_change},
                                       {"tokens", d.tokens},
                                       {"windows", d.windows}};
  print(json.dump(), "\n");
}

void print_table(const ModelDifference& d, int64_t bytes, const ModelFolder& original) {
  const auto size = [&](int64_t n) { return format_bytes(size_t(n)); };
  const ModelConfig& m = original.config();
  std::printf("%-34s %12s %12s\n", "", "original", "written");
  std::printf("%-34s %12s %12s\n", "size", size(bytes_of(original)).c_str(), size(bytes).c_str());
  std::printf("%-34s %12.3f %12.3f\n", "bits per weight", bits_per_weight(bytes_of(original), m),
              bits_per_weight(bytes, m));
  std::printf("%-34s %12.5f %12.5f\n", "loss, nats per token", d.reference_loss, d.loss);
  std::printf("%-34s %12s %12.5f +- %.5f\n", "KL to the original, nats per token", "", d.kl, d.kl_error);
  std::printf("%-34s %12s %10.2f %%\n", "same likeliest token", "", 100 * d.same_top);
  std::printf("%-34s %12s %10.2f %%\n", "change of the probability, RMS", "", 100 * d.probability_change);
  print("over ", d.tokens, " tokens in ", d.windows, " windows\n");
}

}  // namespace

Importance calibrate(const ModelFolder& model, const CalibrationArgs& args, int64_t threads) {
  if (args.data.empty()) return {};
  const Config config = config_for(model, args.data, threads);
  const Dataset data = open_dataset(config.valid_data, config);
  Machine machine(config);
  const Backend backend = machine.backend();
  const auto engine = open_engine(config, model, backend, Logits::none);
  const Importance importance = measure_importance(*engine, backend.ops, data, args.samples);
  int64_t tokens = 0, unreached = 0;
  for (const auto& [name, squares] : importance) {
    tokens = std::max(tokens, squares.tokens);
    unreached += squares.tokens == 0;
  }
  log::info("export: importance of ", importance.size(), " weights over ", tokens, " tokens");
  if (unreached > 0)
    log::warn("export: no token of --calibrate reached the experts of ", unreached,
              " weights; their inputs count alike. Give more text, or more with --calibrate-samples");
  if (!args.imatrix.empty())
    write_imatrix(importance,
                  {.datasets = args.data, .windows = tokens / config.seq_length, .window_tokens = config.seq_length},
                  args.imatrix);
  return importance;
}

struct HessianSource::State {
  State(const ModelFolder& model, const CalibrationArgs& args, int64_t threads)
      : config(config_for(model, args.data, threads)),
        data(open_dataset(config.valid_data, config)),
        machine(config),
        engine(open_engine(config, model, machine.backend(), Logits::none)),
        samples(args.samples) {
    for (const auto& w : model.weights())
      if (w.linear) {
        const int64_t in = w.shape[model.in_out() ? 0 : 1];
        bytes[w.name] = in * in * int64_t(sizeof(float));
      }
  }
  Config config;
  Dataset data;
  Machine machine;
  std::unique_ptr<Engine> engine;
  int64_t samples;
  std::map<std::string, int64_t> bytes;  // bytes of each weight's Hessian, in file order
  Hessians held;
  bool warned = false;  // of a layer without tokens
};

HessianSource::HessianSource(const ModelFolder& model, const CalibrationArgs& args, int64_t threads)
    : state_(std::make_unique<State>(model, args, threads)) {}
HessianSource::~HessianSource() = default;

std::vector<float> HessianSource::operator()(const std::string& weight) {
  constexpr int64_t kBudget = int64_t{4} << 30;
  State& s = *state_;
  if (!s.held.contains(weight)) {
    s.held.clear();
    std::set<std::string> next;
    int64_t bytes = 0;
    for (auto it = s.bytes.find(weight); it != s.bytes.end() && (next.empty() || bytes + it->second <= kBudget); ++it) {
      next.insert(it->first);
      bytes += it->second;
    }
    s.held = measure_hessians(*s.engine, s.machine.backend().ops, s.data, s.samples, next);
  }
  const std::vector<float>& hessian = *s.held.at(weight);
  if (!s.warned && std::ranges::all_of(hessian, [](float x) { return x == 0; })) {
    log::warn("export: no token of --calibrate reached the layer of ", weight,
              " and perhaps of others, whose inputs count alike. Give more text, or more with --calibrate-samples");
    s.warned = true;
  }
  return hessian;
}

void check_export(const ModelFolder& original, const ModelFolder& written, int64_t bytes, const CheckArgs& args,
                  int64_t threads) {
  const Config config = config_for(original, args.data, threads);
  const Dataset data = open_dataset(config.valid_data, config);
  Machine machine(config);
  const auto reference = open_engine(config, original, machine.backend(), Logits::wanted);
  const auto other = open_engine(config, written, machine.backend(), Logits::wanted);
  const ModelDifference d = compare_models(*reference, *other, data, args.samples);
  args.json ? print_json(d, bytes, original) : print_table(d, bytes, original);
  std::string beyond;
  const auto limit = [&beyond](bool kept, const char* what, double value, const char* flag, double at) {
    if (!kept) beyond += cat("\n  ", what, " is ", value, "; ", flag, " allows ", at);
  };
  limit(d.kl <= args.max_kl, "KL to the original", d.kl, "--max-kl", args.max_kl);
  limit(d.same_top >= args.min_same_top, "the share of the same likeliest token", d.same_top, "--min-same-top",
        args.min_same_top);
  limit(d.loss - d.reference_loss <= args.max_loss_increase, "the increase of the loss", d.loss - d.reference_loss,
        "--max-loss-increase", args.max_loss_increase);
  if (beyond.empty()) return;
  if (!args.force)
    throw Error(cat("export: nothing is written, since the result would differ too much from the original:", beyond,
                    "\nuse a larger --dtype, give text with --calibrate, or write it anyway with --force"),
                Exit::usage);
  log::warn("export: written because of --force, although the result differs from the original by more than allowed:",
            beyond);
}

}  // namespace athanor
