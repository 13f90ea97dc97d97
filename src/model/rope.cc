// The table of rotary embeddings, and scaling of its frequencies to longer contexts, computed as in transformers.
#include <algorithm>
#include <cmath>

#include "model/model.h"

namespace athanor {
namespace {

// [Llama 3.1 release]: long wavelengths are stretched, short ones kept, and those between are blended.
double llama3_frequency(double frequency, const RopeScaling& s) {
  const double wavelength = 2 * M_PI / frequency, context = double(s.original_max_position_embeddings);
  const double smooth = (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
  const double blend = std::clamp(smooth, 0.0, 1.0);
  return (1 - blend) * frequency / s.factor + blend * frequency;
}

// [Peng et al. 2023, sec. 3.2, "NTK-by-parts"], with the ramp over dimensions instead of wavelengths. `i`: index of the
// frequency, below D / 2.
double yarn_frequency(double frequency, int64_t i, const ModelConfig& m) {
  const RopeScaling& s = m.rope_scaling;
  const double dim = double(rotary_dim(m)), context = double(s.original_max_position_embeddings);
  // Returns the dimension whose frequency makes `turns` full rotations within the original context.
  const auto dimension_of = [&](double turns) {
    return dim * std::log(context / (turns * 2 * M_PI)) / (2 * std::log(m.rope_theta));
  };
  double low = dimension_of(s.beta_fast), high = dimension_of(s.beta_slow);
  if (s.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // avoids a division by zero; the ramp becomes a step
  const double stretched = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
  return stretched * frequency / s.factor + (1 - stretched) * frequency;
}

double stretched_frequency(int64_t i, const ModelConfig& m) {
  const double frequency =
      std::pow(m.rope_theta, -2.0 * double(i) / double(rotary_dim(m)));  // [Su et al. 2021, eq. 15]
  switch (m.rope_scaling.rope_type) {
    case RopeType::none:
      break;
    case RopeType::linear:
      return frequency / m.rope_scaling.factor;  // [Chen et al. 2023, position interpolation]
    case RopeType::llama3:
      return llama3_frequency(frequency, m.rope_scaling);
    case RopeType::yarn:
      return yarn_frequency(frequency, i, m);
    case RopeType::proportional:  // pairs that are not whole within this fraction are not rotated
      if (2 * double(i + 1) > m.rope_scaling.partial_rotary_factor * double(rotary_dim(m))) return 0;
      return frequency / m.rope_scaling.factor;
  }
  return frequency;
}

}  // namespace

std::vector<double> rope_frequencies(const ModelConfig& m) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < rotary_dim(m) / 2; ++i) frequencies.push_back(stretched_frequency(i, m));
  return frequencies;
}

std::vector<float> rope_table(const ModelConfig& m, int64_t positions) {
  const int64_t half = rotary_dim(m) / 2;
  const std::vector<double> frequencies = rope_frequencies(m);
  const double scale = attention_factor(m.rope_scaling);
  std::vector<float> table(size_t(positions * rotary_dim(m)));
  for (int64_t i = 0; i < half; ++i)
    for (int64_t p = 0; p < positions; ++p) {
      const double angle = double(p) * double(float(frequencies[size_t(i)]));
      table[size_t(p * rotary_dim(m) + i)] = float(scale * std::cos(angle));
      table[size_t(p * rotary_dim(m) + half + i)] = float(scale * std::sin(angle));
    }
  return table;
}

}  // namespace athanor
