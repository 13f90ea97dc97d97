// What `export` does with text: the importance of columns for quantizing, and how far what was written is from the
// original.
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
  std::string imatrix;  // file to write; empty: none
};
// Nothing without data.
Importance calibrate(const ModelFolder&, const CalibrationArgs&, int64_t threads);

// Second moments of a model's inputs for GPTQ and SparseGPT, measured for as many weights at a time as fit in some GiB.
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
// Prints one table about `written`, of so many bytes. Beyond a limit and without `force`: an Error(usage) naming it.
void check_export(const ModelFolder& original, const ModelFolder& written, int64_t bytes, const CheckArgs&,
                  int64_t threads);

}  // namespace athanor
