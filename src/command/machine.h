// The machine a command runs on: backend and process mesh built from a config, and the connection to the other ranks.
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
  std::unique_ptr<Profiler> profiler;  // null: no profiler
  std::string why_none;                // reason for that; "" on the CPU, which needs no profiler
};

// Behaviour if there is a GPU but its libraries are missing: by default an error, since training on the CPU instead
// would help nobody.
enum class WithoutLibraries : uint8_t { refuse, use_cpu };

class Machine {
 public:
  // Connects to the other ranks, if any. Throws Error(usage) if the config asks for a device that this program or
  // machine does not have, and Error(peer_lost) if ranks are missing.
  explicit Machine(const Config&, const RankInfo& = {}, WithoutLibraries = WithoutLibraries::refuse);
  ~Machine();
  Backend backend() { return {*device_, *ops_, *mesh_, tuning_, control_.get(), network_}; }
  int threads() const { return threads_; }  // number of threads of the CPU backend; else 0
  double most_flops() const {
    return most_flops_;
  }  // upper bound of the CPU's FLOP/s; 0 on a GPU, whose data sheet has it
  Sensors* sensors() const { return sensors_.get(); }  // GPU sensors; null: none
  FoundProfiler open_profiler() const;
  CollectiveWatch& collectives() { return collectives_; }  // watchdog of the mesh's collectives
  const std::string& description() const { return description_; }
  // Reports this rank's current activity to ranks that wait for it.
  void doing(Activity, int64_t step);
  // Runs work that the other ranks wait for. If it fails, they receive the error before anything is torn down. Throws
  // that error, or an earlier one of another rank.
  void run(const std::function<void()>& work);

 private:
  struct Neighbours {  // position of this rank among those on the same machine
    int index = 0, count = 1;
  };
  std::unique_ptr<Communicator> connect(const std::string& name) const;
  void meet(const Config&, const RankInfo&);
  Neighbours find_neighbours() const;
  void open_cpu(const Config&, const Neighbours&);
  void open_gpu(const Config&, const RankInfo&, const Neighbours&);
  int claim_gpu(int local_rank);  // returns the GPU's index; no other rank has it
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

// Loads a config file with --set overrides; logs notices on rank 0 only.
Config load_config_logged(const std::string& path, const std::vector<std::string>& overrides, int rank = 0);

// Parses --device; shared by benchmarks that have no config.
DeviceChoice device_of(const std::string& word);

// Adds --rank, --world-size and --rendezvous, which override the launcher's variables.
void add_rank_flags(Verb, RankFlags&);

// --rates: FLOP/s of GEMMs and B/s of copies to compare with; measured on this machine if `given` is empty.
void add_rates(Verb, std::vector<double>& given);
Ceilings given_or_measured(const std::vector<double>& given, Backend, const Recipe&);

// --weights of verbs that run a model without training it. word: initially kWeightsAsPrecision.
constexpr const char* kWeightsAsPrecision = "precision";
void add_weights_option(Verb, std::string& word);
// Throws Error(usage) for int8 on a GPU, which has no int8 GEMMs here.
InferenceWeights inference_weights(const std::string& word, const Machine&);

// The part of environment.json about the program.
ProgramInfo program_info(const std::vector<std::string>& command_line);

}  // namespace athanor
