// athanor plan CONFIG.json: memory, parameters, FLOPs and performance bound of a run, without running it; --gpu: on a
// GPU that is given only by its description.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/format.h"
#include "command/command.h"
#include "command/machine.h"
#include "command/plan.h"
#include "data/logit_cache.h"
#include "perf/described_gpu.h"
#include "perf/offload_time.h"
#include "pipeline/simulate.h"
#include "plan/forecast.h"
#include "plan/precision.h"
#include "train/advice.h"
#include "train/setup.h"

namespace athanor {
namespace {

struct PlanArgs {
  std::string config, gpu;
  std::vector<std::string> overrides;
  bool by_shape = false;
  PipelineDrawing drawing = {};
  ManyRanks many;
  ClusterArgs cluster;
  SearchArgs search;
};

// Prints the host memory of offloaded master weights and optimizer states, which is not part of the device memory
// table.
void print_host_memory(const Config& config, const MemoryPlan& plan, const Device& device) {
  if (plan.total(Mem::pinned) == 0) return;
  print("\nhost memory per rank                 made smaller by\n");
  for (int k = 0; k < kMemoryKinds; ++k)
    if (const size_t bytes = plan.total(MemoryKind(k), Mem::pinned); bytes > 0)
      std::printf("  %-12s %12s  %5.1f %%   %s\n", name_of(MemoryKind(k)), format_bytes(bytes).c_str(),
                  100.0 * double(bytes) / double(plan.total(Mem::pinned)), plan.knobs(MemoryKind(k)).c_str());
  std::printf("  %-12s %12s            one pinned allocation, exact\n", "total",
              format_bytes(plan.total(Mem::pinned)).c_str());
  const size_t capacity = host_memory_capacity(config, device);
  std::printf(
      "  %-12s %12s            offload.host_memory_limit_gib%s\n", "may be used",
      capacity == SIZE_MAX ? "unknown" : format_bytes(capacity).c_str(),
      capacity == SIZE_MAX ? "; a described GPU has no machine" : ", or what this machine has left for each rank");
}

void print_memory(const Config& config, Engine& engine, const Device& device) {
  const MemoryPlan& plan = engine.memory();
  print("\nmemory per rank                      made smaller by\n");
  for (int k = 0; k < kMemoryKinds; ++k) {
    const auto kind = static_cast<MemoryKind>(k);
    if (const size_t bytes = plan.total(kind); bytes > 0)
      std::printf("  %-12s %12s  %5.1f %%   %s\n", name_of(kind), format_bytes(bytes).c_str(),
                  100.0 * double(bytes) / double(plan.total()), plan.knobs(kind).c_str());
  }
  std::printf("  %-12s %12s            one allocation, exact\n", "total", format_bytes(plan.total()).c_str());
  std::printf("  %-12s %12s            runtime_reserve_mib: code, libraries, buffers of the system\n", "reserve",
              format_bytes(runtime_reserve(config, device)).c_str());
  if (const size_t copy = save_copy_bytes(config, device, engine); copy > 0)
    std::printf(
        "  %-12s %12s            checkpoint.async_save: %scopy of weights and states that is written; none with off\n",
        "saving", format_bytes(copy).c_str(), device.unified() ? "" : "host memory, ");
  if (const size_t held = memory_checkpoint_bytes(config, engine); held > 0)
    std::printf("  %-12s %12s            checkpoint.memory_interval: %scheckpoints in memory, none with 0\n",
                "in memory", format_bytes(held).c_str(), device.unified() ? "" : "host memory, ");
  std::printf("  %-12s %12s            memory_limit_gib, or what this machine has\n", "may be used",
              format_bytes(memory_capacity(config, device)).c_str());
  print_host_memory(config, plan, device);
  print("\nphase             buffers   bytes packed   least possible\n");
  for (const ArenaPhase& p : engine.arena().phases())
    std::printf("  %-15s %7zu   %12s   %12s\n", p.name.c_str(), p.blocks.size(),
                format_bytes(p.packed_bytes + size_t(p.frames) * p.frame_bytes).c_str(),
                format_bytes(std::max(p.peak_live, size_t(p.frames) * p.held_live)).c_str());
}

// Target of the plan: this machine, or a GPU from the table of descriptions.
struct Place {
  Place(const Config& config, const std::string& gpu) {
    const MeshSizes sizes = first_mesh_sizes(config);
    if (sizes.ranks() > 1) mesh = std::make_unique<ProcessMesh>(absent_mesh(sizes));
    if (gpu.empty()) {
      Config alone = config;
      alone.pipeline_parallel_size = alone.tensor_parallel_size = alone.context_parallel_size = 1;
      alone.expert_parallel_size = 1;
      alone.data_parallel_replicate_size = 1, alone.data_parallel_shard_size = 0;
      alone.sequence_parallel = false;
      machine = std::make_unique<Machine>(alone, RankInfo{}, WithoutLibraries::use_cpu);
      most_flops = machine->most_flops();
      return;
    }
    const GpuSpec& description = find_gpu(gpu);
    described = describe(description);
    if (!mesh) mesh = std::make_unique<ProcessMesh>(make_single(*described.device), mesh_sizes(config, 1));
    network = {description.link_bytes, description.network_bytes, kGpusPerNode};
    const Recipe recipe = make_recipe(name_of(config.precision), DType::f32);
    limits = limits_of(description, config.model.head_dim, config.seq_length, recipe);
    most_flops = description.peak_flops(recipe.compute);
  }
  Backend backend() const {
    if (!machine) return {*described.device, *described.ops, *mesh, described.tuning, nullptr, network};
    const Backend here = machine->backend();
    return mesh ? Backend{here.device, here.ops, *mesh, here.tuning, nullptr, here.network} : here;
  }
  std::string title() const { return machine ? machine->description() : described.device->description(); }

  std::unique_ptr<Machine> machine;
  DescribedBackend described;
  std::unique_ptr<ProcessMesh> mesh;  // null: the mesh of this machine
  Roofline limits;                    // limits of a described GPU
  Network network;                    // network of a described GPU
  double most_flops = 0;              // upper bound of FLOP/s, for MFU
};

// Work of a step: FLOPs of one rank, tokens of all ranks, and the peak FLOP/s that MFU refers to.
struct Demand {
  double flops, tokens, peak;
  int64_t steps;
};

// Prints the traffic of weights and gradients of FSDP units in host memory, and the micro-batch sizes whose computation
// hides it.
void print_units(const Engine& engine, const Roofline& limits, const OffloadTime& time, double least) {
  const UnitTraffic& t = engine.unit_traffic();
  if (t.forward.bytes == 0) return;
  print("units             ", format_bytes(uint64_t(t.forward.bytes + t.backward.bytes)), " of weights and ",
        format_bytes(uint64_t(t.gradients.bytes)), " of gradients to the GPU and ",
        format_bytes(uint64_t(t.gradients_out)), " back in each micro-batch, no gradients to the GPU in the first");
  if (time.units <= 0) {
    print("; the host link's rate is unknown for this GPU\n");
    return;
  }
  std::printf("; %.3f ms of a step at %s B/s each way at once, of which %.3f ms, %.1f %% of the step, are not hidden\n",
              time.units * 1e3, format_count(limits.host_bytes).c_str(), time.units_exposed * 1e3,
              100 * time.units_exposed / least);
  const double from = std::ceil(time.hiding_micro_batch * double(engine.options().micro_batch_size));
  if (std::isinf(from))
    print("                  no micro-batch overlaps them with its block inputs\n");
  else
    print("                  hidden from micro_batch_size ", std::max(1.0, from),
          " on, except the first unit of a pass\n");
}

// Prints the traffic of offloaded master weights and optimizer states, and the batch sizes whose computation hides it.
void print_offload(const Engine& engine, const Roofline& limits, const OffloadTime& time, double least, double end) {
  constexpr double kShare = 0.05;
  const StateTraffic& bytes = engine.state_traffic();
  if (engine.offloaded_inputs() > 0)
    print("block inputs      ", format_bytes(engine.offloaded_inputs()), " to the host and back in each micro-batch",
          time.inputs == 0 ? "; the host link's rate is unknown for this GPU"
          : time.units > 0 ? cat(", ", format_duration(time.inputs), " of a step each way, with the units")
                           : cat(", ", format_duration(time.inputs), " of a step each way, of which ",
                                 format_duration(time.inputs_exposed), " are not hidden"),
          "\n");
  print_units(engine, limits, time, least);
  if (bytes.in == 0) return;
  print("host link         ", format_bytes(uint64_t(bytes.in)), " to the GPU and ", format_bytes(uint64_t(bytes.out)),
        " back in each step");
  if (time.link == 0) {
    print("; the host link's rate is unknown for this GPU\n");
    return;
  }
  const EngineOptions& o = engine.options();
  std::printf(", %.3f ms at %s B/s each way at once, of which %.3f ms, %.1f %% of the step, are not hidden\n",
              time.link * 1e3, format_count(limits.host_bytes).c_str(), time.exposed * 1e3, 100 * time.exposed / least);
  const double batch = hiding_batch(time, kShare, double(o.global_batch_size), least - end, end - time.exposed);
  const auto once = double(o.micro_batch_size * engine.ranks());
  std::printf("                  at most %.0f %% of a step from global_batch_size %lld on\n", 100 * kShare,
              static_cast<long long>(std::max(1.0, std::ceil(batch / once)) * once));
}

void print_limit(const Engine& engine, const Roofline& limits, const Demand& run) {
  const double own = least_sum(planned_rows(engine, limits)), launches = least_update_seconds(engine, limits);
  const OffloadTime offload = offload_time(engine, limits);
  const double exposed = offload.exposed, update = launches + exposed;
  const double least = own + (own - launches) * (with_waits(engine.stage().program()) - 1) + exposed +
                       offload.inputs_exposed + offload.units_exposed;
  const std::string words = least >= 10 ? cat(" (", format_duration(least), ")") : "";
  std::printf("predicted step    %.*f ms%s or more, %s tokens/s and %.0f %% MFU of %s FLOP/s at most (%s)\n",
              least >= 1 ? 0 : 3, least * 1e3, words.c_str(), format_count(run.tokens / least).c_str(),
              100 * run.flops / least / run.peak, format_count(run.peak).c_str(),
              rates_in_words(limits.most, engine).c_str());
  if (engine.options().documents_per_sequence > 1)
    print("                  documents count as whole sequences in attention; shorter ones are faster\n");
  std::printf("of which the end  %.3f ms, %.1f %%: norm, clipping and the optimizer\n", update * 1e3,
              100 * update / least);
  print_offload(engine, limits, offload, least, update);
  print("predicted run     ", format_duration(least * double(run.steps)), " or more for all ", run.steps,
        " steps, without evaluation and checkpoints\n");
}

// The keys that determine the number of ranks of a plan.
const char* sizes_of(const Config& c) {
  if (c.pipeline_parallel_size > 1) return "pipeline_parallel_size and the other sizes of groups say";
  if (c.data_parallel_replicate_size > 1 || c.data_parallel_shard_size > 1)
    return "data_parallel_replicate_size and the other sizes of groups say";
  if (c.expert_parallel_size > 1) return "expert_parallel_size says";
  if (c.context_parallel_size == 1) return "tensor_parallel_size says";
  return c.tensor_parallel_size == 1 ? "context_parallel_size says"
                                     : "tensor_parallel_size and context_parallel_size say";
}

void print_context(const Config& config, const Backend& backend, Engine& engine, const Roofline& limits) {
  const auto traffic_of = [&](const Engine& e) {
    return step_traffic(e, backend.mesh, backend.network, backend.device.unified() ? nullptr : &limits);
  };
  const auto figures = [&](Engine& e) {
    const StepTraffic traffic = traffic_of(e);
    const double compute = least_sum(planned_rows(e, limits));
    return context_figures(
        e, traffic, compute + traffic.exposed(compute, double(e.micro_batches()), min_update_gemm_seconds(e, limits)));
  };
  print("sent for context  ", format_bytes(uint64_t(traffic_of(engine).context.bytes)),
        " in a rank's step: keys, values and their gradients\n");
  print(context_text(figures(engine), config.context_parallel_size, [&](ContextMethod other) {
    Config c = config;
    c.context_parallel_method = other;
    return figures(*make_engine(c, backend, true));
  }));
}

void print_teacher(const Config& config, const Engine& engine) {
  if (!config.teacher.empty())
    print("teacher           ", format_count(double(parameter_count(engine.options().teacher->model))),
          " parameters on each rank", config.pipeline_parallel_size > 1 ? " of the last stage" : "", ", in ",
          name_of(engine.options().recipe.compute), "\n");
  if (config.teacher_logits.empty()) return;
  const LogitCacheInfo info = read_logit_cache_info(config.teacher_logits);
  print("teacher logits    ", info.top_k, " of ", info.vocab_size, " at each position, ",
        format_bytes(uint64_t(config.global_batch_size * info.record_bytes())), " read in a step\n");
}

Exit plan(const PlanArgs& args) {
  const Config config = load_config_logged(args.config, args.overrides);
  if ((args.drawing.text || !args.drawing.svg.empty()) && config.pipeline_parallel_size == 1)
    throw Error(cat(args.drawing.text ? "--schedule" : "--schedule-svg",
                    ": draws the stages of a pipeline; pipeline_parallel_size is 1, set it to 2 or more"),
                Exit::usage);
  const Place place(config, args.gpu);
  const Backend backend = place.backend();
  const auto engine = make_engine(config, backend, true);
  const ParamStore& params = engine->model().params();
  const FlopCount flops = flops_per_token(*engine, config.seq_length);
  const double tokens = double(config.global_batch_size * config.seq_length);
  print(place.title(), "\n");
  print("parameters        ", format_count(double(params.parameter_count())), " (", params.parameter_count(), ")\n");
  if (config.model.num_experts > 0)
    print("active parameters ", format_count(double(active_parameter_count(config.model))), " (",
          active_parameter_count(config.model), "): a token meets ", config.model.num_experts_per_tok, " of ",
          config.model.num_experts, " experts\n");
  print_teacher(config, *engine);
  print("FLOP per token    ", format_count(flops.causal), " causal, ", format_count(flops.full), " full count\n");
  print("FLOP per step     ", format_count(flops.causal * tokens), " over ", format_count(tokens), " tokens\n");
  print("tokens in all     ",
        format_count(double(samples_after(config, config.train_iters)) * double(config.seq_length)), " in ",
        config.train_iters, " steps\n");
  print("micro-batches     ", engine->micro_batches(), " of ", engine->options().micro_batch_size, " sequences of ",
        config.seq_length, " tokens\n");
  const int64_t multiple = backend.device.dimension_multiple();
  for (const DimensionAdvice& advice : dimension_advice(config.model, config.seq_length, multiple))
    print("advice            ", to_text(advice, multiple), "\n");
  if (engine->devices() > 1)
    print("ranks             ", engine->devices(), ", as ", sizes_of(config),
          "; memory, operations and launches are of one\n");
  if (config.pipeline_parallel_size > 1) print_pipeline(config, backend, *engine, args.drawing);
  const Recipe& recipe = engine->options().recipe;
  const Roofline limits =
      place.machine ? Roofline{.most = ceilings(backend, recipe.compute, recipe.low_precision())} : place.limits;
  if (config.context_parallel_size > 1) print_context(config, backend, *engine, limits);
  print("recomputation     ", to_text(engine->options().recompute), "\n");
  print_limit(*engine, limits,
              {.flops = flops.causal * tokens / engine->devices(),
               .tokens = tokens,
               .peak = mfu_peak(config, backend, recipe.compute, place.most_flops),
               .steps = config.train_iters});
  print_memory(config, *engine, backend.device);
  print(precision_text(*engine, backend, limits), "launches per micro-batch: ", engine->micro_launches().size(), "\n\n",
        op_table(planned_rows(*engine, limits, args.by_shape), 1, 0));
  return Exit::done;
}

void print_forecast_json(const Config& config, const Cluster& on) {
  print(to_json(config, on, forecast(RankPlan(config, on)), 1), "\n");
}

// Adds the flags of --simulate.
void add_cluster(Verb& verb, ClusterArgs& args) {
  ClusterRun& run = args.run;
  run.save_every = 0;
  verb.add_flag("--simulate", args.simulate,
                "simulate the run on a cluster with failing GPUs: effective training time, best save interval, benefit "
                "of spare nodes");
  const auto number = [&](const char* flag, auto& value, const char* help, auto least, auto most) {
    verb.add_option(flag, value, help).check(in_range(least, most)).needs("--simulate");
  };
  number("--gpus", run.gpus, "GPUs of the cluster; default: 8", 1, 1 << 22);
  number("--gpus-per-node", run.gpus_per_node, "GPUs lost in one failure; default: 8", 1, 1 << 10);
  number("--days", run.days, "length of the run; default: 7", 0.01, 1e4);
  number("--mtbf-hours", run.mtbf_hours,
         "mean hours between two failures of one GPU, with its share of everything else; default: 50000", 1.0, 1e12);
  number("--save-every", run.save_every,
         "seconds of training between saves; default: checkpoint.interval_minutes, else the best", 1.0, 1e9);
  number("--save-stall", run.save_stall, "seconds that a save stops training; default: 30", 0.001, 1e6);
  number("--save-write", run.save_write, "seconds from the start of a save until it is durable; default: the stall",
         0.0, 1e6);
  number("--detection", run.detection, "seconds until a failure is noticed; default: 60", 0.0, 1e6);
  number("--restart", run.restart, "seconds from then until training goes on; default: 300", 0.0, 1e6);
  number("--repair-hours", run.repair_hours, "until a node that failed can be used again; default: 24", 0.0, 1e5);
  number("--repair-share", run.repair_share, "of the failures, those that need a repair; default: 1", 0.0, 1.0);
  number("--spares", run.spares, "nodes that wait for failures; default: always enough", 0, 1 << 20);
  number("--courses", args.courses, "how many courses are played for a mean; default: 64", 1, 10000);
}

}  // namespace

void add_plan(Cli& cli) {
  auto args = std::make_shared<PlanArgs>();
  Verb verb = cli.app.add_verb("plan", "predict memory, parameters, FLOPs and step time of a run without running it");
  verb.add_option("config", args->config, "configuration file").required();
  verb.add_option("--set", args->overrides, "override a key: a.b=value (may repeat)").one_value();
  verb.add_option("--gpu", args->gpu,
                  "plan for this GPU, which need not be installed: h200, h100, a100, b200 or rtx4090");
  verb.add_flag("--shapes", args->by_shape, "operations by shape");
  verb.add_flag(
      "--schedule", args->drawing.text,
      "draw the pipeline schedule: the micro-batches of each stage over time, with backward twice as long as forward");
  verb.add_option("--schedule-svg", args->drawing.svg, "write the pipeline schedule as an SVG picture to this file");
  verb.add_option("--ranks", args->many.ranks,
                  "predict memory, traffic and step time for this many ranks of --gpu; 0: a table from 1 to 1024; "
                  "without --gpu: ranks on this machine's CPU")
      .check(in_range(0, 65536));
  const auto of_gpus = [&verb](const char* flag, auto& value, const char* help, auto least, auto most) {
    verb.add_option(flag, value, help).check(in_range(least, most)).needs("--ranks").needs("--gpu");
  };
  of_gpus("--nodes", args->many.nodes,
          "number of machines; default: the fewest that divide the ranks, with up to 8 GPUs each", 1, 65536);
  verb.add_option("--link", args->many.link,
                  "GB/s per GPU and direction within a machine; default: from its data sheet")
      .check(in_range(0.001, 1e6))
      .needs("--ranks");
  of_gpus("--network", args->many.network,
          "GB/s per GPU and direction between machines; default: one network card per GPU", 0.001, 1e6);
  of_gpus("--bandwidth-share", args->many.bandwidth_share,
          "fraction of the bandwidths that collectives reach; default: 0.8", 0.001, 1.0);
  of_gpus("--latency", args->many.latency, "latency of an empty collective in microseconds; default: 20", 0.0, 1e6);
  of_gpus("--doubling-latency", args->many.doubling_latency,
          "additional latency in microseconds per doubling of ranks; default: 5", 0.0, 1e6);
  verb.add_option("--assume", args->many.assume,
                  "override an assumption of the expected step, name=value, see docs/distributed.md (may repeat)")
      .one_value()
      .needs("--ranks");
  verb.add_flag("--json", args->search.json,
                "print the prediction for --ranks (expected value, range, sensitivities), or with --search the best "
                "meshes, as one JSON object")
      .needs("--ranks");
  verb.add_flag("--search", args->search.search,
                "search the fastest configurations for --ranks: zero_stage, replicas, tensor, context and pipeline "
                "parallelism, micro-batch and recomputation, with memory, MFU and cost");
  verb.add_option("--price", args->search.price, "price of a GPU-hour, for the cost per billion tokens")
      .check(positive())
      .needs("--search");
  verb.add_option("--write", args->search.write, "write the config of the fastest to this new file").needs("--search");
  add_cluster(verb, args->cluster);
  verb.on_chosen([&cli, args] {
    cli.action = [args] {
      if (args->cluster.simulate) {
        if (args->many.ranks >= 0 || !args->gpu.empty())
          throw Error("plan --simulate: does not use --ranks or --gpu; give the number of GPUs with --gpus",
                      Exit::usage);
        print_cluster(load_config_logged(args->config, args->overrides), args->cluster);
        return Exit::done;
      }
      if (args->search.search && args->many.ranks <= 0)
        throw Error("plan --search: needs the number of GPUs; give it with --ranks, at least 1", Exit::usage);
      if (args->search.json && args->many.ranks == 0)
        throw Error("plan --json: needs one number of ranks, and --ranks 0 prints a table; give --ranks 1 or more",
                    Exit::usage);
      if (args->many.ranks < 0) return plan(*args);
      const Config config = load_config_logged(args->config, args->overrides);
      const SearchArgs& search = args->search;
      if (args->gpu.empty()) {
        if (search.search)
          throw Error("plan --search: works only for a described GPU; name one with --gpu", Exit::usage);
        print_ranks_here(config, args->many, search.json);
        return Exit::done;
      }
      if (search.json && !search.search)
        print_forecast_json(config, args->many.cluster(find_gpu(args->gpu), args->many.ranks));
      else if (search.search)
        print_search(config,
                     search.json ? args->many.cluster(find_gpu(args->gpu), args->many.ranks)
                                 : print_cluster_of(config, args->gpu, args->many),
                     search);
      else
        print_many_ranks(config, args->gpu, args->many);
      return Exit::done;
    };
  });
}

}  // namespace athanor
