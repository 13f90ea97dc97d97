// System calls of this test program pass through here (faults.cc defines write, fsync, rename, ...): tests see their
// order, make the k-th one fail, cut transfers short, or die before the k-th one.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace athanor::test::faults {

struct Call {
  std::string name;  // "open", "write", "fsync", "rename", "mkdir", "fallocate", "close", "unlink"
  std::string path;  // what it is about; for renames the old name
  std::string to;    // for renames the new name
};

struct Plan {
  int fail_at = -1;           // number of the call that fails, counted from 0; -1 for none
  int error = 0;              // with this errno
  int die_at = -1;            // number of the call before which the process ends
  int bad_read = -1;          // number of the read or pread that fails with `error`, or finds the file's end (0)
  bool short_writes = false;  // write and pread move at most 7 bytes, and fail with EINTR every second time
  bool no_exchange = false;   // renameat2 fails with EINVAL, as on file systems that cannot swap
  std::string log;            // every call is appended to this file before it is made, for after a death
};

// From here to the end of scope, calls are recorded and the plan acts. One at a time.
class Scope {
 public:
  explicit Scope(const Plan& plan);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

const std::vector<Call>& calls();  // calls of the latest scope
bool fault_reached();              // whether the call, or the read, to fail was made

std::vector<Call> read_log(const std::string& path);

}  // namespace athanor::test::faults
