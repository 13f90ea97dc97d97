// Chosen algorithms of GEMMs and attention as text, saved with a run so that a restart gives the same bits. An
// algorithm is 64 opaque bytes, valid for one version of cuBLASLt on one kind of GPU.
#pragma once
#include <cublasLt.h>

#include <map>
#include <optional>
#include <string>
namespace athanor::cuda {

// GPU, driver, library and workspace limit for which the bytes of an algorithm are valid.
struct GemmKey {
  std::string gpu;             // name that CUDA reports
  int driver = 0;              // newest CUDA that the driver supports: 13000
  size_t cublaslt = 0;         // version: 130101
  size_t workspace_bytes = 0;  // limit for an algorithm
  bool operator==(const GemmKey&) const = default;
};

struct GemmChoice {
  cublasLtMatmulAlgo_t algorithm{};
  double microseconds = 0;  // measured time; 0: the heuristic's first result, not measured
  bool in_parts = false;    // no algorithm: GEMM and epilogue run separately
  bool own = false;         // no algorithm: the program's own kernel
};
using GemmChoices = std::map<std::string, GemmChoice>;  // keyed by the text of the problem

enum class AttentionKernels { cudnn, builtin };  // builtin: the program's own
struct AttentionChoice {
  AttentionKernels by = AttentionKernels::cudnn;
  double microseconds = 0;  // measured time
};
using AttentionChoices = std::map<std::string, AttentionChoice>;  // keyed by the text of the problem

struct ChosenAttention {
  std::optional<size_t> cudnn;  // version: 91900; 0: not used; nullopt: not in the file
  AttentionChoices choices;
};

std::string to_json(const GemmKey& key, const GemmChoices& choices, const ChosenAttention& attention = {});

struct GemmFile {
  GemmKey key;
  GemmChoices choices;
  ChosenAttention attention;
};
// Throws Error naming what is wrong with the text.
GemmFile parse_gemm_choices(const std::string& text);

// Describes how a file's key differs from the current one; empty if they are equal.
std::string difference(const GemmKey& file, const GemmKey& here);
}  // namespace athanor::cuda
