// Autotuning: a backend chooses algorithms by benchmarking the shapes of a run. Rounding depends on the choices, so
// they are saved with the run and restored on resume.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/int.h"
#include "ops/attention.h"
#include "ops/gemm.h"
#include "ops/quantize.h"

namespace athanor {

// Ops of a dry run that a backend may autotune.
struct Tunable {
  std::span<const Gemm> gemms;
  std::span<const AttentionFwd> forward = {};
  std::span<const AttentionBwd> backward = {};
  std::span<const ScaledGemm> of_quantized = {};
};

// Returns synthetic document lengths for benchmarks, since those of a run are unknown in advance: each document takes
// half of the rest of its sequence, down to 1/16 of the sequence; the last of at most most_per_sequence documents takes
// the whole rest.
inline std::vector<Span> documents_to_measure(int64_t sequences, int64_t tokens, int64_t most_per_sequence) {
  std::vector<Span> all;
  for (int64_t s = 0; s < sequences; ++s) {
    int64_t begin = s * tokens, left = tokens;
    for (int64_t d = 1; left > 0; ++d) {
      const bool cut = d < most_per_sequence && left > 1 && left > tokens / 16;
      const auto size = narrow<int32_t>(cut ? left / 2 : left), first = narrow<int32_t>(begin);
      all.push_back({first, size, first, size, 0, 0});
      begin += size, left -= size;
    }
  }
  return all;
}

// Returns positions for benchmarks: consecutive sequences of `tokens` tokens.
inline std::vector<int32_t> positions_to_measure(int64_t count, int64_t tokens) {
  std::vector<int32_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(narrow<int32_t>(i % tokens));
  return all;
}

// Algorithm with which a GEMM is computed.
struct GemmMethod {
  bool in_parts = false;  // runs as a plain GEMM, described by `words`, and a separate epilogue kernel
  std::string words;      // "algorithm 66, tile 128x256, stages 36, 2 cuts of K"
};

struct GemmTime {
  double seconds = 0;  // time of one launch
  GemmMethod method;
};

class Tuning {
 public:
  virtual ~Tuning() = default;
  // Benchmarks problems that have not been measured yet, largest work first, for up to `seconds`. Returns a line for
  // the log.
  virtual std::string search(const Tunable& ops, double seconds) = 0;
  virtual std::string export_choices() const = 0;
  // Imports the choices of an earlier run. Returns the reason if they do not apply here (another GPU or library), else
  // an empty string. Throws Error if the text is damaged.
  virtual std::string import_choices(const std::string&) = 0;
  // Returns the time of a GEMM as training runs it: with its tuned choice and operands that are not in cache.
  // recompute: includes the time of its recomputation (Gemm::recompute).
  virtual GemmTime time(const Gemm& gemm, bool recompute) = 0;
  // Returns the time of a scaled GEMM as the library computes it, without the time to quantize its operands.
  virtual GemmTime time(const ScaledGemm& gemm) = 0;
  // wanted_scratch(): scratch memory beyond the current limit that would allow faster kernels, max over ops; 0 if none.
  // allow_scratch() raises the limit, before anything is planned, and returns the previous limit.
  virtual size_t wanted_scratch(const Tunable&) { return 0; }
  virtual size_t allow_scratch(size_t bytes) { return bytes; }
  // Returns which implementation of attention is used, and why; "" if there is no choice.
  virtual std::string describe_attention(const Tunable&) { return ""; }
  // Returns how FP8 and FP4 GEMMs are computed: natively, or emulated and why; "" if there are none.
  virtual std::string describe_quantized(const Tunable&) { return ""; }
  // Returns text that contains everything the choices depend on: GPU, driver, library.
  virtual std::string key() const = 0;
};

}  // namespace athanor
