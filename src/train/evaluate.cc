#include "train/evaluate.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "base/int.h"
#include "comm/texts.h"

namespace athanor {

void set_documents(Engine& engine, const HostBatch& batch) {
  if (batch.documents.empty()) return;
  const EngineOptions& o = engine.options();
  const int64_t given = int64_t(batch.documents.size()) / o.micro_batch_size;  // of each sequence
  std::vector<Span> spans;
  for (int64_t s = 0; s < o.micro_batch_size; ++s)
    for (int64_t d = 0; d < o.documents_per_sequence; ++d) {
      const Document document = d < given ? batch.documents[size_t(s * given + d)] : Document{};
      const auto begin = narrow<int32_t>(s * o.seq_length + document.begin);
      spans.push_back({.q_begin = begin, .q_len = document.length, .k_begin = begin, .k_len = document.length});
    }
  engine.set_documents(std::move(spans), batch.positions);
}

EvalResult evaluate(Engine& engine, const Dataset& data, const EvalOptions& options, Communicator* control) {
  const int64_t rows = engine.options().micro_batch_size;
  const int64_t windows = options.samples > 0 ? std::min(options.samples, data.windows()) : data.windows();
  HostBatch batch(rows, data.seq_length(), options.packing);
  EvalResult result;
  std::vector<double> sums(size_t(div_ceil(windows, rows)));  // of each micro-batch: added in order, on whatever rank
  // Every rank makes as many calls: those whose rows are all beyond the end as well.
  for (int64_t turn = 0; turn < windows; turn += rows * engine.ranks()) {
    if (options.stop && options.stop()) {
      result.stopped = true;
      return result;
    }
    const int64_t first = turn + rows * engine.rank();
    std::fill(batch.targets.begin(), batch.targets.end(), -1);  // rows that have no window left keep their last tokens
    try {
      for (int64_t r = 0; r < std::min(rows, windows - first) && result.failure.empty(); ++r)
        batch.read(r, data, {.seed = 0, .shuffled = false}, first + r, options.packing);
    } catch (const Error& e) {
      result.failure = e.what();
      result.failed_here = true;
      if (!control) return result;
      std::fill(batch.targets.begin(), batch.targets.end(), -1);  // the others wait for this rank's part
    }
    set_documents(engine, batch);
    const double sum = engine.evaluate(batch.tokens, batch.targets);
    if (first < windows) sums[size_t(first / rows)] = sum;
    for (const int32_t target : batch.targets) {
      result.tokens += target >= 0;
      if (target >= 0 && size_t(target) < options.token_bytes.size())
        result.bytes += options.token_bytes[size_t(target)];
    }
  }
  if (control) {
    std::array counts = {double(result.tokens), result.bytes, result.failure.empty() ? 0.0 : 1.0};
    control->all_reduce({counts.data(), DType::f64, {int64_t(counts.size())}}, Reduce::sum, Lane::compute);
    control->all_reduce({sums.data(), DType::f64, {int64_t(sums.size())}}, Reduce::sum, Lane::compute);
    result.tokens = int64_t(counts[0]), result.bytes = counts[1];
    if (counts[2] > 0) result.failure = first_text(*control, result.failure);
  }
  result.loss = std::accumulate(sums.begin(), sums.end(), 0.0) / double(std::max<int64_t>(1, result.tokens));
  return result;
}

}  // namespace athanor
