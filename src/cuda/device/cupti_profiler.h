// A GPU's profiler through CUPTI's activity records. Not verified on hardware.
#pragma once
#include <memory>

#include "cuda/libraries/library.h"
#include "device/profiler.h"

namespace athanor::cuda {

// One instance at a time. Throws Error if CUPTI is missing or too old, or if a call of it failed.
std::unique_ptr<Profiler> cupti_profiler(const SearchPlaces& places);

}  // namespace athanor::cuda
