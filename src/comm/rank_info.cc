#include "comm/rank_info.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"

namespace athanor {
namespace {

constexpr int kDefaultPort = 29500;  // torchrun's default port
// Ports above Linux' ephemeral range (32768 to 60999), for jobs whose launcher sets none.
constexpr int kFirstJobPort = 61000, kJobPorts = 4500;
constexpr int64_t kMaxHosts = 1 << 16;

[[noreturn]] void refuse(const std::string& text) { throw Error(text, Exit::usage); }

std::optional<int64_t> parse_number(const std::string& text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

class Variables {
 public:
  explicit Variables(const EnvironmentVariables& all) : all_(all) {}
  bool has(const char* name) const { return all_.contains(name) && !all_.at(name).empty(); }
  std::string text(const char* name) const { return has(name) ? all_.at(name) : ""; }
  int number(const char* name) const {
    if (!has(name)) refuse(cat(name, " is not set, though other variables of its launcher are; set it"));
    const auto value = parse_number(text(name));
    if (!value || *value < 0 || *value > 1 << 24)
      refuse(cat(name, ": expected a number from 0, got \"", text(name), '"'));
    return int(*value);
  }
  int number_or(const char* name, int otherwise) const { return has(name) ? number(name) : otherwise; }

 private:
  const EnvironmentVariables& all_;
};

// A launcher's environment variables; local_size tells whether all ranks are on this machine.
struct Names {
  const char *launcher, *rank, *world, *local_rank, *local_size;
};
constexpr Names kEnvironment = {"RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
constexpr Names kOpenMpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Names kMpich = {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};

int job_port(const std::string& job) { return kFirstJobPort + int(stream_of(job) % uint64_t(kJobPorts)); }

RankInfo from(const Names& names, const Variables& v) {
  RankInfo r;
  r.launcher = names.launcher;
  r.rank = v.number(names.rank);
  r.world = v.number(names.world);
  r.local_rank = v.number_or(names.local_rank, -1);
  if (v.number_or(names.local_size, -1) == r.world) r.host = "127.0.0.1";
  for (const char* id : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"})
    if (r.job.empty()) r.job = v.text(id);
  r.port = &names == &kEnvironment || r.job.empty() ? kDefaultPort : job_port(r.job);
  return r;
}

// True if this process runs inside a Slurm step, and not in a batch script, an interactive allocation's shell or an
// external step; those have pseudo step ids at the top of the range.
bool in_slurm_step(const Variables& v) {
  const auto step = parse_number(v.text("SLURM_STEP_ID"));
  return step && *step < 0xfffffff0;
}

// True if srun set the variables of MPICH, too, as it does with PMI-2: then Slurm's say the same and more.
bool srun_sets_pmi(const Variables& v) {
  return in_slurm_step(v) && v.text("PMI_RANK") == v.text("SLURM_PROCID") &&
         v.text("PMI_SIZE") == v.text("SLURM_STEP_NUM_TASKS");
}

RankInfo from_slurm(const Variables& v) {
  RankInfo r;
  r.launcher = "Slurm";
  r.rank = v.number("SLURM_PROCID");
  r.world = v.has("SLURM_STEP_NUM_TASKS") ? v.number("SLURM_STEP_NUM_TASKS") : v.number("SLURM_NTASKS");
  r.local_rank = v.number_or("SLURM_LOCALID", -1);
  r.job = cat(v.text("SLURM_JOB_ID"), ".", v.text("SLURM_STEP_ID"));
  r.port = job_port(r.job);
  const auto hosts = expand_host_list(v.text("SLURM_STEP_NODELIST"));
  if (!hosts.empty()) r.host = hosts.size() == 1 ? "127.0.0.1" : hosts[0];
  return r;
}

RankInfo from_flags(const RankFlags& flags) {
  if (flags.rank < 0 || flags.world < 0)
    refuse(cat("--rank and --world-size belong together; got only ", flags.rank < 0 ? "--world-size" : "--rank"));
  RankInfo r{.rank = flags.rank, .world = flags.world, .launcher = "flags"};
  r.port = kDefaultPort;
  return r;
}

RankInfo from_anyone(const RankFlags& flags, const Variables& v) {
  if (flags.rank >= 0 || flags.world >= 0) return from_flags(flags);
  if (v.has("RANK") || v.has("WORLD_SIZE")) return from(kEnvironment, v);
  if (v.has("OMPI_COMM_WORLD_SIZE")) return from(kOpenMpi, v);
  if (v.has("PMI_SIZE") && !srun_sets_pmi(v)) return from(kMpich, v);
  if (in_slurm_step(v)) return from_slurm(v);
  if (v.number_or("SLURM_NTASKS", 1) > 1)
    refuse(cat("this Slurm job has ", v.number("SLURM_NTASKS"),
               " tasks, but this process was not started by srun: did you forget srun? To run one process alone, unset "
               "SLURM_NTASKS"));
  if (v.has("PMIX_RANK"))
    refuse(
        "PMIX_RANK is set, but no variable gives the number of ranks; set RANK, WORLD_SIZE, MASTER_ADDR and "
        "MASTER_PORT");
  return {};
}

// The bracket group that ends a host name: [1-3,07].
std::vector<std::string> expand_group(const std::string& group, const std::string& list) {
  std::vector<std::string> out;
  for (size_t at = 0; at <= group.size();) {
    const size_t comma = std::min(group.find(',', at), group.size());
    const std::string range = group.substr(at, comma - at);
    const size_t dash = range.find('-');
    const std::string low = range.substr(0, dash), high = dash == std::string::npos ? low : range.substr(dash + 1);
    const auto first = parse_number(low), last = parse_number(high);
    if (!first || !last || *first < 0 || *first > *last || *last - *first + int64_t(out.size()) >= kMaxHosts)
      refuse(cat("host list \"", list, "\": expected numbers and ranges in brackets, got \"", range, '"'));
    for (int64_t n = *first; n <= *last; ++n) {
      std::string digits = std::to_string(n);
      if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
      out.push_back(std::move(digits));
    }
    at = comma + 1;
  }
  return out;
}

// Expands one entry of the list, its groups from left to right.
std::vector<std::string> expand_entry(const std::string& entry, const std::string& list) {
  std::vector<std::string> names = {""};
  for (size_t at = 0; at < entry.size();) {
    const size_t open = std::min(entry.find('[', at), entry.size());
    for (std::string& name : names) name += entry.substr(at, open - at);
    if (open == entry.size()) break;
    const size_t close = entry.find(']', open);
    if (close == std::string::npos) refuse(cat("host list \"", list, "\": a bracket is not closed"));
    std::vector<std::string> longer;
    for (const std::string& name : names)
      for (const std::string& number : expand_group(entry.substr(open + 1, close - open - 1), list))
        longer.push_back(name + number);
    if (int64_t(longer.size()) > kMaxHosts) refuse(cat("host list \"", list, "\": too many hosts"));
    names = std::move(longer);
    at = close + 1;
  }
  return names;
}

}  // namespace

EnvironmentVariables process_environment() {
  EnvironmentVariables all;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text = *entry;
    if (const size_t equals = text.find('='); equals != std::string::npos)
      all[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return all;
}

RankInfo find_ranks(const RankFlags& flags, const EnvironmentVariables& environment) {
  const Variables v(environment);
  RankInfo r = from_anyone(flags, v);
  if (flags.local_rank >= 0) r.local_rank = flags.local_rank;
  if (r.world < 1 || r.rank >= r.world)
    refuse(cat(r.launcher, ": rank ", r.rank, " of ", r.world, " ranks does not exist; ranks count from 0"));
  if (r.launcher.empty() && !flags.rendezvous.empty())
    refuse(
        "--rendezvous: nothing gives the rank of this process; add --rank and --world-size, or start it with a "
        "launcher");
  if (r.world == 1) return r;
  if (v.has("MASTER_ADDR")) r.host = v.text("MASTER_ADDR");
  if (v.has("MASTER_PORT")) {
    r.port = v.number("MASTER_PORT");
    // torchrun's agent listens on that port itself.
    if (v.text("TORCHELASTIC_USE_AGENT_STORE") == "True") ++r.port;
  }
  if (r.rank == 0 && flags.rank < 0 && flags.rendezvous.empty()) r.listener = v.number_or("ATHANOR_LISTENER", -1);
  if (!flags.rendezvous.empty()) {
    const Endpoint e = parse_endpoint(flags.rendezvous);
    r.host = e.host, r.port = e.port;
  }
  if (r.host.empty())
    refuse(cat(r.launcher, ": ", r.world,
               " ranks, but no variable gives the rendezvous address; set MASTER_ADDR to a name or address ",
               "of rank 0's machine (127.0.0.1 if all ranks are on one machine) and MASTER_PORT to a free port there"));
  if (r.port < 1 || r.port > 65535) refuse(cat("rendezvous port: expected 1 to 65535, got ", r.port));
  return r;
}

std::vector<std::string> expand_host_list(const std::string& list) {
  std::vector<std::string> hosts;
  int depth = 0;
  size_t begin = 0;
  for (size_t at = 0; at <= list.size(); ++at) {
    if (at < list.size() && list[at] == '[') ++depth;
    if (at < list.size() && list[at] == ']') --depth;
    if (at < list.size() && (list[at] != ',' || depth > 0)) continue;
    if (at > begin)
      for (std::string& host : expand_entry(list.substr(begin, at - begin), list)) hosts.push_back(std::move(host));
    begin = at + 1;
  }
  return hosts;
}

Endpoint parse_endpoint(const std::string& text) {
  const size_t colon = text.rfind(':');
  Endpoint e;
  if (colon != std::string::npos) {
    e.host = text.substr(0, colon);
    const auto port = parse_number(text.substr(colon + 1));
    if (port && *port >= 1 && *port <= 65535) e.port = int(*port);
  }
  if (e.host.size() >= 2 && e.host.front() == '[' && e.host.back() == ']')
    e.host = e.host.substr(1, e.host.size() - 2);
  else if (e.host.find(':') != std::string::npos)
    e.port = 0;  // an IPv6 address without brackets: the port is ambiguous
  if (e.host.empty() || e.port == 0) refuse(cat("rendezvous: expected HOST:PORT or [IPV6]:PORT, got \"", text, '"'));
  return e;
}

std::string loopback_address(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  if (host == "localhost") return "127.0.0.1";
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127 ? host : "";
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6) ? "::1" : "";
  return "";
}

bool is_loopback(const std::string& host) { return !loopback_address(host).empty(); }

std::string value_of(const EnvironmentVariables& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

std::string boot_id() {
  try {
    const std::string text = read_file("/proc/sys/kernel/random/boot_id", 4096);
    return text.substr(0, text.find('\n'));
  } catch (const Error&) {
    return "";
  }
}

}  // namespace athanor
