// A GPU's sensors through NVML, which comes with every driver.
#pragma once
#include <memory>

#include "cuda/libraries/library.h"
#include "device/sensors.h"

namespace athanor::cuda {

// Of the GPU that CUDA counts as `index`. Null where NVML is missing or does not know it, said at level debug.
std::unique_ptr<Sensors> nvml_sensors(int index, const SearchPlaces& places);

}  // namespace athanor::cuda
