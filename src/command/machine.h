// The machine a command runs on: backend and process mesh made from a config, and the other ranks of its job.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/observed.h"
#include "comm/rank_info.h"
#include "comm/rendezvous.h"
#include "command/options.h"
#include "config/config.h"
#include "device/profiler.h"
#include "device/sensors.h"
#include "engine/engine.h"
#include "metrics/environment.h"
#include "perf/roofline.h"

namespace athanor {

class JobSecret;

struct FoundProfiler {
  std::unique_ptr<Profiler> profiler;  // null: none
  std::string why_none;                // "" on the CPU, which needs none
};

// A GPU is there, but not the libraries to use it: training by the CPU instead would be no service.
enum class WithoutLibraries : uint8_t { refuse, use_cpu };

class Machine {
 public:
  // Meets the other ranks, if there are any. Throws Error(usage) when the config asks for a device that this program or
  // machine has not, Error(peer_lost) when ranks are missing.
  explicit Machine(const Config&, const RankInfo& = {}, WithoutLibraries = WithoutLibraries::refuse);
  ~Machine();
  Backend backend() { return {*device_, *ops_, *mesh_, tuning_, control_.get(), network_}; }
  int threads() const { return threads_; }  // threads of the CPU backend; else 0
  double most_flops() const {
    return most_flops_;
  }  // FLOP/s that the CPU never exceeds; 0 on a GPU, whose data sheet says it
  Sensors* sensors() const { return sensors_.get(); }  // sensors of the GPU; null: none
  FoundProfiler open_profiler() const;
  CollectiveWatch& collectives() { return collectives_; }  // watch of the mesh's collectives
  const std::string& description() const { return description_; }
  // What this rank begins, for those that wait for it.
  void doing(Activity, int64_t step);
  // Runs work that the other ranks wait for. On failure they get the error before anything is torn down. Throws
  // that, or another rank's failure that came first.
  void run(const std::function<void()>& work);

 private:
  struct Neighbours {  // ranks on this machine
    int index = 0, count = 1;
  };
  Neighbours meet(const Config&, const RankInfo&);
  void open_cpu(const Config&, const Neighbours&);
  void open_gpu(const Config&, const RankInfo&, const Neighbours&);
  int claim_gpu(int local_rank);  // its index; no other rank has it
  std::unique_ptr<Communicator> connect_gpus(const Config&, const RankInfo&);
  std::unique_ptr<JobSecret> secret_;
  std::unique_ptr<Rendezvous> rendezvous_;
  std::unique_ptr<Communicator> control_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Sensors> sensors_;
  Tuning* tuning_ = nullptr;
  int threads_ = 0;
  double most_flops_ = 0;
  std::string description_, roll_call_;
  CollectiveWatch collectives_;
  std::unique_ptr<ProcessMesh> mesh_;
  Network network_;
};

// Loads a config file with --set overrides; aliases and remarks go to the log, of rank 0 alone.
Config load_config_logged(const std::string& path, const std::vector<std::string>& overrides, int rank = 0);

// What --device says; shared by benchmarks that have no config.
DeviceChoice device_of(const std::string& word);

// --rank, --world-size, --rendezvous: what launchers' variables say.
void add_rank_flags(Verb, RankFlags&);

// --rates: FLOP/s of products and B/s of copies to compare with. The machine's own are measured where `given` is empty.
void add_rates(Verb, std::vector<double>& given);
Ceilings given_or_measured(const std::vector<double>& given, Backend, const Recipe&);

// What environment.json says of the program.
ProgramInfo program_info(const std::vector<std::string>& command_line);

}  // namespace athanor
