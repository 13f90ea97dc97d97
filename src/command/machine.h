// The machine a command runs on: backend and process mesh made from a config.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "metrics/environment.h"
#include "train/engine.h"

namespace athanor {

class Machine {
 public:
  // Throws Error(usage) when the config asks for a device that this program or machine has not.
  explicit Machine(const Config&);
  Backend backend() { return {*device_, *ops_, *mesh_, tuning_}; }
  int threads() const { return threads_; }  // of the CPU backend; else 0
  const std::string& description() const { return description_; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  Tuning* tuning_ = nullptr;
  int threads_ = 0;
  std::string description_;
  std::unique_ptr<ProcessMesh> mesh_;
};

// Loads a config file with --set overrides; aliases and remarks go to the log.
Config load_config_logged(const std::string& path, const std::vector<std::string>& overrides);

// What environment.json says of the program.
ProgramInfo program_info(const std::vector<std::string>& command_line);

}  // namespace athanor
