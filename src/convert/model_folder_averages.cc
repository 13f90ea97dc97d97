// Averages of the weights in a ModelFolder of a checkpoint: an average as such, or what it differs by from the weight.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "convert/floats.h"
#include "convert/model_folder.h"
#include "param/param_store.h"

namespace athanor {

// False if the averages are not yet set, so that the weights are read, as by the run's own evaluations: the optimizer
// sets them in its first update.
bool ModelFolder::find_averages() const {
  constexpr int64_t kMostBytes = 16 << 20;
  const auto is_average = [](const auto& tensor) {
    return tensor.first.starts_with(cat(kEmaState, ".")) ||
           tensor.first.starts_with(cat(kAverageMinusWeightState, "."));
  };
  const CheckpointReader* saved = adapter_ ? adapter_->checkpoint() : checkpoint_.get();
  if (!saved || std::ranges::none_of(saved->tensors(), is_average))
    throw Error(cat(path_,
                    ": holds no averages of the weights; expected a checkpoint of a run with averaging.ema_decay or "
                    "averaging.tail_start above 0"),
                Exit::usage);
  const std::string path = cat(path_, "/state.json");
  try {
    return parse_json_text<nlohmann::json>(read_file(path, kMostBytes), path).at("optimizer_steps").get<int64_t>() > 0;
  } catch (const nlohmann::json::exception& e) {
    throw Error(cat(path, ": optimizer_steps: ", json_problem(e.what()), "; the checkpoint is damaged"));
  }
}

std::string ModelFolder::stored_name(const std::string& name) const {
  const std::string average = cat(kEmaState, ".", name);
  return averages_ && checkpoint_->tensors().contains(average) ? average : name;
}

bool ModelFolder::has_average_minus_weight(const std::string& name) const {
  return checkpoint_ && checkpoint_->tensors().contains(cat(kAverageMinusWeightState, ".", name));
}

// The weights that the run's evaluations use: weight plus average-minus-weight, in f32.
void ModelFolder::read_sum(const std::string& name, int64_t begin, int64_t end, std::vector<std::byte>& out) const {
  const CheckpointReader::Info& weight = checkpoint_->at(name);
  const std::string difference = cat(kAverageMinusWeightState, ".", name);
  std::vector<std::byte> bytes;
  std::vector<float> sum, other;
  read_stored(name, {weight.dtype, weight.shape}, begin, end, bytes);
  to_floats(bytes, weight.dtype, sum);
  read_stored(difference, {DType::f32, weight.shape}, begin, end, bytes);
  to_floats(bytes, DType::f32, other);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  const auto all = std::as_bytes(std::span(sum));
  out.assign(all.begin(), all.end());
}

}  // namespace athanor
