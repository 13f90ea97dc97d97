// make_engine(): chooses micro-batch size and recomputation among the plans that fit in memory.
#include <algorithm>
#include <span>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "perf/roofline.h"
#include "perf/traffic.h"
#include "pipeline/simulate.h"
#include "train/distillation.h"

namespace athanor {
namespace {

constexpr size_t kLogitsShare = 64;  // logits may take 1/64 of a GPU's memory

int64_t clamped(size_t bytes) { return int64_t(std::min(bytes, size_t(INT64_MAX))); }

// Returns the minimum over ranks, because all must choose the same plan.
int64_t least_of_ranks(Backend backend, int64_t value) {
  int64_t negative = -value;
  if (backend.control) backend.control->all_reduce({&negative, DType::i64, {1}}, Reduce::max, Stream::compute);
  return -negative;
}

// Returns recomputation modes from the configured one on, cheapest first. They do not change results, so the plan may
// recompute more than configured.
std::vector<Recompute> from_cheapest(const Recompute& least, int64_t layers) {
  using G = Recompute::Granularity;
  std::vector<Recompute> modes = {least};
  if (least.granularity == G::none) modes.push_back({G::selective, 1});
  const int64_t below = least.granularity == G::full ? least.every : layers + 1;
  for (const int64_t every : {16, 8, 6, 5, 4, 3, 2, 1})
    if (every < below) modes.push_back({G::full, every});
  return modes;
}

// Returns the micro-batch sizes to try, ascending.
std::vector<int64_t> micro_batches_to_try(const Config& c, Backend backend) {
  if (c.micro_batch_size > 0) return {c.micro_batch_size};
  const int64_t share = common_batch_size(c) / backend.mesh.batches();
  const int64_t tokens = backend.device.unified() ? kAutoTokens : kAutoTokensOnGpu;
  std::vector<int64_t> sizes;
  const int64_t own_length = c.seq_length / c.context_parallel_size;
  for (int64_t b = 1; b <= std::clamp<int64_t>(tokens / own_length, 1, share); ++b)
    if (share % b == 0) sizes.push_back(b);
  return sizes;
}

// Rates and launch overhead for comparing plans. Nothing is measured, since the choice affects rounding and must be
// reproducible; without a data sheet these are typical values for the kind of device.
class Pace {
 public:
  Pace(Backend backend, const Recipe& recipe) : backend_(backend) {
    const Device& device = backend.device;
    const bool gpu = !device.unified();
    const auto rate = [&](double sheet, double usual) {
      return double(least_of_ranks(backend, int64_t(sheet > 0 ? sheet : usual)));
    };
    limits_.most = {rate(device.peak_flops(recipe.compute), gpu ? 3e14 : 5e11),
                    rate(device.peak_bytes(), gpu ? 2e12 : 5e10)};
    if (gpu && recipe.low_precision()) {
      limits_.most.quantized = rate(device.peak_flops(DType::f8_e4m3), 2 * limits_.most.flops);
      limits_.most.floats = rate(device.peak_plain_flops(), limits_.most.flops / 15);
    }
    limits_.multiprocessors = least_of_ranks(backend, device.multiprocessors());
    backend_.network.per_machine = int(least_of_ranks(backend, backend.network.per_machine));
  }
  double step_seconds(const Engine& engine) const {
    const auto micro_batches = double(engine.micro_batches());
    const double compute =
        (least_sum(planned_rows(engine, limits_)) + kLaunch * micro_batches * double(engine.micro_launches().size())) *
        with_waits(engine.stage().program());
    // A device with unified memory communicates and computes one after the other.
    const Roofline* beside = backend_.device.unified() ? nullptr : &limits_;
    return compute + step_traffic(engine, backend_.mesh, backend_.network, beside)
                         .exposed(compute, micro_batches, min_update_gemm_seconds(engine, limits_));
  }

 private:
  static constexpr double kLaunch = 2e-6;  // seconds
  Backend backend_;
  Roofline limits_;
};

class Fitting {
 public:
  Fitting(const Config& c, Backend backend, bool training, InferenceWeights weights)
      : config_(c),
        backend_(backend),
        training_(training),
        options_(engine_options(c, training)),
        recompute_(options_.recompute),
        capacity_(size_t(least_of_ranks(backend, int64_t(memory_capacity(c, backend.device))))),
        host_capacity_(least_of_ranks(backend, clamped(host_memory_capacity(c, backend.device)))),
        logits_budgets_{kLogitsBudget} {
    options_.weights = weights;
    if (training && distills(c)) options_.teacher = teacher_options(c);
    if (!backend.device.unified() && c.loss_chunk_rows == 0 && capacity_ / kLogitsShare > kLogitsBudget)
      logits_budgets_ = {capacity_ / kLogitsShare, kLogitsBudget};
  }

  // Adds scratch memory for faster kernels to the plan if it fits; no other memory is reduced for it.
  std::unique_ptr<Engine> with_more_scratch(std::unique_ptr<Engine> engine) {
    Tuning* tuning = backend_.tuning;
    engine->memory();  // the dry run lists the ops
    const size_t wanted =
        most_of_ranks(tuning ? tuning->wanted_scratch(engine->tunable()) : 0);  // each rank's own need
    if (wanted == 0) return engine;
    const size_t before = tuning->allow_scratch(wanted);
    auto roomier = std::make_unique<Engine>(config_.model, engine->options(), backend_);
    if (fits(*roomier) == Fit::yes) return roomier;
    tuning->allow_scratch(before);
    return engine;
  }

  // Collects the results of add_fitting() for each context-parallel method (with many ranks only the first method that
  // fits), each budget of logits and each recomputation mode, and returns the engine with the fastest modelled step.
  // Master weights and states are in host memory only if nothing fits otherwise, or if the configuration requires it.
  // Throws Error(usage) if nothing fits.
  std::unique_ptr<Engine> fastest() {
    const std::vector<bool> all_inputs = choices(config_.offload_activations),
                            all_states = choices(config_.offload_optimizer);
    const auto with = [&](bool inputs, bool states, bool units) {
      options_.states_home.mem = states ? Mem::pinned : Mem::device;
      options_.offload_inputs = inputs;
      options_.host_units = 0;
      return units ? with_host_units() : fastest_with_home();
    };
    // Weights and gradients are copied in every micro-batch, so offloading them is tried last.
    for (const bool units : choices(config_.offload_params)) {
      if (units) {
        if (auto engine = with(all_inputs.back(), all_states.back(), true)) return engine;
        break;
      }
      for (const bool inputs : all_inputs)
        for (const bool states : all_states)
          if (auto engine = with(inputs, states, false)) return engine;
    }
    refuse(too_large_for_host_ ? *too_large_for_host_ : *too_large_);
  }

 private:
  // Returns the values of an offload option to try, in order.
  std::vector<bool> choices(Offload offload) const {
    const bool gpu = training_ && !backend_.device.unified();
    if (!gpu || offload == Offload::none) return {false};
    if (offload == Offload::cpu) return {true};
    return {false, true};
  }

  // Moves all units to host memory; with auto, as few as fit. The fewer units are moved, the more GPU memory and the
  // less host memory the run needs.
  std::unique_ptr<Engine> with_host_units() {
    options_.host_units = INT32_MAX;
    too_large_for_host_ = nullptr;
    std::unique_ptr<Engine> best = fastest_with_home();
    const Engine* all = best ? best.get() : too_large_for_host_.get();
    if (config_.offload_params == Offload::cpu || !all) return best;
    // Binary search: with `none` units in host memory GPU memory is too small; with `end` units it is large enough, but
    // host memory may be too small.
    for (int64_t none = 0, end = all->model().params().movable_units(); none + 1 < end;) {
      options_.host_units = (none + end) / 2;
      auto on_device = std::exchange(too_large_for_host_, nullptr);
      auto engine = fastest_with_home();
      if (engine || too_large_for_host_) {
        end = options_.host_units;
      } else {
        none = options_.host_units;
        too_large_for_host_ = std::move(on_device);
      }
      if (engine) best = std::move(engine);
    }
    return best;
  }

  // Returns null if none fits.
  std::unique_ptr<Engine> fastest_with_home() {
    std::vector<std::unique_ptr<Engine>> found;
    for (const ContextMethod method : methods()) {
      // A ring hides its hops only where a network works on its own.
      if (!found.empty() && (backend_.device.unified() || backend_.mesh.context().size() > kMostInRing)) break;
      options_.context_method = method;
      for (const size_t budget : logits_budgets_) {
        options_.logits_budget = budget;
        add_fitting(found);
      }
    }
    if (found.empty()) return nullptr;
    if (found.size() == 1) return std::move(found.front());
    const Pace pace(backend_, options_.recipe);
    std::vector<double> seconds;
    for (const auto& engine : found) seconds.push_back(pace.step_seconds(*engine));
    if (backend_.control)  // ranks compute different parts, and wait for the slowest
      backend_.control->all_reduce({seconds.data(), DType::f64, {int64_t(seconds.size())}}, Reduce::max,
                                   Stream::compute);
    return std::move(found[size_t(std::min_element(seconds.begin(), seconds.end()) - seconds.begin())]);
  }

  std::vector<ContextMethod> methods() const {
    if (options_.context_method != ContextMethod::automatic) return {options_.context_method};
    if (backend_.mesh.context().size() == 1) return {ContextMethod::gather};
    return {ContextMethod::gather, ContextMethod::ring};
  }

  // For each recomputation mode, adds the largest micro-batch that fits, if it is larger than with less recomputation.
  // With pipeline stages also adds smaller ones: stages wait less with more micro-batches.
  void add_fitting(std::vector<std::unique_ptr<Engine>>& found) {
    const std::vector<int64_t> all = micro_batches_to_try(config_, backend_);
    std::span<const int64_t> sizes = all;
    for (const Recompute& recompute : from_cheapest(recompute_, config_.model.num_hidden_layers)) {
      if (recompute.granularity == Recompute::Granularity::full && splits_backward(config_.pipeline_schedule)) break;
      options_.recompute = recompute;
      while (backend_.mesh.stages().size() > 1 && sizes.size() > 1) {
        auto engine = fitting(sizes.front());
        if (!engine) break;
        found.push_back(std::move(engine));
        sizes = sizes.subspan(1);
      }
      if (auto engine = largest(sizes)) found.push_back(std::move(engine));
      if (sizes.empty() || !training_) break;
    }
  }

  [[noreturn]] void refuse(Engine& engine) const {
    const MemoryPlan& plan = engine.memory();
    const size_t beside = memory_outside_plan(config_, backend_.device, engine),
                 reserve = runtime_reserve(config_, backend_.device);
    plan.require_fits(capacity_, reserve);  // throws, listing the largest kinds
    if (plan.total(Mem::pinned) > 0)
      plan.require_host_fits(size_t(host_capacity_), checkpoint_bytes(config_, backend_.device, engine));
    if (plan.total() + beside > capacity_)
      throw Error(cat("memory: checkpoints take ", format_bytes(beside - reserve), " of memory, in addition to ",
                      format_bytes(plan.total()), " of the run and ", format_bytes(reserve), " reserve, but ",
                      format_bytes(capacity_), " may be used; set checkpoint.async_save to \"off\"",
                      config_.memory_interval > 0 ? " and checkpoint.memory_interval to 0" : "", ", which needs none"),
                  Exit::usage);
    throw Error(cat("memory: another rank needs more than the ", format_bytes(capacity_),
                    " that may be used; its message lists the largest parts"),
                Exit::usage);
  }

  // Returns the max over ranks, since a rank may have more optimizer states, or larger matrices to orthogonalize.
  size_t most_of_ranks(size_t bytes) const { return size_t(-least_of_ranks(backend_, -int64_t(bytes))); }

  enum class Fit : uint8_t { no, only_device, yes };
  Fit fits(Engine& engine) {
    const size_t rest = memory_outside_plan(config_, backend_.device, engine);
    const bool on_device = most_of_ranks(engine.least_memory() + rest) <= capacity_ &&
                           most_of_ranks(engine.memory().total() + rest) <= capacity_;
    if (!on_device) return Fit::no;
    if (!fits_host(engine)) return Fit::only_device;
    return Fit::yes;
  }

  // All ranks call it together, because most_of_ranks() is a collective.
  bool fits_host(Engine& engine) {
    if (options_.states_home.mem == Mem::device && !options_.offload_inputs && options_.host_units == 0) return true;
    const size_t planned = engine.host_memory();
    return most_of_ranks(planned + checkpoint_bytes(config_, backend_.device, engine)) <= size_t(host_capacity_);
  }

  // Returns null if no size fits; leaves the sizes that do not fit in `sizes`.
  std::unique_ptr<Engine> largest(std::span<const int64_t>& sizes) {
    std::unique_ptr<Engine> best = fitting(sizes.back());
    size_t fit = best ? sizes.size() : 0, end = sizes.size() - 1;  // sizes before `fit` fit, those from `end` on do not
    while (fit < end) {
      const size_t middle = (fit + end) / 2;
      if (auto engine = fitting(sizes[middle])) {
        best = std::move(engine);
        fit = middle + 1;
      } else {
        end = middle;
      }
    }
    sizes = sizes.subspan(fit);
    return best;
  }

  // Returns null if the plan does not fit.
  std::unique_ptr<Engine> fitting(int64_t size) {
    options_.micro_batch_size = size;
    auto engine = std::make_unique<Engine>(config_.model, options_, backend_);
    const Fit fit = fits(*engine);
    if (fit == Fit::yes) return engine;
    (fit == Fit::only_device ? too_large_for_host_ : too_large_) = std::move(engine);
    return nullptr;
  }

  const Config& config_;
  Backend backend_;
  bool training_;
  EngineOptions options_;
  Recompute recompute_;  // configured recomputation
  size_t capacity_;
  int64_t host_capacity_;
  std::vector<size_t> logits_budgets_;          // budgets of logits chunks to try, largest first
  std::unique_ptr<Engine> too_large_;           // the last plan that did not fit
  std::unique_ptr<Engine> too_large_for_host_;  // the last plan that fit the device, but not the host
};

// Weights that are also master weights count as weights here.
size_t host_units_bytes(const MemoryPlan& plan) {
  return plan.total(MemoryKind::weights, Mem::pinned) + plan.total(MemoryKind::gradients, Mem::pinned);
}

void report_offload(const Config& c, Engine& engine) {
  const auto why = [](Offload offload) {
    return offload == Offload::automatic ? ", since the plan does not fit otherwise; results are bit-identical"
                                         : "; results are bit-identical";
  };
  const size_t bytes = engine.host_memory(), inputs = engine.memory().total(MemoryKind::activations, Mem::pinned);
  if (inputs > 0)
    log::info("offload.activations: ", format_bytes(inputs), " of block inputs are in host memory",
              why(c.offload_activations));
  const size_t params = host_units_bytes(engine.memory());
  if (engine.options().host_units > 0) {
    const int64_t all = engine.model().params().movable_units(), moved = std::min(all, engine.options().host_units);
    log::info("offload.params: ", format_bytes(params), " of weights and gradients of ", moved, " of ", all,
              " units are in host memory", why(c.offload_params));
  }
  if (engine.options().states_home.mem == Mem::device) return;
  if (bytes == inputs + params)
    throw Error(
        cat("offload.optimizer: ", c.offload_optimizer == Offload::cpu ? "cpu" : "auto",
            " has nothing to move: this optimizer keeps no states of each weight, and the weights are their own "
            "masters (precision ",
            name_of(c.precision), "); set it to none"),
        Exit::usage);
  log::info("offload.optimizer: ", format_bytes(bytes - inputs - params),
            " of masters and optimizer states are in host memory", why(c.offload_optimizer));
}

// Ranks of a tensor- or context-parallel group, and pipeline stages, read the same sequences.
void require_division(const Config& c, int64_t groups, bool training) {
  const int64_t logical = engine_options(c, training).logical_shards;
  const int64_t together = c.pipeline_parallel_size * c.tensor_parallel_size * c.context_parallel_size;
  const std::string among = together == 1 ? cat(groups, " ranks")
                                          : cat(groups, groups == 1 ? " group" : " groups", " of ", together,
                                                " ranks (pipeline_parallel_size times tensor_parallel_size times "
                                                "context_parallel_size)");
  if (logical > 0 && logical % groups != 0)
    throw Error(cat("logical_shards: ", logical, " do not divide among ", among,
                    "; start a power of two of them, or set deterministic_reduction to fixed_order"),
                Exit::usage);
  const int64_t once = std::max<int64_t>(1, c.micro_batch_size) * groups;
  if (c.rampup_batch_size.start > 0 && common_batch_size(c) % once != 0)
    throw Error(cat("rampup_batch_size: start ", c.rampup_batch_size.start, " and increment ",
                    c.rampup_batch_size.increment, " do not divide among ", among,
                    c.micro_batch_size > 0 ? cat(" with micro-batches of ", c.micro_batch_size) : "",
                    "; take multiples of ", once),
                Exit::usage);
  if (c.global_batch_size % once != 0)
    throw Error(cat("global_batch_size: ", c.global_batch_size, " sequences do not divide among ", among,
                    c.micro_batch_size > 0 ? cat(" with micro-batches of ", c.micro_batch_size) : "",
                    "; take a multiple of ", once, ", or start another number of ranks"),
                Exit::usage);
}

}  // namespace

std::unique_ptr<Engine> make_engine(const Config& c, Backend backend, bool training, InferenceWeights weights) {
  require_division(c, backend.mesh.batches(), training);
  for (const auto& [key, offload] : {std::pair{"offload.optimizer", c.offload_optimizer},
                                     {"offload.activations", c.offload_activations},
                                     {"offload.params", c.offload_params}})
    if (training && offload == Offload::cpu && backend.device.unified())
      throw Error(cat(key, ": cpu moves memory of a GPU to the host, and this run is on ", backend.device.description(),
                      ", whose memory is the host's; set it to auto or none, or device to cuda"),
                  Exit::usage);
  if (const int ranks = backend.mesh.world().size(); training && c.offload_params != Offload::none && ranks > 1 &&
                                                     (c.zero_stage != 3 || backend.mesh.copies().size() > 1))
    throw Error(cat("offload.params: works on one rank, or on ranks that share out weights, and this run has ", ranks,
                    " ranks with zero_stage ", c.zero_stage, " in ", backend.mesh.copies().size(),
                    " copies; set zero_stage to 3 and data_parallel_replicate_size to 1, or offload.params to none"),
                Exit::usage);
  if (const std::string line = memory_of_others(c, backend.device); !line.empty()) log::warn(line);
  Fitting fitting(c, backend, training, weights);
  auto engine = fitting.with_more_scratch(fitting.fastest());
  if (engine->options().recompute != engine_options(c, training).recompute)
    log::info("recompute_granularity: more is recomputed than configured (", to_text(engine->options().recompute),
              "), so that micro-batches of ", engine->options().micro_batch_size,
              " sequences fit in memory; results are bit-identical");
  report_offload(c, *engine);
  if (const std::string why =
          training ? why_no_8bit_moments(engine->options().optimizer, engine->model().params()) : "";
      !why.empty())
    log::warn(why);
  if (!engine->low_precision().empty())
    log::info(engine->low_precision(), "; ",
              backend.tuning ? backend.tuning->describe_quantized(engine->tunable())
                             : "emulated: the processor multiplies dequantized values as fp32");
  if (c.gradient_accumulation_steps > 0 && c.gradient_accumulation_steps != engine->micro_batches())
    throw Error(
        cat("gradient_accumulation_steps: ", c.gradient_accumulation_steps, " does not agree with ",
            engine->micro_batches(), " micro-batches of ", engine->options().micro_batch_size, " in a global batch of ",
            c.global_batch_size, " on ", engine->ranks(), " ranks; leave it out, it follows from the other two"),
        Exit::usage);
  return engine;
}

}  // namespace athanor
