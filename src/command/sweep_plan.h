// The runs of a sweep: every combination of the values that --set lists, with a name each.
#pragma once
#include <span>
#include <string>
#include <vector>

namespace athanor {

struct SweepRun {
  std::string name;                    // of its folder: "000-learning_rate=1e-3"
  std::vector<std::string> overrides;  // "key=value"
};

// Each of `sets` is "key=value,value,...". A comma inside brackets, braces or quotes separates nothing. Error(usage)
// for a list without a value, a key that comes twice, and more than kMostRuns combinations.
constexpr size_t kMostRuns = 10000;
std::vector<SweepRun> plan_sweep(std::span<const std::string> sets);

// sweep.json: what a folder was made for.
std::string sweep_json(const std::string& config, std::span<const SweepRun> runs);

// A batch script for Slurm: one task of a job array for each run.
struct SlurmJob {
  std::string program, config, folder, directory;  // where it works; all absolute
  std::vector<std::string> options;                // lines of #SBATCH besides those that are always there
};
std::string slurm_script(const SlurmJob& job, std::span<const SweepRun> runs);

}  // namespace athanor
