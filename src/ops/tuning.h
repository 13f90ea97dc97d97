// Tuning: algorithms that a backend chooses by trial for the shapes of a run. Rounding depends on them, so they are
// saved with the run and restored on resume.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/int.h"
#include "ops/attention.h"
#include "ops/gemm.h"
#include "ops/quantize.h"

namespace athanor {

// Ops of a dry run for which a backend may choose among algorithms.
struct Tunable {
  std::span<const Gemm> products;
  std::span<const AttentionFwd> forward = {};
  std::span<const AttentionBwd> backward = {};
  std::span<const ScaledGemm> of_codes = {};
};

// Documents for measurements, since those of a run are not known before it: each has half of what is left of its
// sequence, down to a sixteenth of the sequence, and the last one of so many all that is left.
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

// Positions for measurements, of sequences of so many tokens one after the other.
inline std::vector<int32_t> positions_to_measure(int64_t count, int64_t tokens) {
  std::vector<int32_t> all;
  for (int64_t i = 0; i < count; ++i) all.push_back(narrow<int32_t>(i % tokens));
  return all;
}

// How a product is computed.
struct ProductMethod {
  bool in_parts = false;  // by a product, which the words describe, and a kernel for its epilogue
  std::string words;      // "algorithm 66, tile 128x256, stages 36, 2 cuts of K"
};

struct ProductTime {
  double seconds = 0;  // time of one launch
  ProductMethod method;
};

class Tuning {
 public:
  virtual ~Tuning() = default;
  // Tries what has not been measured yet, the most work first, for so many seconds; a line for the log.
  virtual std::string search(const Tunable& ops, double seconds) = 0;
  virtual std::string export_choices() const = 0;
  // Takes the choices of an earlier run. Returns why they do not apply here (another GPU or library), empty if they do;
  // throws Error if the text is damaged.
  virtual std::string import_choices(const std::string&) = 0;
  // Time of a product as training runs it: by its choice, on operands that are not in a cache. again: it is also
  // computed again (Gemm::again), and that counts.
  virtual ProductTime time(const Gemm& product, bool recompute) = 0;
  // Time of a GEMM of quantized operands alone, as the library computes it, without quantizing them.
  virtual ProductTime time(const ScaledGemm& product) = 0;
  // Scratch memory that makes faster kernels possible where less will do: how much the ops want beyond what is allowed,
  // for the one that wants most, or 0; and to allow so much, before anything is planned. Returns what was allowed.
  virtual size_t wanted_scratch(const Tunable&) { return 0; }
  virtual size_t allow_scratch(size_t bytes) { return bytes; }
  // Whose kernels compute the ops' attention, and why; "" where there is no choice.
  virtual std::string describe_attention(const Tunable&) { return ""; }
  // How products of codes of 8 or 4 bits are computed: "natively", or what is emulated; "" where there are none.
  virtual std::string describe_codes(const Tunable&) { return ""; }
  // What the choices depend on, in words: GPU, driver, library.
  virtual std::string key() const = 0;
};

}  // namespace athanor
