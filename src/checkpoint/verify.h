// Verifies a checkpoint folder, locates damage in it, and prints its contents.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "checkpoint/manifest.h"

namespace athanor {

enum class Depth {
  sizes,      // manifest, presence and size of every file: milliseconds
  checksums,  // every byte is read
};

struct Verification {
  bool ok = false;
  // The file exists but the system cannot read it (permissions, failing disk, too many open files), so its content is
  // unknown.
  bool unreadable = false;
  Manifest manifest;  // if it could be read
  // The first damage found; strings and range are empty where they do not apply.
  std::string problem;  // one sentence with all fields below
  std::string file, tensor;
  int64_t begin = 0, end = 0;  // byte range of the file that contains the damage
};

// Subset of the files: those with index first, first + every, first + 2 every, ... in the manifest.
struct ShareOfFiles {
  size_t first = 0, every = 1;
};

// Damage is reported, not thrown; throws only if nothing can be determined (out of memory).
Verification verify_checkpoint(const std::string& dir, Depth depth, ShareOfFiles share = {});

// Verification method, chosen by code that looks for a checkpoint.
using Verify = std::function<Verification(const std::string& dir)>;
inline Verification verify_checksums(const std::string& dir) { return verify_checkpoint(dir, Depth::checksums); }
inline Verification verify_sizes(const std::string& dir) { return verify_checkpoint(dir, Depth::sizes); }

// A table of files, tensors (dtype, shape, placement, size) and the keys of JSON state files. zeros: also reads the
// tensors and reports the fraction of zeros.
std::string inspect_checkpoint(const std::string& dir, bool zeros = false);

}  // namespace athanor
