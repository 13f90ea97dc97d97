// A GPU's sensors through NVML, which comes with every driver.
#pragma once
#include <memory>

#include "cuda/libraries/library.h"
#include "device/sensors.h"

namespace athanor::cuda {

// Sensors of the GPU with CUDA's `index`. Null, logged at level debug, if NVML is missing or does not list the GPU.
std::unique_ptr<Sensors> nvml_sensors(int index, const SearchPlaces& places);

}  // namespace athanor::cuda
