// Uses of text in `export`: the importance of columns for quantization, and the comparison of the exported model with
// the original.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "convert/imatrix.h"
#include "convert/model_folder.h"

namespace athanor {

struct CalibrationArgs {
  std::vector<std::string> data;
  int64_t samples = 128;
  std::string imatrix;  // imatrix file to write; empty: none
};
// Returns an empty result if there is no data.
Importance calibrate(const ModelFolder&, const CalibrationArgs&, int64_t threads);

// Hessians (second moments of the inputs) of weights for GPTQ and SparseGPT, measured for as many weights at a time as
// fit in a few GiB.
class HessianSource {
 public:
  HessianSource(const ModelFolder&, const CalibrationArgs&, int64_t threads);
  ~HessianSource();
  std::vector<float> operator()(const std::string& weight);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct CheckArgs {
  std::vector<std::string> data;
  int64_t samples = 32;
  double max_kl = 0.1, min_same_top = 0.85, max_loss_increase = 0.1;
  bool force = false, json = false;
};
// Prints a table that compares `written`, of size `bytes`, with the original. Throws Error(usage) naming the limit if
// one is exceeded and `force` is not set.
void check_export(const ModelFolder& original, const ModelFolder& written, int64_t bytes, const CheckArgs&,
                  int64_t threads);

}  // namespace athanor
