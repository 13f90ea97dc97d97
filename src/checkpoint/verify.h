// Answers whether a checkpoint folder is whole, and if not, where it is damaged; shows what one contains.
#pragma once
#include <cstdint>
#include <string>

#include "checkpoint/manifest.h"

namespace athanor {

enum class Depth {
  sizes,      // manifest, presence and size of every file: milliseconds
  checksums,  // every byte is read
};

struct Verification {
  bool ok = false;
  // A file is there and the system does not let it be read (permissions, a failing disk, too many open files): that
  // says nothing about what it holds.
  bool unreadable = false;
  Manifest manifest;  // if it could be read
  // The first damage found; empty strings and an empty range where they do not apply.
  std::string problem;  // one sentence with all of the below
  std::string file, tensor;
  int64_t begin = 0, end = 0;  // bytes of the file within which the damage lies
};

// Never throws for damage; only for a world in which nothing can be said (out of memory).
Verification verify_checkpoint(const std::string& dir, Depth depth);

// A table for people: files, tensors with dtype, shape, place and size, and the keys of JSON state files.
std::string inspect_checkpoint(const std::string& dir);

}  // namespace athanor
