// What a device says of itself while it works: power, temperature, clocks and what holds them down.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace athanor {

struct SensorReading {  // without a value: this device has no such sensor
  std::optional<double> watts, celsius;
  std::optional<double> sm_mhz, memory_mhz;
  std::optional<int64_t> throttle_reasons;  // bits, see throttle_text
};

class Sensors {
 public:
  virtual ~Sensors() = default;
  virtual SensorReading read() = 0;  // may take milliseconds; never throws
};

// Reasons that a healthy machine does not have: heat, or too little power from outside. The power limit of the GPU
// itself, which training meets all the time, is none of them. Bits of NVML's clocks event reasons.
inline constexpr int64_t kHwSlowdown = 0x8, kSwThermal = 0x20, kHwThermal = 0x40, kHwPowerBrake = 0x80;
inline constexpr int64_t kThrottleAlarms = kHwSlowdown | kSwThermal | kHwThermal | kHwPowerBrake;

// The names of the alarming reasons; "" for none.
std::string throttle_text(int64_t reasons);

}  // namespace athanor
