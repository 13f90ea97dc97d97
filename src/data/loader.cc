#include "data/loader.h"

#include <algorithm>

#include "base/error.h"
#include "base/thread.h"

namespace athanor {

HostBatch::HostBatch(int64_t rows, int64_t seq_length, const PackingOptions& options)
    : tokens(size_t(rows * seq_length)),
      targets(tokens.size()),
      pixels(size_t(rows * options.image_pixels)),
      sources(size_t(rows)),
      seq_length_(seq_length) {
  if (!options.varies()) return;
  positions.resize(tokens.size());
  documents.resize(size_t(rows * options.table_rows()));
}

Row HostBatch::at(int64_t row, const PackingOptions& options) {
  const auto t = size_t(seq_length_), at = size_t(row) * t, most = size_t(options.table_rows());
  Row out{.tokens = std::span(tokens).subspan(at, t), .targets = std::span(targets).subspan(at, t)};
  out.pixels = std::span(pixels).subspan(size_t(row * options.image_pixels), size_t(options.image_pixels));
  if (options.varies()) {
    out.positions = std::span(positions).subspan(at, t);
    out.documents = std::span(documents).subspan(size_t(row) * most, most);
  }
  return out;
}

void HostBatch::read(int64_t row, const Dataset& dataset, const Sample& sample, const PackingOptions& options) {
  given_up += dataset.read_row(sample, options, at(row, options));
  sources[size_t(row)] = int32_t(sample.source);
}

void HostBatch::read(int64_t row, const Window& window, const PackingOptions& options) {
  given_up += pack(window, options, at(row, options));
}

void HostBatch::augment(int64_t row, const Dataset& dataset, const Augmentation& how, int64_t sample) {
  if (!dataset.images()) return;
  const auto size = size_t(dataset.images()->pixels());
  athanor::augment(std::span(pixels).subspan(size_t(row) * size, size), *dataset.images(), how, sample);
}

void HostBatch::read_teacher(int64_t row, const Dataset& dataset, const Sample& sample, const LogitCache& cache) {
  const auto t = size_t(dataset.seq_length()), k = size_t(cache.info().top_k), at = size_t(row) * t;
  teacher_ids.resize(tokens.size() * k), teacher_values.resize(tokens.size() * k), teacher_rest.resize(tokens.size());
  cache.read(dataset.window_number(sample), std::span(tokens).subspan(at, t),
             {.ids = std::span(teacher_ids).subspan(at * k, t * k),
              .values = std::span(teacher_values).subspan(at * k, t * k),
              .rest = std::span(teacher_rest).subspan(at, t)});
}

Loader::Loader(const Dataset& dataset, const LoaderOptions& options) : dataset_(dataset), options_(options) {
  CHECK(options.rows > 0 && options.depth > 0, "loader: rows ", options.rows, ", depth ", options.depth);
  const MicroBatchOrder& ranks = options.ranks;
  CHECK(ranks.world > 0 && 0 <= ranks.rank && ranks.rank < ranks.world, "rank ", ranks.rank, " of ", ranks.world);
  CHECK(ranks.workers > 0 && ranks.world % ranks.workers == 0, ranks.workers, " workers of ", ranks.world, " ranks");
  CHECK(options.first_sample >= 0, "first sample ", options.first_sample);
  batches_.assign(size_t(options.depth) + 1, HostBatch(options.rows, dataset.seq_length(), options.packing));
  thread_ = start_thread("reading batches", [this] { produce(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  released_changed_.notify_one();
  thread_.join();
}

void Loader::fill(HostBatch& batch, int64_t micro) const {
  batch.first_sample = options_.first_sample + options_.ranks.number(micro) * options_.rows;
  batch.given_up = 0;
  PackingOptions packing = options_.packing;
  for (int64_t row = 0; row < options_.rows; ++row) {
    const int64_t sample = batch.first_sample + row;
    if (options_.chunk_length) packing.chunk_length = options_.chunk_length(sample);
    const Sample at = dataset_.locate(options_.order, sample);
    batch.read(row, dataset_, at, packing);
    batch.augment(row, dataset_, options_.augmentation, sample);
    if (options_.teacher_logits) batch.read_teacher(row, dataset_, at, *options_.teacher_logits);
  }
}

void Loader::produce() {
  try {
    for (int64_t micro = 0;; ++micro) {
      const int64_t slots = int64_t(batches_.size());
      {
        // Micro-batches taken_ - 1 (in use) to filled_ - 1 must be kept, so `micro` must not use the slot of one of
        // them.
        std::unique_lock lock(mutex_);
        released_changed_.wait(lock, [&] { return stop_ || micro < taken_ - 1 + slots; });
        if (stop_) return;
      }
      fill(batches_[size_t(micro % slots)], micro);
      {
        const std::lock_guard lock(mutex_);
        filled_ = micro + 1;
      }
      filled_changed_.notify_one();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    filled_changed_.notify_one();
  }
}

const HostBatch& Loader::next() {
  std::unique_lock lock(mutex_);
  filled_changed_.wait(lock, [&] { return filled_ > taken_ || failure_; });
  if (filled_ == taken_) std::rethrow_exception(failure_);
  const int64_t micro = taken_++;
  lock.unlock();
  released_changed_.notify_one();
  return batches_[size_t(micro % int64_t(batches_.size()))];
}

}  // namespace athanor
