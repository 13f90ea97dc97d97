// The C interface between the program and its MPI plug-in, a shared object beside it: the program does not link MPI.
#pragma once
#include <cstdint>

namespace athanor {

constexpr int kMpiPluginVersion = 1;

// Filled in by the plug-in's `const athanor::MpiPlugin* athanor_mpi_plugin()`. Functions return 0 or an MPI error code.
struct MpiPlugin {
  int version;  // kMpiPluginVersion
  // Initializes MPI; description: the library and its version.
  int (*start)(int* rank, int* size, const char** description);
  // Messages between two ranks arrive in the order of sending. *request identifies a pending one.
  int (*send)(const void* data, int64_t bytes, int peer, uint64_t* request);
  int (*receive)(void* data, int64_t bytes, int peer, uint64_t* request);
  int (*test)(uint64_t* request, int* done);  // do not call again once it is done
  const char* (*error_text)(int code);
  void (*finish)();  // finalizes MPI; collective over all ranks
};

}  // namespace athanor
