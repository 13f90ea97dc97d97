// The C interface between the program and its MPI plug-in, a shared object beside it: the program itself needs no MPI.
#pragma once
#include <cstdint>

namespace athanor {

constexpr int kMpiPluginVersion = 1;

// Filled by the plug-in's `const athanor::MpiPlugin* athanor_mpi_plugin()`. Functions return 0, or an error code of
// MPI.
struct MpiPlugin {
  int version;  // kMpiPluginVersion
  // Enters MPI; description: the library and its version.
  int (*start)(int* rank, int* size, const char** description);
  // Messages between two ranks arrive in the order in which they were sent. *request names one that is under way.
  int (*send)(const void* data, int64_t bytes, int peer, uint64_t* request);
  int (*receive)(void* data, int64_t bytes, int peer, uint64_t* request);
  int (*test)(uint64_t* request, int* done);  // not to be asked again once it is done
  const char* (*error_text)(int code);
  void (*finish)();  // leaves MPI; all ranks must come
};

}  // namespace athanor
