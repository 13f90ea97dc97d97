// What the tests of this folder share: a CPU backend of one rank, small engines, temporary folders.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <string>

#include "cpu/make_cpu.h"
#include "train/engine.h"

namespace athanor::testing {

struct Rig {
  explicit Rig(int threads = 2)
      : cpu(make_cpu({.threads = threads})), mesh(make_single(*cpu.device), {1, 1, 1, 1, 1, 1}) {}
  Backend backend() { return {*cpu.device, *cpu.ops, mesh}; }
  CpuBackend cpu;
  ProcessMesh mesh;
};

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "athanor-test-XXXXXX").string();
    CHECK(mkdtemp(name.data()) != nullptr, name);
    path_ = name;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace athanor::testing
