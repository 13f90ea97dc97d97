// Reads a device's sensors once a second on a separate thread, so that no step waits for them.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

#include "device/sensors.h"

namespace athanor {

class SensorWatch {
 public:
  explicit SensorWatch(Sensors& sensors) : sensors_(sensors), latest_(sensors.read()), thread_([this] { run(); }) {}
  ~SensorWatch() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  SensorWatch(const SensorWatch&) = delete;
  SensorWatch& operator=(const SensorWatch&) = delete;

  SensorReading latest() const {
    const std::lock_guard lock(mutex_);
    return latest_;
  }

 private:
  void run();

  Sensors& sensors_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  SensorReading latest_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace athanor
