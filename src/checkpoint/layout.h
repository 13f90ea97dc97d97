// Names inside a save folder. A step gets its final name only when it is complete; temporary names begin with a dot, so
// that no tool takes them for checkpoints.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace athanor {

inline constexpr std::string_view kLatestName = "latest";  // text file naming the newest step; informational only
inline constexpr std::string_view kLockName = ".lock";

std::string step_folder(int64_t step);   // "step-00001000"
std::string tmp_folder(int64_t step);    // ".step-00001000.tmp": being written, or being removed
std::string aside_folder(int64_t step);  // ".step-00001000.old": a complete step while it is being replaced
// "diverged-00001000": the state of a run that diverged, for inspection. Not counted as a step: a run neither resumes
// from it automatically nor removes a step because of it.
std::string diverged_folder(int64_t step);

// The step number of a name that the corresponding function above returns; empty for any other name.
std::optional<int64_t> parse_step_folder(std::string_view name);
std::optional<int64_t> parse_tmp_folder(std::string_view name);
std::optional<int64_t> parse_aside_folder(std::string_view name);
std::optional<int64_t> parse_diverged_folder(std::string_view name);

// Throws Error(usage) if the path, which need not exist, or a folder around it has the name of a checkpoint in a run's
// save folder: the run would take it for its own checkpoint, and may delete it.
void require_outside_checkpoints(const std::string& path);

}  // namespace athanor
