#include "device/sensors.h"

#include <utility>

namespace athanor {

std::string throttle_text(int64_t reasons) {
  std::string text;
  for (const auto& [bit, name] : {std::pair{kHwSlowdown, "hardware slowdown"},
                                  {kSwThermal, "heat (by the driver)"},
                                  {kHwThermal, "heat (by the hardware)"},
                                  {kHwPowerBrake, "power brake from outside"}})
    if (reasons & bit) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

}  // namespace athanor
