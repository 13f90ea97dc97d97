// environment.json: hardware and software of a run, for reproducing it. Contains no environment variables, which may
// hold secrets.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/process_memory.h"

namespace athanor {

struct LibraryVersion {
  std::string name, version;
};

// Fields given by the caller; all others are detected.
struct ProgramInfo {
  std::string version;                    // program version with its source revision
  std::vector<std::string> command;       // the command line
  std::vector<LibraryVersion> libraries;  // libraries in use, with the versions found at run time
};

struct Environment {
  ProgramInfo program;
  std::string time;      // ISO 8601, UTC
  std::string compiler;  // compiler that built this program
  std::string host, kernel, os, cpu_model;
  int64_t cores_online = 0;
  std::vector<int> affinity;  // cores that this process may run on
  CgroupLimits cgroup;
  MachineMemory memory;
};

Environment find_environment(ProgramInfo, const SystemRoot& = {});
std::string to_json(const Environment&);

// Writes the file atomically; throws Error if it cannot be written.
void write_environment(const Environment&, const std::string& path);

}  // namespace athanor
