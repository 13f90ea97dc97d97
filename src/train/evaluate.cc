#include "train/evaluate.h"

#include <algorithm>

namespace athanor {

EvalResult evaluate(Engine& engine, const Dataset& data, int64_t samples, Communicator* control) {
  const int64_t rows = engine.options().micro_batch_size, t = data.seq_length();
  const int64_t windows = samples > 0 ? std::min(samples, data.windows()) : data.windows();
  std::vector<int32_t> tokens(size_t(rows * t)), targets(size_t(rows * t)), window(size_t(t + 1));
  double sum = 0;
  // Every rank makes as many calls: those whose rows are all beyond the end as well.
  for (int64_t turn = 0; turn < windows; turn += rows * engine.ranks()) {
    const int64_t first = turn + rows * engine.rank();
    std::fill(tokens.begin(), tokens.end(), 0);
    std::fill(targets.begin(), targets.end(), -1);
    for (int64_t r = 0; r < std::min(rows, windows - first); ++r) {
      data.read({.seed = 0, .shuffled = false}, first + r, window);
      std::copy_n(window.begin(), t, tokens.begin() + r * t);
      std::copy_n(window.begin() + 1, t, targets.begin() + r * t);
    }
    sum += engine.evaluate(tokens, targets);
  }
  if (control) control->all_reduce({&sum, DType::f64, {1}}, Reduce::sum, Lane::compute);
  const int64_t count = windows * t;
  return {.loss = sum / double(count), .tokens = count};
}

}  // namespace athanor
