// cuDNN plans stored in a folder of the user: restoring one takes milliseconds; building one takes most of a second,
// since kernels are compiled. One file per plan; its first line has the key and a checksum of the rest, since the
// library does not validate plans. If files cannot be read or written, only time is lost.
#pragma once
#include <string>
namespace athanor::cuda {

class PlanFiles {
 public:
  static constexpr int kMost = 64;  // files in the folder, 100 KiB each; the oldest are removed first

  PlanFiles() = default;  // stores nothing
  // key: everything besides its graph that a plan depends on: GPU, driver, library.
  PlanFiles(std::string folder, std::string key);

  // The stored plan of a described graph; empty if there is none. Thread-safe.
  std::string load(const std::string& graph) const;
  void store(const std::string& graph, const std::string& plan) const;

 private:
  std::string path(const std::string& graph) const;
  std::string first_line(const std::string& graph, const std::string& plan) const;

  std::string folder_, key_;
};
}  // namespace athanor::cuda
