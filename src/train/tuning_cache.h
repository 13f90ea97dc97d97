// Cache of autotuning results for later runs: one file per GPU, driver and library in a folder of the user. If the
// cache cannot be read or written, the run is only slower to start.
#pragma once
#include <string>

#include "ops/tuning.h"

namespace athanor {

// Returns the folder for the option tuning_cache ("auto", "none" or a path); "": no cache.
std::string tuning_folder(const std::string& option);

class TuningCache {
 public:
  // folder: result of tuning_folder(). key: Tuning::key().
  TuningCache(const std::string& folder, const std::string& key);
  void load(Tuning&) const;
  void store(const Tuning&) const;
  const std::string& path() const { return path_; }  // empty if there is no cache

 private:
  std::string path_;
};

}  // namespace athanor
