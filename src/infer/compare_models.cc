#include "infer/compare_models.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "data/held_out.h"
#include "data/loader.h"

namespace athanor {
namespace {

struct Sums {
  double reference_loss = 0, loss = 0, kl = 0, same_top = 0, square_change = 0, tokens = 0;
};

// Returns the log-sum-exp of logits; most: their maximum.
double log_sum(std::span<const float> logits, float most) {
  double sum = 0;
  for (const float z : logits) sum += std::exp(double(z - most));
  return double(most) + std::log(sum);
}

void add_token(std::span<const float> a, std::span<const float> b, size_t target, Sums& sums) {
  const auto top_a = std::ranges::max_element(a), top_b = std::ranges::max_element(b);
  const double all_a = log_sum(a, *top_a), all_b = log_sum(b, *top_b);
  double kl = 0;
  for (size_t v = 0; v < a.size(); ++v) {
    const double log_p = double(a[v]) - all_a;
    kl += std::exp(log_p) * (log_p - (double(b[v]) - all_b));
  }
  const double log_a = double(a[target]) - all_a, log_b = double(b[target]) - all_b;
  sums.reference_loss -= log_a;
  sums.loss -= log_b;
  sums.kl += kl;
  sums.same_top += top_a - a.begin() == top_b - b.begin() ? 1 : 0;
  sums.square_change += std::pow(std::exp(log_b) - std::exp(log_a), 2);
  ++sums.tokens;
}

ModelDifference summary(std::span<const Sums> windows) {
  Sums all;
  for (const Sums& w : windows) {
    all.reference_loss += w.reference_loss;
    all.loss += w.loss;
    all.kl += w.kl;
    all.same_top += w.same_top;
    all.square_change += w.square_change;
    all.tokens += w.tokens;
  }
  const double n = all.tokens, mean = all.kl / n, count = double(windows.size());
  double variance = 0;  // windows are the clusters, as in evaluate()
  for (const Sums& w : windows) variance += std::pow((w.kl - mean * w.tokens) / n, 2);
  return {.tokens = int64_t(n),
          .windows = int64_t(windows.size()),
          .reference_loss = all.reference_loss / n,
          .loss = all.loss / n,
          .kl = mean,
          .kl_error = std::sqrt(variance * count / (count - 1)),
          .same_top = all.same_top / n,
          .probability_change = std::sqrt(all.square_change / n)};
}

}  // namespace

ModelDifference compare_models(Engine& reference, Engine& other, const Dataset& data, int64_t samples) {
  const int64_t rows = reference.options().micro_batch_size, length = data.seq_length();
  const HeldOut chosen = held_out(data, samples);
  const auto count = int64_t(chosen.windows.size());
  HostBatch batch(rows, length, data.whole_rows());
  std::vector<Sums> windows(static_cast<size_t>(count));
  for (int64_t first = 0; first < count; first += rows) {
    const int64_t here = std::min(rows, count - first);
    for (int64_t r = 0; r < here; ++r) {
      const auto [source, window] = chosen.windows[size_t(first + r)];
      batch.read(r, data, data.at(source, window), data.whole_rows());
    }
    reference.set_pixels(batch.pixels), other.set_pixels(batch.pixels);
    const std::vector<float> a = reference.logits(batch.tokens), b = other.logits(batch.tokens);
    const size_t vocabulary = a.size() / batch.tokens.size();
    for (int64_t r = 0; r < here; ++r)
      for (auto i = size_t(r * length); i < size_t((r + 1) * length); ++i)
        if (batch.targets[i] >= 0)
          add_token(std::span(a).subspan(i * vocabulary, vocabulary), std::span(b).subspan(i * vocabulary, vocabulary),
                    size_t(batch.targets[i]), windows[size_t(first + r)]);
  }
  return summary(windows);
}

}  // namespace athanor
