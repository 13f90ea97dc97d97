#include "command/machine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/log.h"
#include "base/version.h"
#include "comm/rendezvous.h"
#include "comm/secret.h"
#include "comm/tcp.h"
#include "cpu/cores.h"
#include "cpu/make_cpu.h"
#include "cpu/thread_pool.h"
#include "cuda/make_cuda.h"
#include "train/setup.h"

namespace athanor {
namespace {

CudaAttention to_cuda(AttentionChoice choice) {
  switch (choice) {
    case AttentionChoice::automatic:
      return CudaAttention::automatic;
    case AttentionChoice::builtin:
      return CudaAttention::builtin;
    case AttentionChoice::cudnn:
      return CudaAttention::cudnn;
  }
  return CudaAttention::automatic;
}

bool wants_gpu(DeviceChoice choice) {
  if (choice != DeviceChoice::automatic) return choice == DeviceChoice::cuda;
  const std::string why = why_no_cuda();
  if (!why.empty()) log::info("device: using the CPU; ", why);
  return why.empty();
}

// The same for all processes that share this machine's cores and memory: containers may share a host name, and several
// containers of one machine their boot id.
std::string machine_identity() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  std::string boot;
  try {
    boot = read_file("/proc/sys/kernel/random/boot_id", 4096);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the name alone then
  }
  std::error_code error;
  const auto mounts = std::filesystem::read_symlink("/proc/self/ns/mnt", error);
  return cat(host, " ", boot, " ", mounts.string());
}

void end_process(const std::string& why) {
  log::error(why);
  std::_Exit(int(Exit::peer_lost));
}

}  // namespace

Machine::Neighbours Machine::meet(const Config& config, const RankInfo& ranks) {
  if (ranks.world == 1) return {};
  const EnvironmentVariables environment = process_environment();
  log::info("rank ", ranks.rank, " of ", ranks.world, " (", ranks.launcher, "): meeting the others at ", ranks.host,
            " port ", ranks.port);
  secret_ = std::make_unique<JobSecret>(ranks, environment);
  rendezvous_ = std::make_unique<Rendezvous>(RendezvousOptions{.ranks = ranks,
                                                               .secret = [this] { return secret_->read(); },
                                                               .timeout = config.distributed_timeout,
                                                               .last_resort = end_process});
  const auto interfaces = environment.find("ATHANOR_SOCKET_IFNAME");
  control_ = make_tcp(*rendezvous_, interfaces == environment.end() ? "" : interfaces->second);
  Neighbours here{.index = 0, .count = 0};
  const std::string me = machine_identity();
  const auto all = rendezvous_->exchange("machine", me);
  for (int r = 0; r < ranks.world; ++r) {
    if (all[size_t(r)] != me) continue;
    if (r == ranks.rank) here.index = here.count;
    ++here.count;
  }
  log::info("all ", ranks.world, " ranks are there, ", here.count, " of them on this machine");
  return here;
}

Machine::Machine(const Config& config, const RankInfo& ranks) {
  // What can be refused is refused before anybody waits for others.
  const auto mesh = mesh_sizes(config, ranks.world);
  const bool gpu = wants_gpu(config.device);
  if (gpu && ranks.world > 1)
    throw Error(cat("device: several ranks run on CPUs only so far, these ", ranks.world,
                    " would take GPUs; set device to cpu, or start one rank"),
                Exit::usage);
  const Neighbours here = meet(config, ranks);
  if (gpu) {
    CudaBackend cuda = make_cuda(
        {.attention = to_cuda(config.attention), .tokens = config.reset_attention_mask ? 0 : config.seq_length});
    device_ = std::move(cuda.device);
    ops_ = std::move(cuda.ops);
    tuning_ = cuda.tuning;
    sensors_ = std::move(cuda.sensors);
    description_ = std::move(cuda.description);
  } else {
    // Ranks of one machine share its cores and memory.
    const int threads =
        config.threads > 0 || here.count == 1 ? int(config.threads) : std::max(1, usable_cores() / here.count);
    CpuBackend cpu = make_cpu({.threads = threads,
                               .memory_limit = here.count == 1 ? 0 : usable_memory() / size_t(here.count),
                               .onednn = config.cpu_gemm == CpuGemm::onednn});
    device_ = std::move(cpu.device);
    ops_ = std::move(cpu.ops);
    threads_ = cpu.threads;
    description_ = std::move(cpu.description);
  }
  mesh_ = std::make_unique<ProcessMesh>(control_ ? control_->split(0, ranks.rank) : make_single(*device_), mesh);
}

Machine::~Machine() = default;

void Machine::fail(const std::string& why) {
  if (rendezvous_) rendezvous_->fail(why);
}

Config load_config_logged(const std::string& path, const std::vector<std::string>& overrides, int rank) {
  std::vector<std::string> notices;
  Config config = load_config(path, overrides, &notices);
  log::configure({.level = rank == 0 ? config.log_level : std::max(config.log_level, log::Level::warn), .rank = rank});
  for (const std::string& notice : notices) log::info(notice);
  return config;
}

ProgramInfo program_info(const std::vector<std::string>& command_line) {
  const Version v = program_version();
  return {.version = cat(v.version, " (", v.commit, ")"), .command = command_line, .libraries = {}};
}

}  // namespace athanor
