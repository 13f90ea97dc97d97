#include "data/loader.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace athanor {

Loader::Loader(const Dataset& dataset, const LoaderOptions& options) : dataset_(dataset), options_(options) {
  CHECK(options.rows > 0 && options.depth > 0, "loader: rows ", options.rows, ", depth ", options.depth);
  CHECK(options.world > 0 && 0 <= options.rank && options.rank < options.world, "rank ", options.rank, " of ",
        options.world);
  CHECK(options.first_sample >= 0, "first sample ", options.first_sample);
  batches_.resize(size_t(options.depth) + 1);
  for (HostBatch& b : batches_) {
    b.tokens.resize(size_t(options.rows * dataset.seq_length()));
    b.targets.resize(b.tokens.size());
  }
  thread_ = std::thread([this] { produce(); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  released_changed_.notify_one();
  thread_.join();
}

void Loader::fill(HostBatch& batch, int64_t micro, std::vector<int32_t>& window) const {
  const int64_t T = dataset_.seq_length();
  batch.first_sample = options_.first_sample + (micro * options_.world + options_.rank) * options_.rows;
  for (int64_t row = 0; row < options_.rows; ++row) {
    dataset_.read(options_.order, batch.first_sample + row, window);
    std::copy_n(window.begin(), T, batch.tokens.begin() + row * T);
    std::copy_n(window.begin() + 1, T, batch.targets.begin() + row * T);
  }
}

void Loader::produce() {
  try {
    std::vector<int32_t> window(size_t(dataset_.seq_length() + 1));
    for (int64_t micro = 0;; ++micro) {
      const int64_t slots = int64_t(batches_.size());
      {
        // Micro-batches taken_ - 1 (in use) to filled_ - 1 are kept; the slot of `micro` must not be among them.
        std::unique_lock lock(mutex_);
        released_changed_.wait(lock, [&] { return stop_ || micro < taken_ - 1 + slots; });
        if (stop_) return;
      }
      fill(batches_[size_t(micro % slots)], micro, window);
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
  const auto start = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  filled_changed_.wait(lock, [&] { return filled_ > taken_ || failure_; });
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (filled_ == taken_) std::rethrow_exception(failure_);
  const int64_t micro = taken_++;
  lock.unlock();
  released_changed_.notify_one();
  return batches_[size_t(micro % int64_t(batches_.size()))];
}

}  // namespace athanor
