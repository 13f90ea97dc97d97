// Micro-batches in order, prefetched by a thread. A rank's samples depend only on sample numbers: micro-batch k over
// all ranks is samples first_sample + k * rows + [0, rows). So a step of the same global batch takes the same samples
// whatever the number of ranks, micro-batches or restarts.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/micro_batch_order.h"
#include "data/augmentation.h"
#include "data/dataset.h"
#include "data/logit_cache.h"

namespace athanor {

struct HostBatch {
  int64_t first_sample = 0;                         // sample number of row 0
  std::vector<int32_t> tokens, targets;             // [rows, T]; targets are the next tokens, -1 = ignored
  std::vector<int32_t> positions;                   // [rows, T]; empty unless positions vary
  std::vector<Document> documents;                  // [rows, table_rows()]; empty unless documents vary
  std::vector<uint8_t> pixels;                      // [rows, PackingOptions::image_pixels]
  std::vector<int32_t> sources;                     // [rows]: source of each row's sample
  std::vector<int32_t> teacher_ids;                 // [rows, T, k]; only with LoaderOptions::teacher_logits
  std::vector<float> teacher_values, teacher_rest;  // [rows, T, k], [rows, T]; only with LoaderOptions::teacher_logits
  int64_t given_up = 0;                             // predictions dropped because `documents` has too few rows

  HostBatch(int64_t rows, int64_t seq_length, const PackingOptions& options);
  // Fills a row from a sample.
  void read(int64_t row, const Dataset& dataset, const Sample& sample, const PackingOptions& options);
  // Fills a row from a window of T + 1 tokens.
  void read(int64_t row, const Window& window, const PackingOptions& options);
  // Changes the image of a row, which is sample number `sample` of the data set, at random.
  void augment(int64_t row, const Dataset& dataset, const Augmentation& how, int64_t sample);
  // Fills the cached teacher logits of a row that was read from the same sample.
  void read_teacher(int64_t row, const Dataset& dataset, const Sample& sample, const LogitCache& cache);

 private:
  Row at(int64_t row, const PackingOptions& options);
  int64_t seq_length_;
};

struct LoaderOptions {
  SampleOrder order;
  int64_t first_sample = 0;  // samples consumed by all ranks so far
  int64_t rows = 1;          // rows per micro-batch and rank
  MicroBatchOrder ranks = {};
  int depth = 4;  // micro-batches prepared ahead
  PackingOptions packing = {};
  Augmentation augmentation = {};  // of images
  const LogitCache* teacher_logits =
      nullptr;  // cache of the data set's windows; must outlive the loader; null: no teacher logits are read
  std::function<int64_t(int64_t)> chunk_length = {};  // chunk length of a sample, overriding `packing`; empty: that of
                                                      // `packing`
};

class Loader {
 public:
  Loader(const Dataset& dataset, const LoaderOptions& options);  // dataset must outlive it
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next micro-batch; valid until the next call of next(). An error in the thread is rethrown once the
  // micro-batches before it are consumed, and in every later call.
  const HostBatch& next();

 private:
  void produce();
  void fill(HostBatch& batch, int64_t micro) const;

  const Dataset& dataset_;
  const LoaderOptions options_;

  std::mutex mutex_;  // guards the members below; batch_[i % slots] is owned by one side until the counters change
  std::condition_variable filled_changed_, released_changed_;
  std::vector<HostBatch> batches_;  // [depth + 1]: one of them is in use by the consumer
  int64_t filled_ = 0, taken_ = 0;  // micro-batches
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace athanor
