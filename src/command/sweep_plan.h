// The runs of a sweep: every combination of the values that --set and --widths list, with a name each.
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
  std::vector<SweptValue> values;      // one value per list, in their order; "width" comes first
  std::vector<std::string> overrides;  // "key=value"
};

// A model made wider or narrower: hidden_size `value`, with intermediate_size and heads in proportion and head_dim as
// it is.
struct Width {
  std::string value;
  std::vector<std::string> overrides;
};
// Error(usage) for a list of "64,128,..." whose widths are not made of whole heads of the model, or come twice.
std::vector<Width> plan_widths(const std::string& list, const ModelConfig&);

// Each of `sets` is "key=value,value,...". A comma inside brackets, braces or quotes separates nothing. Error(usage)
// for a list without a value, a key that comes twice, and more than kMostRuns combinations.
constexpr size_t kMostRuns = 10000;
std::vector<SweepRun> plan_sweep(std::span<const std::string> sets, std::span<const Width> widths = {});

// sweep.json: what a folder was made for.
std::string sweep_json(const std::string& config, std::span<const SweepRun> runs);

// A batch script for Slurm: one task of a job array for each run.
struct SlurmJob {
  std::string program, config, folder, directory;  // where it works; all absolute
  std::vector<std::string> options;                // lines of #SBATCH besides those that are always there
};
std::string slurm_script(const SlurmJob& job, std::span<const SweepRun> runs);

}  // namespace athanor
