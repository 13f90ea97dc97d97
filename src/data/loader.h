// Micro-batches in order, prepared ahead by one thread. Which samples a rank gets follows from the sample numbers
// alone: a rank holds micro-batches in turns of `turn` successive ones, micro-batch k of all ranks together being
// samples first_sample + k * rows + [0, rows), so a step of the same global batch takes the same samples whatever the
// number of ranks, micro-batches or restarts.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "data/dataset.h"

namespace athanor {

struct HostBatch {
  int64_t first_sample = 0;              // sample number of row 0
  std::vector<int32_t> tokens, targets;  // [rows, T]; targets are tokens one further, -1 = ignored
  std::vector<int32_t> positions;        // [rows, T] and
  std::vector<Document> documents;       // [rows, max_documents] where they vary; otherwise empty
  int64_t given_up = 0;                  // predictions ignored for want of rows in `documents`

  HostBatch(int64_t rows, int64_t seq_length, const PackingOptions& options);
  // Fills a row with a sample.
  void read(int64_t row, const Dataset& dataset, const Sample& sample, const PackingOptions& options);
};

struct LoaderOptions {
  SampleOrder order;
  int64_t first_sample = 0;  // global: samples that all ranks have consumed
  int64_t rows = 1;          // per micro-batch and rank
  int rank = 0, world = 1;   // data-parallel
  int64_t turn = 1;          // successive micro-batches that a rank holds before the next rank's
  int depth = 4;             // micro-batches prepared ahead
  PackingOptions packing = {};
};

class Loader {
 public:
  Loader(const Dataset& dataset, const LoaderOptions& options);  // dataset must outlive it
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next micro-batch; valid until the following next(). Rethrows what stopped the thread, once the micro-batches
  // before it are consumed, and at every call after that.
  const HostBatch& next();
  // Total time that next() spent waiting for data.
  double wait_seconds() const { return wait_seconds_; }

 private:
  void produce();
  void fill(HostBatch& batch, int64_t micro) const;

  const Dataset& dataset_;
  const LoaderOptions options_;
  double wait_seconds_ = 0;  // of the consumer's thread only

  std::mutex mutex_;  // guards all below; batch_[i % slots] belongs to one side between two looks at the counters
  std::condition_variable filled_changed_, released_changed_;
  std::vector<HostBatch> batches_;  // [depth + 1]: one of them is in the consumer's hands
  int64_t filled_ = 0, taken_ = 0;  // micro-batches
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace athanor
