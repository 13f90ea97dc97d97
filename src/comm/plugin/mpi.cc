// MPI as a plug-in: only point-to-point messages of bytes. Errors are returned, not fatal, so that the program can
// report which rank is lost.
#include <mpi.h>

#include <cstring>

#include "comm/mpi_plugin.h"

namespace {

constexpr int kTag = 1;
static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request travels as a number");

uint64_t to_number(MPI_Request request) {
  uint64_t number = 0;
  std::memcpy(&number, &request, sizeof(MPI_Request));
  return number;
}

int start(int* rank, int* size, const char** description) {
  static char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int inside = 0, threads = 0, length = 0;
  if (const int code = MPI_Initialized(&inside)) return code;
  // FUNNELED is enough: the program's other threads do not call MPI.
  if (const int code = inside ? 0 : MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &threads)) return code;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Get_library_version(text, &length);
  if (char* end = std::strpbrk(text, ",\n")) *end = '\0';
  *description = text;
  if (const int code = MPI_Comm_rank(MPI_COMM_WORLD, rank)) return code;
  return MPI_Comm_size(MPI_COMM_WORLD, size);
}

int send(const void* data, int64_t bytes, int peer, uint64_t* request) {
  MPI_Request r = MPI_REQUEST_NULL;
  const int code = MPI_Isend(data, int(bytes), MPI_BYTE, peer, kTag, MPI_COMM_WORLD, &r);
  *request = to_number(r);
  return code;
}

int receive(void* data, int64_t bytes, int peer, uint64_t* request) {
  MPI_Request r = MPI_REQUEST_NULL;
  const int code = MPI_Irecv(data, int(bytes), MPI_BYTE, peer, kTag, MPI_COMM_WORLD, &r);
  *request = to_number(r);
  return code;
}

int test(uint64_t* request, int* done) {
  MPI_Request r = MPI_REQUEST_NULL;
  std::memcpy(&r, request, sizeof(MPI_Request));
  const int code = MPI_Test(&r, done, MPI_STATUS_IGNORE);
  *request = to_number(r);
  return code;
}

const char* error_text(int code) {
  static char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return text;
}

void finish() { MPI_Finalize(); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const athanor::MpiPlugin* athanor_mpi_plugin() {
  static const athanor::MpiPlugin plugin{athanor::kMpiPluginVersion, start, send, receive, test, error_text, finish};
  return &plugin;
}
