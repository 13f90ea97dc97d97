// Plans that cuDNN has made, in a folder of the user's: restoring one takes milliseconds, making it most of a second,
// for its kernels are compiled. A file each, whose first line says what it is for and has the checksum of the rest,
// since the library trusts what it is given. What cannot be read or written costs time, not the run.
#pragma once
#include <string>
namespace athanor::cuda {

class PlanFiles {
 public:
  static constexpr int kMost = 64;  // files in the folder, 100 KiB each; the oldest go first

  PlanFiles() = default;  // keeps nothing
  // key: what a plan depends on beside its graph: GPU, driver, library.
  PlanFiles(std::string folder, std::string key);

  // The plan of a graph as described; empty: there is none. By any thread.
  std::string load(const std::string& graph) const;
  void store(const std::string& graph, const std::string& plan) const;

 private:
  std::string path(const std::string& graph) const;
  std::string first_line(const std::string& graph, const std::string& plan) const;

  std::string folder_, key_;
};
}  // namespace athanor::cuda
