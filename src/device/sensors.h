// Power, temperature, clocks and throttle reasons of a device.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace athanor {

struct SensorReading {  // a field has no value if the device has no such sensor
  std::optional<double> watts, celsius;
  std::optional<double> sm_mhz, memory_mhz;
  std::optional<int64_t> throttle_reasons;  // bits, see throttle_text
};

class Sensors {
 public:
  virtual ~Sensors() = default;
  virtual SensorReading read() = 0;  // may take milliseconds; never throws
};

// Throttle reasons that a healthy machine does not show: heat, or too little external power. The GPU's power cap is not
// one of them, since training reaches it all the time. Bits of NVML's clocks event reasons.
inline constexpr int64_t kHwSlowdown = 0x8, kSwThermal = 0x20, kHwThermal = 0x40, kHwPowerBrake = 0x80;
inline constexpr int64_t kThrottleAlarms = kHwSlowdown | kSwThermal | kHwThermal | kHwPowerBrake;

// Returns the names of the alarming reasons; "" if there are none.
std::string throttle_text(int64_t reasons);

}  // namespace athanor
