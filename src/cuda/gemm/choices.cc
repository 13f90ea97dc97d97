#include "cuda/gemm/choices.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
namespace athanor::cuda {
namespace {

using Json = nlohmann::ordered_json;
constexpr const char* kFormat = "athanor gemm choices, version 3";
constexpr const char* kOldFormats[] = {"athanor gemm choices, version 1",   // this version had no epilogues
                                       "athanor gemm choices, version 2"};  // this version had no attention
constexpr const char* kDigits = "0123456789abcdef";

std::string to_hex(const cublasLtMatmulAlgo_t& algorithm) {
  unsigned char bytes[sizeof algorithm];
  std::memcpy(bytes, &algorithm, sizeof bytes);
  std::string text;
  for (unsigned char byte : bytes) text += {kDigits[byte / 16], kDigits[byte % 16]};
  return text;
}

// Returns false if the text is not an algorithm in hexadecimal.
bool from_hex(const std::string& text, cublasLtMatmulAlgo_t* algorithm) {
  unsigned char bytes[sizeof *algorithm];
  if (text.size() != 2 * sizeof bytes || text.find_first_not_of(kDigits) != std::string::npos) return false;
  const auto digit = [&](size_t i) { return static_cast<unsigned>(std::strchr(kDigits, text[i]) - kDigits); };
  for (size_t i = 0; i < sizeof bytes; ++i) bytes[i] = static_cast<unsigned char>(16 * digit(2 * i) + digit(2 * i + 1));
  std::memcpy(algorithm, bytes, sizeof bytes);
  return true;
}

double parse_microseconds(const std::string& problem, const Json& entry) {
  const auto time = entry.at("microseconds").get<double>();
  if (!(time >= 0) || std::isinf(time))
    throw Error(cat("the time of '", problem, "' is ", time, ", expected microseconds"));
  return time;
}

GemmChoice parse_choice(const std::string& problem, const Json& entry) {
  GemmChoice choice{.algorithm = {},
                    .microseconds = parse_microseconds(problem, entry),
                    .in_parts = entry.value("in_parts", false),
                    .own = entry.value("own", false)};
  if (!choice.in_parts && !choice.own && !from_hex(entry.at("algorithm").get<std::string>(), &choice.algorithm))
    throw Error(cat("the algorithm of '", problem, "' is not ", 2 * sizeof choice.algorithm, " hexadecimal digits"));
  return choice;
}

// Names of AttentionKernels, by their values.
constexpr const char* kKernels[] = {"cudnn", "builtin"};

AttentionChoice parse_attention(const std::string& problem, const Json& entry) {
  const auto by = entry.at("by").get<std::string>();
  const auto* found = std::ranges::find(kKernels, by);
  if (found == std::end(kKernels))
    throw Error(cat("the kernels of '", problem, "' are '", by, "', expected builtin or cudnn"));
  return {.by = static_cast<AttentionKernels>(found - kKernels), .microseconds = parse_microseconds(problem, entry)};
}

// A number within 31 bits, enough for versions and workspaces; larger ones would be converted without an error.
int whole_number(const Json& file, const char* name) {
  const Json& value = file.at(name);
  if (!value.is_number_unsigned() || value.get<uint64_t>() > 0x7fffffff)
    throw Error(cat(name, " is ", value.dump(), ", expected a whole number"));
  return static_cast<int>(value.get<uint64_t>());
}

GemmFile parse(const std::string& text) {
  const Json file = Json::parse(text);
  const auto format = file.at("format").get<std::string>();
  if (format != kFormat && std::ranges::find(kOldFormats, format) == std::end(kOldFormats))
    throw Error(cat("its format is '", format, "', expected '", kFormat, "'"));
  GemmFile out{.key = {.gpu = file.at("gpu").get<std::string>(),
                       .driver = whole_number(file, "driver"),
                       .cublaslt = static_cast<size_t>(whole_number(file, "cublaslt")),
                       .workspace_bytes = static_cast<size_t>(whole_number(file, "workspace_bytes"))},
               .choices = {},
               .attention = {}};
  for (const auto& [problem, entry] : file.at("choices").items()) out.choices[problem] = parse_choice(problem, entry);
  if (format != kFormat || !file.contains("cudnn")) return out;
  out.attention.cudnn = static_cast<size_t>(whole_number(file, "cudnn"));
  for (const auto& [problem, entry] : file.at("attention").items())
    out.attention.choices[problem] = parse_attention(problem, entry);
  return out;
}

}  // namespace

std::string to_json(const GemmKey& key, const GemmChoices& choices, const ChosenAttention& attention) {
  Json list = Json::object();
  for (const auto& [problem, choice] : choices) {
    Json& entry = list[problem];
    if (choice.in_parts)
      entry["in_parts"] = true;
    else if (choice.own)
      entry["own"] = true;
    else
      entry["algorithm"] = to_hex(choice.algorithm);
    entry["microseconds"] = choice.microseconds;
  }
  Json file{{"format", kFormat},
            {"gpu", key.gpu},
            {"driver", key.driver},
            {"cublaslt", key.cublaslt},
            {"workspace_bytes", key.workspace_bytes},
            {"choices", list}};
  if (attention.cudnn) {
    file["cudnn"] = *attention.cudnn;
    Json& whose = file["attention"] = Json::object();
    for (const auto& [problem, choice] : attention.choices)
      whose[problem] = {{"by", kKernels[static_cast<size_t>(choice.by)]}, {"microseconds", choice.microseconds}};
  }
  return file.dump(1) + "\n";
}

GemmFile parse_gemm_choices(const std::string& text) {
  const char* remedy = "; delete the file to autotune the algorithms again";
  try {
    return parse(text);
  } catch (const Json::exception& e) {
    throw Error(cat("choices of GEMMs: not readable: ", json_problem(e.what()), remedy));
  } catch (const Error& e) {
    throw Error(cat("choices of GEMMs: ", e.what(), remedy));
  }
}

std::string difference(const GemmKey& file, const GemmKey& here) {
  std::string text;
  const auto compare = [&text](const char* what, const auto& old, const auto& now) {
    if (old != now) text += cat(text.empty() ? "" : ", ", what, " was ", old, " and is ", now);
  };
  compare("GPU", file.gpu, here.gpu);
  compare("driver", file.driver, here.driver);
  compare("cuBLASLt", file.cublaslt, here.cublaslt);
  compare("workspace", file.workspace_bytes, here.workspace_bytes);
  return text;
}

}  // namespace athanor::cuda
