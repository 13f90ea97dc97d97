// The runs of a sweep: every combination of the values listed by --set and --widths, each with a name.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "config/model_config.h"

namespace athanor {

struct SweptValue {
  std::string key, value;
  bool operator==(const SweptValue&) const = default;
};
struct SweepRun {
  std::string name;                    // name of its folder: "000-learning_rate=1e-3"
  std::vector<SweptValue> values;      // one per list, in their order; "width" comes first
  std::vector<std::string> overrides;  // "key=value"
};

// A model scaled in width: hidden_size `value`, with intermediate_size and heads in proportion, and head_dim unchanged.
struct Width {
  std::string value;
  std::vector<std::string> overrides;
};
// Throws Error(usage) if a width in the list "64,128,..." is not a whole number of the model's heads, or occurs twice.
std::vector<Width> plan_widths(const std::string& list, const ModelConfig&);

// Each of `sets` is "key=value,value,...". Commas inside brackets, braces or quotes do not separate. Throws
// Error(usage) for a list without a value, a key that occurs twice, and more than kMostRuns combinations.
constexpr size_t kMostRuns = 10000;
std::vector<SweepRun> plan_sweep(std::span<const std::string> sets, std::span<const Width> widths = {});

// Content of sweep.json, which identifies the sweep of a folder.
std::string sweep_json(const std::string& config, std::span<const SweepRun> runs);

// A Slurm batch script with one job array task per run.
struct SlurmJob {
  std::string program, config, folder, directory;  // absolute paths; directory: working directory
  std::vector<std::string> options;                // additional #SBATCH lines
};
std::string slurm_script(const SlurmJob& job, std::span<const SweepRun> runs);

}  // namespace athanor
