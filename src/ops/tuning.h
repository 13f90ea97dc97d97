// Tuning: what a backend chooses by trial for the shapes of a run. Rounding follows from the choices, so they are kept
// with a run and come back when it resumes.
#pragma once
#include <span>
#include <string>

#include "ops/attention.h"
#include "ops/gemm.h"

namespace athanor {

// Ops of a dry run, among the ways to compute which a backend may choose.
struct Tunable {
  std::span<const Gemm> products;
  std::span<const AttentionFwd> forward = {};
  std::span<const AttentionBwd> backward = {};
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
  // What the choices depend on, in words: GPU, driver, library.
  virtual std::string key() const = 0;
};

}  // namespace athanor
