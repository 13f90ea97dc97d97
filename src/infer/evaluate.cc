#include "infer/evaluate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>
#include <vector>

#include "base/int.h"
#include "comm/texts.h"
#include "data/held_out.h"

namespace athanor {

void set_documents(Engine& engine, const HostBatch& batch) {
  if (batch.documents.empty()) return;
  const EngineOptions& o = engine.options();
  const int64_t given = int64_t(batch.documents.size()) / o.micro_batch_size;  // documents per sequence
  std::vector<Span> spans;
  for (int64_t s = 0; s < o.micro_batch_size; ++s)
    for (int64_t d = 0; d < o.documents_per_sequence; ++d) {
      const Document document = d < given ? batch.documents[size_t(s * given + d)] : Document{};
      const auto begin = narrow<int32_t>(s * o.seq_length + document.begin);
      spans.push_back({.q_begin = begin, .q_len = document.length, .k_begin = begin, .k_len = document.length});
    }
  engine.set_documents(std::move(spans), batch.positions);
}

namespace {

// Returns bits per byte from a mean loss over tokens whose texts have `bytes` bytes.
double bits_per_byte_of(double loss, double tokens, double bytes) {
  return bytes > 0 ? loss * tokens / (bytes * std::numbers::ln2) : std::numeric_limits<double>::quiet_NaN();
}

// Sums over the predicted tokens of one window.
struct Found {
  double loss = 0, tokens = 0, bytes = 0;  // sums
  double correct = 0;                      // images whose class was predicted
};

// Mean over the tokens of one source, with windows as clusters [Cochran 1977, "Sampling Techniques", eq. 6.13, without
// finite-population correction: the error is that of the loss on such text].
struct Mean {
  double loss = 0, variance = 0, bytes = 0, correct = 0;  // per token
  double tokens = 0;
};

Mean mean_of(std::span<const Found> windows) {
  Mean mean;
  double counted = 0;
  for (const Found& w : windows) {
    mean.loss += w.loss;
    mean.tokens += w.tokens;
    mean.bytes += w.bytes;
    mean.correct += w.correct;
    counted += w.tokens > 0 ? 1 : 0;
  }
  if (mean.tokens == 0) return mean;
  mean.loss /= mean.tokens;
  mean.bytes /= mean.tokens;
  mean.correct /= mean.tokens;
  for (const Found& w : windows) mean.variance += std::pow((w.loss - mean.loss * w.tokens) / mean.tokens, 2);
  mean.variance *= counted / (counted - 1);  // NaN (0 / 0) with one window
  return mean;
}

EvalResult result_of(const Dataset& data, const HeldOut& chosen, std::span<const Found> found) {
  EvalResult result{.windows = int64_t(found.size()), .windows_all = chosen.all};
  double shares = 0, variance = 0, tokens = 0, accuracy = 0;
  for (size_t first = 0, end = 0; first < found.size(); first = end) {
    const int64_t source = chosen.windows[first].source;
    while (end < found.size() && chosen.windows[end].source == source) ++end;
    const Mean mean = mean_of(found.subspan(first, end - first));
    if (mean.tokens == 0) continue;
    if (data.sources() > 1)
      result.sources.push_back({.source = source,
                                .loss = mean.loss,
                                .loss_error = std::sqrt(mean.variance),
                                .bits_per_byte = bits_per_byte_of(mean.loss, 1, mean.bytes),
                                .tokens = int64_t(mean.tokens),
                                .windows = int64_t(end - first),
                                .windows_all = data.windows(source)});
    const double share = data.share(source);
    shares += share;
    tokens += mean.tokens;
    result.loss += share * mean.loss;
    result.bytes += share * mean.bytes;
    accuracy += share * mean.correct;
    variance += share * share * mean.variance;
  }
  result.tokens = int64_t(tokens);
  if (shares == 0) return result;
  result.loss /= shares;
  result.loss_error = std::sqrt(variance) / shares;
  result.bytes *= tokens / shares;
  if (data.images()) result.accuracy = accuracy / shares;
  return result;
}

// Returns the sums of one row of the last evaluated micro-batch.
Found found_in_row(const HostBatch& batch, std::span<const float> losses, const std::vector<int32_t>& token_bytes,
                   int64_t row, int64_t t) {
  Found found;
  for (auto i = size_t(row * t); i < size_t((row + 1) * t); ++i) {
    const int32_t target = batch.targets[i];
    if (target < 0) continue;
    found.loss += double(losses[i]);
    ++found.tokens;
    if (size_t(target) < token_bytes.size()) found.bytes += token_bytes[size_t(target)];
  }
  return found;
}

}  // namespace

double EvalResult::bits_per_byte() const { return bits_per_byte_of(loss, double(tokens), bytes); }

EvalResult evaluate(Engine& engine, const Dataset& data, const EvalOptions& options, Communicator* control) {
  const int64_t rows = engine.options().micro_batch_size;
  const HeldOut chosen = held_out(data, options.samples);
  const auto windows = int64_t(chosen.windows.size());
  HostBatch batch(rows, data.seq_length(), options.packing);
  EvalResult broken;                                           // returned instead of a result
  std::vector<Found> found(static_cast<size_t>(windows) + 1);  // each is filled by one rank; the last counts failures
  // Every rank makes the same number of calls, even if all its rows are past the end.
  for (int64_t turn = 0; turn < windows; turn += rows * engine.ranks()) {
    if (options.stop && options.stop()) {  // if this rank has failed, a resumed run will fail again
      EvalResult none;
      none.stopped = true;
      return none;
    }
    const int64_t first = turn + rows * engine.rank(), here = std::clamp<int64_t>(windows - first, 0, rows);
    // Rows past the end keep the tokens of another window: a router would send equal tokens to the same experts, which
    // may be more than their ranks have room for.
    const int64_t filled = turn == 0 ? rows : here;
    std::fill(batch.targets.begin(), batch.targets.end(), -1);
    try {
      for (int64_t r = 0; r < filled && broken.failure.empty(); ++r) {
        const auto [source, window] = chosen.windows[size_t((first + r) % windows)];
        batch.read(r, data, data.at(source, window), options.packing);
      }
      std::fill(batch.targets.begin() + here * data.seq_length(), batch.targets.end(), -1);
    } catch (const Error& e) {
      broken.failure = e.what();
      broken.failed_here = true;
      if (!control) return broken;
      std::fill(batch.targets.begin(), batch.targets.end(), -1);  // the other ranks wait for this rank's contribution
    }
    set_documents(engine, batch);
    engine.set_pixels(batch.pixels);
    engine.evaluate(batch.tokens, batch.targets);
    if (!engine.reports_losses()) continue;
    const std::vector<float> losses = engine.losses();
    const std::vector<int32_t> classes = engine.predicted_classes();
    for (int64_t r = 0; r < here; ++r) {
      Found& sums = found[size_t(first + r)];
      sums = found_in_row(batch, losses, options.token_bytes, r, data.seq_length());
      if (!classes.empty()) sums.correct = classes[size_t(r)] == batch.targets[size_t(r * data.seq_length())] ? 1 : 0;
    }
  }
  if (control) {
    found.back().loss = broken.failure.empty() ? 0 : 1;
    constexpr int64_t kNumbers = sizeof(Found) / sizeof(double);
    control->all_reduce({found.data(), DType::f64, {int64_t(found.size()) * kNumbers}}, Reduce::sum, Stream::compute);
    if (found.back().loss > 0) broken.failure = first_text(*control, broken.failure);
    if (!broken.failure.empty()) return broken;
  }
  return result_of(data, chosen, std::span(found).first(size_t(windows)));
}

}  // namespace athanor
