#include "command/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <tuple>
#include <utility>

#include "base/log.h"
#include "base/process_mark.h"
#include "base/version.h"
#include "comm/rendezvous.h"
#include "comm/secret.h"
#include "comm/tcp.h"
#include "command/rank_gpus.h"
#include "cpu/cores.h"
#include "cpu/make_cpu.h"
#include "cpu/peak.h"
#include "cpu/thread_pool.h"
#include "cuda/make_cuda.h"
#include "device/gpu_specs.h"
#include "train/setup.h"
#include "train/tuning_cache.h"

namespace athanor {
namespace {

constexpr double kSecondsToExplain = 3;  // time for the rendezvous to name a lost rank; heartbeats arrive once a second

double seconds_to_connect(const Config& config) {
  return config.distributed_timeout > 0 ? config.distributed_timeout : config.startup_timeout;
}

// NCCL's own timeout is for failures that the rendezvous cannot explain: it lasts longer than any wait that the
// rendezvous allows, unless timeouts.connect sets it.
double seconds_in_nccl(const Config& config) {
  if (config.distributed_timeout > 0) return config.distributed_timeout + kSecondsToExplain;
  return kSecondsToExplain +
         std::max({config.startup_timeout, config.step_timeout, config.eval_timeout, config.save_timeout});
}

// Typical rates, since nothing is measured: links of an H200; for CPUs, memory and 10 Gbit/s Ethernet.
Network between_gpus() {
  const GpuSpec& gpu = find_gpu("h200");
  return {.link_bytes = gpu.link_bytes, .network_bytes = gpu.network_bytes};
}
constexpr Network kBetweenCpus{.link_bytes = 5e9, .network_bytes = 1.25e9};

// True if the machine has an NVIDIA card, with or without a driver.
bool has_nvidia_card() {
  std::error_code ignored;
  if (std::filesystem::exists("/proc/driver/nvidia", ignored)) return true;
  for (const auto& card : std::filesystem::directory_iterator("/sys/bus/pci/devices", ignored)) {
    try {
      if (read_file(card.path() / "vendor", 64) == "0x10de\n" &&
          read_file(card.path() / "class", 64).starts_with("0x03"))
        return true;          // PCI class 03: display and 3D controllers
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): then it is no card
    }
  }
  return false;
}

// Logs why no GPU is used if one is expected; in other cases the description of the CPU is enough.
bool wants_gpu(DeviceChoice choice, WithoutLibraries otherwise) {
  if (choice != DeviceChoice::automatic) return choice == DeviceChoice::cuda;
  std::string why = why_no_cuda();
  if (!why.empty()) {
    log::write(has_nvidia_card() ? log::Level::info : log::Level::debug, cat("device: using the CPU; ", why));
    return false;
  }
  if (otherwise == WithoutLibraries::refuse) return true;
  why = why_no_libraries();
  if (!why.empty()) log::warn("device: using the CPU, although there is a GPU; ", why);
  return why.empty();
}

// Identifies processes that share this machine's cores and memory: containers on different machines may have the same
// host name, and containers on one machine the same boot id.
std::string machine_identity() {
  std::error_code error;
  const auto mounts = std::filesystem::read_symlink("/proc/self/ns/mnt", error);
  return cat(host_name(), " ", boot_id(), " ", mounts.string());
}

void require_same_kind(Rendezvous& rendezvous, bool gpu) {
  const auto kinds = rendezvous.exchange("device", gpu ? "cuda" : "cpu");
  for (size_t r = 1; r < kinds.size(); ++r)
    if (kinds[r] != kinds[0])
      throw Error(cat("device: rank 0 uses ", kinds[0], ", rank ", r, " ", kinds[r], "; set device to one of them"),
                  Exit::usage);
}

bool may_share_gpus() {
  const char* setting = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");  // NCCL's own variable
  return setting && std::string(setting) == "1";
}

// Warns about features that have only run on the emulated GPU, and names settings to compare their results with.
void warn_of_shared_steps(const Config& config) {
  for (const auto& [key, size, what] :
       {std::tuple{"tensor_parallel_size", config.tensor_parallel_size, "share the GEMMs of a layer"},
        {"context_parallel_size", config.context_parallel_size, "share sequences"},
        {"pipeline_parallel_size", config.pipeline_parallel_size, "are stages of a pipeline"},
        {"expert_parallel_size", config.expert_parallel_size, "have other experts"}})
    if (size > 1)
      log::warn(key, " ", size, ": ranks that ", what,
                " are unverified on GPUs; compare the losses of a few steps with ", key, " 1, or with device cpu");
}

void end_process(const std::string& why) {
  log::error(why);
  std::_Exit(int(Exit::peer_lost));
}

}  // namespace

std::unique_ptr<Communicator> Machine::connect(const std::string& name) const {
  const EnvironmentVariables environment = process_environment();
  return make_tcp(*rendezvous_, value_of(environment, "ATHANOR_SOCKET_IFNAME"),
                  value_of(environment, "ATHANOR_SHM_DISABLE") != "1", name);
}

void Machine::meet(const Config& config, const RankInfo& ranks) {
  const EnvironmentVariables environment = process_environment();
  log::info("rank ", ranks.rank, " of ", ranks.world, " (", ranks.launcher, "): rendezvous at ", ranks.host, " port ",
            ranks.port);
  secret_ = std::make_unique<JobSecret>(ranks, environment, config.save);
  const std::string interfaces = value_of(environment, "ATHANOR_SOCKET_IFNAME");
  rendezvous_ =
      std::make_unique<Rendezvous>(RendezvousOptions{.ranks = ranks,
                                                     .key = [this] { return secret_->read(); },
                                                     .listening = [this](int port) { secret_->publish(port); },
                                                     .awaited_file = secret_->awaited_file(),
                                                     .timeout = seconds_to_connect(config),
                                                     .timeouts = {.startup = config.startup_timeout,
                                                                  .step = config.step_timeout,
                                                                  .evaluation = config.eval_timeout,
                                                                  .saving = config.save_timeout,
                                                                  .silence = config.heartbeat_timeout},
                                                     .last_resort = end_process,
                                                     .interfaces = interfaces});
  secret_->remove();  // all ranks have connected
}

Machine::Neighbours Machine::find_neighbours() const {
  if (!rendezvous_) return {};
  Neighbours here{.index = 0, .count = 0};
  const std::string me = machine_identity();
  const auto all = rendezvous_->exchange("machine", me);
  for (int r = 0; r < rendezvous_->size(); ++r) {
    if (all[size_t(r)] != me) continue;
    if (r == rendezvous_->rank()) here.index = here.count;
    ++here.count;
  }
  log::info("all ", rendezvous_->size(), " ranks have joined, ", here.count, " of them on this machine");
  return here;
}

void Machine::open_cpu(const Config& config, const Neighbours& here) {
  // The ranks of a machine share its cores and memory.
  const int threads =
      config.threads > 0 || here.count == 1 ? int(config.threads) : std::max(1, usable_cores() / here.count);
  CpuBackend cpu =
      make_cpu({.threads = threads, .memory_limit = here.count == 1 ? 0 : usable_memory() / size_t(here.count)});
  device_ = std::move(cpu.device);
  ops_ = std::move(cpu.ops);
  threads_ = cpu.threads;
  most_flops_ = peak_flops(threads_, make_recipe(name_of(config.precision), DType::f32).compute);
  description_ = std::move(cpu.description);
}

void Machine::open_gpu(const Config& config, const RankInfo& ranks, const Neighbours& here) {
  // Attention plans and autotune results are for a single window.
  const bool changes = !config.sliding_window_schedule.empty();
  CudaOptions options{.attention = changes ? CudaAttention::builtin : config.attention,
                      .tokens = config.seq_length,
                      .documents = config.context_parallel_size == 1,  // with context parallelism, queries attend to
                                                                       // keys of other ranks' chunks
                      .programmatic_launch = config.programmatic_launch,
                      .host_memory = available_memory() / size_t(std::max(1, here.count)),
                      .plan_folder = tuning_folder(config.tuning_cache)};
  std::string attention;  // rank 0's choice; all ranks use the same kernels, since kernels round differently
  if (rendezvous_) {
    options.index = claim_gpu(ranks.local_rank >= 0 ? ranks.local_rank : here.index);
    if (ranks.rank > 0) attention = rendezvous_->exchange("attention", "")[0];
    options.cudnn = ranks.rank == 0 || !attention.empty();
  }
  CudaBackend cuda = make_cuda(options);
  if (rendezvous_ && ranks.rank == 0) attention = rendezvous_->exchange("attention", cuda.attention)[0];
  if (rendezvous_ && cuda.attention != attention)
    throw Error(cat("attention: rank 0 has ", attention, ", rank ", ranks.rank, " ",
                    cuda.attention.empty() ? "none" : cuda.attention,
                    "; install the same on all machines, or set attention to builtin"));
  device_ = std::move(cuda.device);
  ops_ = std::move(cuda.ops);
  tuning_ = cuda.tuning;
  sensors_ = std::move(cuda.sensors);
  description_ = std::move(cuda.description);
}

int Machine::claim_gpu(int local_rank) {
  const std::vector<GpuReport> gpus = list_gpus();
  const int index = choose_gpu(int(gpus.size()), local_rank, may_share_gpus());
  const GpuReport& mine = gpus[size_t(index)];
  std::vector<RankGpu> all;
  for (const std::string& text : rendezvous_->exchange("gpu", to_text({host_name(), mine.name, mine.uuid})))
    all.push_back(parse_rank_gpu(text));
  if (!may_share_gpus()) require_own_gpus(all);
  roll_call_ = roll_call(all);
  return index;
}

std::unique_ptr<Communicator> Machine::connect_gpus(const Config& config, const RankInfo& ranks) {
  Rendezvous& r = *rendezvous_;
  NcclTransport nccl = make_nccl(*device_,
                                 {.place = [&r] { return r.where(); },
                                  .timeout = [limit = seconds_in_nccl(config)] { return limit; },
                                  .fail = [&r](const std::string& why) { r.fail(why); },
                                  .failure = [&r] { return r.failure(); },
                                  .progress = [&r](uint64_t begun, bool inside) { r.device_waits(begun, inside); }},
                                 control_->split(0, ranks.rank));
  description_ += cat(", NCCL ", nccl.version, "; ", roll_call_);
  return std::move(nccl.world);
}

Machine::Machine(const Config& config, const RankInfo& ranks, WithoutLibraries otherwise) {
  // Refuses invalid configurations, as far as possible, before waiting for other ranks.
  const auto mesh = mesh_sizes(config, ranks.world);
  const bool gpu = wants_gpu(config.device, otherwise);
  if (const std::string why = gpu ? why_no_cuda() : ""; !why.empty())
    throw Error(cat("device cuda: ", why), Exit::usage);
  if (gpu && ranks.rank == 0) warn_of_shared_steps(config);
  if (ranks.world > 1) meet(config, ranks);
  run([&] {
    if (rendezvous_) control_ = connect("tcp");
    const Neighbours here = find_neighbours();
    if (rendezvous_) require_same_kind(*rendezvous_, gpu);
    gpu ? open_gpu(config, ranks, here) : open_cpu(config, here);
    auto world = !control_ ? make_single(*device_) : gpu ? connect_gpus(config, ranks) : control_->split(0, ranks.rank);
    const bool background = mesh.delayed && mesh.workers > 1 && !gpu;
    if (background) control_->barrier();  // ranks with another configuration make another call, which is reported
    mesh_ = std::make_unique<ProcessMesh>(observed(std::move(world), collectives_), mesh,
                                          background ? connect("tcp of deltas") : nullptr);
    network_ = gpu ? between_gpus() : kBetweenCpus;
    network_.per_machine = here.count;
  });
}

Machine::~Machine() = default;

FoundProfiler Machine::open_profiler() const {
  if (device_->unified()) return {};
  try {
    return {make_cuda_profiler(), ""};
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

void Machine::doing(Activity activity, int64_t step) {
  if (rendezvous_) rendezvous_->doing(activity, step);
}

void Machine::run(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    throw rendezvous_ ? rendezvous_->first_error(e) : e;
  }
}

Config load_config_logged(const std::string& path, const std::vector<std::string>& overrides, int rank) {
  std::vector<std::string> notices;
  Config config = load_config(path, overrides, &notices);
  log::configure({.level = rank == 0 ? config.log_level : std::max(config.log_level, log::Level::warn), .rank = rank});
  for (const std::string& notice : notices) log::info(notice);
  return config;
}

DeviceChoice device_of(const std::string& word) {
  return word == "cpu" ? DeviceChoice::cpu : word == "cuda" ? DeviceChoice::cuda : DeviceChoice::automatic;
}

void add_rank_flags(Verb verb, RankFlags& ranks) {
  constexpr const char* kHeading = "Ranks (docs/distributed.md)";
  verb.add_option("--rank", ranks.rank, "rank of this process; default: from the launcher's variables")
      .group(kHeading)
      .check(non_negative());
  verb.add_option("--world-size", ranks.world, "number of processes of the job").group(kHeading).check(positive());
  verb.add_option("--rendezvous", ranks.rendezvous,
                  "HOST:PORT where rank 0 listens; default: MASTER_ADDR and MASTER_PORT")
      .group(kHeading);
}

void add_rates(Verb verb, std::vector<double>& given) {
  verb.add_option("--rates", given, "FLOP/s of GEMMs and B/s of copies to compare with; default: measured")
      .values(2)
      .check(positive());
}

// Given rates are for bf16. The other rates follow from data sheets: FP8 twice that of bf16, fp32 a fifteenth.
Ceilings given_or_measured(const std::vector<double>& given, Backend backend, const Recipe& recipe) {
  if (given.empty()) return measure_ceilings(backend, recipe.compute, recipe.low_precision());
  if (backend.device.unified()) return {given[0], given[1]};
  return {given[0], given[1], 2 * given[0], given[0] / 15};
}

void add_weights_option(Verb verb, std::string& word) {
  verb.add_option(
          "--weights", word,
          "linear layers except the head, on the CPU: precision = in the type of the precision; int8 = int8 weights "
          "and row-wise quantized activations; llm_int8 = int8 with activations of 6 and more kept in fp32")
      .show_default()
      .check(one_of({kWeightsAsPrecision, "int8", "llm_int8"}));
}

InferenceWeights inference_weights(const std::string& word, const Machine& machine) {
  if (word == kWeightsAsPrecision) return InferenceWeights::as_precision;
  if (machine.threads() == 0)
    throw Error(cat("--weights: ", word, " works only on the CPU, and this run is on ", machine.description(),
                    "; use --weights precision, or the CPU (eval: --set device=cpu; sample: CUDA_VISIBLE_DEVICES= in "
                    "the environment)"),
                Exit::usage);
  return word == "int8" ? InferenceWeights::int8 : InferenceWeights::llm_int8;
}

ProgramInfo program_info(const std::vector<std::string>& command_line) {
  const ProgramVersion v = program_version();
  return {.version = cat(v.version, " (", v.commit, ")"), .command = command_line, .libraries = {}};
}

}  // namespace athanor
