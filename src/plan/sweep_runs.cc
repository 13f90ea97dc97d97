#include "plan/sweep_runs.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/format.h"
#include "base/json.h"

namespace athanor {
namespace {

struct SweptKey {
  std::string key;
  std::vector<std::string> values;
};

std::vector<std::string> split_values(std::string_view text) {
  std::vector<std::string> values(1);
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\' && i + 1 < text.size()) {
      values.back() += {c, text[++i]};
      continue;
    }
    if (c == '"') quoted = !quoted;
    if (!quoted) depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    if (c == ',' && depth == 0 && !quoted)
      values.emplace_back();
    else
      values.back() += c;
  }
  return values;
}

SweptKey parse_axis(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(cat("--set ", text, ": expected key=value,value,... such as --set learning_rate=1e-3,2e-3"),
                Exit::usage);
  SweptKey axis{text.substr(0, equals), split_values(std::string_view(text).substr(equals + 1))};
  for (const std::string& value : axis.values)
    if (value.empty()) throw Error(cat("--set ", text, ": a value of the list is empty"), Exit::usage);
  if (axis.key == "save") throw Error("--set save: every run of a sweep gets a folder of its own", Exit::usage);
  return axis;
}

// Replaces characters that are not safe in a folder's name.
std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool kept = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
                      c == '-' || c == '_' || c == '=' || c == '+';
    out += kept ? c : '_';
  }
  return out;
}

std::string name_of(size_t number, const std::vector<SweptValue>& values) {
  constexpr size_t kLongest = 100;
  std::string name = format_text("%03zu", number);
  for (const SweptValue& v : values) name += cat("-", plain(cat(v.key.substr(v.key.rfind('.') + 1), "=", v.value)));
  return name.substr(0, kLongest);
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') out += "'\\'";  // closes the quotes, adds an escaped quote, and opens them again
    out += c;
  }
  out += '\'';
  return out;
}

}  // namespace

std::vector<Width> plan_widths(const std::string& list, const ModelConfig& model) {
  std::vector<Width> widths;
  for (const std::string& text : split_values(list)) {
    int64_t width = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), width);
    if (error != std::errc() || end != text.data() + text.size() || width <= 0)
      throw Error(cat("--widths ", list, ": expected hidden sizes such as 64,128,256, got \"", text, "\""),
                  Exit::usage);
    Width out{.value = cat(width), .overrides = {cat("model.hidden_size=", width)}};
    const auto scale = [&](const char* key, int64_t size) {
      if (size * width % model.hidden_size != 0)
        throw Error(cat("--widths ", width, ": ", key, " ", size, " of hidden_size ", model.hidden_size,
                        " does not scale to a whole number; expected a multiple of ",
                        model.hidden_size / std::gcd(model.hidden_size, size)),
                    Exit::usage);
      out.overrides.push_back(cat("model.", key, "=", size * width / model.hidden_size));
    };
    scale("intermediate_size", model.intermediate_size);
    if (has_experts(model.model_type)) scale("moe_intermediate_size", model.moe_intermediate_size);
    if (has_shared_expert_gate(model.model_type))
      scale("shared_expert_intermediate_size", model.shared_expert_intermediate_size);
    scale("num_attention_heads", model.num_attention_heads);
    scale("num_key_value_heads", model.num_key_value_heads);
    for (const Width& other : widths)
      if (other.value == out.value) throw Error(cat("--widths: ", width, " is given twice"), Exit::usage);
    widths.push_back(std::move(out));
  }
  return widths;
}

std::vector<SweepRun> plan_sweep(std::span<const std::string> sets, std::span<const Width> widths) {
  std::vector<SweepRun> runs;
  for (const Width& width : widths) runs.push_back({{}, {{"width", width.value}}, width.overrides});
  if (runs.empty()) runs.emplace_back();
  std::vector<std::string> keys;
  if (!widths.empty())
    for (const std::string& o : widths[0].overrides) keys.push_back(o.substr(0, o.find('=')));
  for (const std::string& set : sets) {
    const SweptKey axis = parse_axis(set);
    if (std::find(keys.begin(), keys.end(), axis.key) != keys.end())
      throw Error(cat("--set ", axis.key, ": is given twice; list all of its values in one"), Exit::usage);
    keys.push_back(axis.key);
    if (runs.size() * axis.values.size() > kMostRuns)
      throw Error(cat("sweep: more than ", kMostRuns, " combinations"), Exit::usage);
    std::vector<SweepRun> longer;
    for (const SweepRun& run : runs)
      for (const std::string& value : axis.values) {
        longer.push_back(run);
        longer.back().values.push_back({axis.key, value});
        longer.back().overrides.push_back(cat(axis.key, "=", value));
      }
    runs = std::move(longer);
  }
  for (size_t i = 0; i < runs.size(); ++i) runs[i].name = name_of(i, runs[i].values);
  return runs;
}

std::string sweep_json(const std::string& config, std::span<const SweepRun> runs) {
  nlohmann::ordered_json json;
  json["config"] = config;
  for (const SweepRun& run : runs) json["runs"].push_back({{"name", run.name}, {"set", run.overrides}});
  return json_text(json, 1) + "\n";
}

std::string slurm_script(const SlurmJob& job, std::span<const SweepRun> runs) {
  std::string out =
      cat("#!/bin/bash\n# One task for each run of a sweep; submit it with sbatch, and send the summary command of "
          "`athanor\n"
          "# sweep --help` afterwards. A run that the time limit stops is queued again and goes on where it was.\n"
          "#SBATCH --array=0-",
          runs.size() - 1, "\n#SBATCH --requeue\n#SBATCH --open-mode=append\n#SBATCH --signal=USR1@120\n");
  for (const std::string& option : job.options) {
    if (option.find('\n') != std::string::npos)
      throw Error("--sbatch: expected one option, got two lines", Exit::usage);
    out += cat("#SBATCH ", option, "\n");
  }
  out += cat("cd ", shell_quoted(job.directory), " || exit\ncase $SLURM_ARRAY_TASK_ID in\n");
  for (size_t i = 0; i < runs.size(); ++i) {
    out += cat(i, ") set -- --set ", shell_quoted(cat("save=", job.folder, "/", runs[i].name)));
    for (const std::string& o : runs[i].overrides) out += cat(" --set ", shell_quoted(o));
    out += " ;;\n";
  }
  return out + cat("*) echo \"task $SLURM_ARRAY_TASK_ID: there is no such run\" >&2; exit 2 ;;\nesac\nsrun ",
                   shell_quoted(job.program), " train ", shell_quoted(job.config),
                   " \"$@\"; code=$?\n[ $code != 85 ] || scontrol requeue \"$SLURM_JOB_ID\"\nexit $code\n");
}

}  // namespace athanor
