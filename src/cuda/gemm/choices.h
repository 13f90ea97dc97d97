// Chosen algorithms of products and attention as text, saved with a run so that a restart gives the same bits. An
// algorithm is 64 opaque bytes, valid for one version of cuBLASLt on one kind of GPU.
#pragma once
#include <cublasLt.h>

#include <map>
#include <optional>
#include <string>
namespace athanor::cuda {

// Everything that the bytes of an algorithm depend on.
struct GemmKey {
  std::string gpu;             // as CUDA names it
  int driver = 0;              // newest CUDA that the driver serves: 13000
  size_t cublaslt = 0;         // version: 130101
  size_t workspace_bytes = 0;  // that an algorithm may use
  bool operator==(const GemmKey&) const = default;
};

struct GemmChoice {
  cublasLtMatmulAlgo_t algorithm{};
  double microseconds = 0;  // as measured; 0: the library's first answer, not measured
  bool in_parts = false;    // no algorithm: the product has a choice of its own, a kernel does what the epilogue means
};
using GemmChoices = std::map<std::string, GemmChoice>;  // by the problem in words

struct AttentionChoice {
  bool own = false;         // the program's kernels, not cuDNN's
  double microseconds = 0;  // as measured
};
using AttentionChoices = std::map<std::string, AttentionChoice>;  // by the problem in words

struct ChosenAttention {
  std::optional<size_t> cudnn;  // version: 91900; 0: it was not used; none: of a file that does not tell
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

// Text describing how a file's key differs from the current one; empty if equal.
std::string difference(const GemmKey& file, const GemmKey& here);
}  // namespace athanor::cuda
