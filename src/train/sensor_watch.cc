#include "train/sensor_watch.h"

#include <chrono>

namespace athanor {

void SensorWatch::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::seconds(1), [&] { return stopping_; })) {
    lock.unlock();
    const SensorReading reading = sensors_.read();
    lock.lock();
    latest_ = reading;
  }
}

}  // namespace athanor
