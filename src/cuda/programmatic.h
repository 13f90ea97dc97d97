// Programmatic dependent launch, without CUDA's language: see LaunchConfig in cuda/launch.h.
#pragma once
namespace athanor::cuda {

// Whether kernels that this thread launches may start while the one before them in the stream still runs (programmatic
// dependent launch). Set with the thread's current device, by CudaDevice.
inline bool& programmatic_launches() {
  thread_local bool allowed = false;
  return allowed;
}

}  // namespace athanor::cuda
