// Names inside a save folder. Steps appear under their final name only when they are whole; names in the making begin
// with a dot, so that no tool takes them for checkpoints.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

inline constexpr std::string_view kLatestName = "latest";  // text file naming the newest step; a hint for people
inline constexpr std::string_view kLockName = ".lock";

std::string step_folder(int64_t step);   // "step-00001000"
std::string tmp_folder(int64_t step);    // ".step-00001000.tmp": being written, or being removed
std::string aside_folder(int64_t step);  // ".step-00001000.old": a whole step while its replacement moves in

// The step of a name that one of the three functions makes; nothing for any other name.
std::optional<int64_t> parse_step_folder(std::string_view name);
std::optional<int64_t> parse_tmp_folder(std::string_view name);
std::optional<int64_t> parse_aside_folder(std::string_view name);

// The names in a folder, sorted; a missing folder has none.
std::vector<std::string> folder_names(const std::string& path);

}  // namespace athanor
