// Programmatic dependent launch: the switch that LaunchConfig (cuda/launch.h) reads. Needs no CUDA compiler.
#pragma once
namespace athanor::cuda {

// Whether kernels that this thread launches may start while the one before them in the stream still runs (programmatic
// dependent launch). Set with the thread's current device, by CudaDevice.
inline bool& programmatic_launches() {
  thread_local bool allowed = false;
  return allowed;
}

}  // namespace athanor::cuda
