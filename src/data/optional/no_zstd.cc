// Replaces zstd.cc in builds without libzstd.
#include "base/error.h"
#include "data/text_input.h"
#include "data/unpack.h"

namespace athanor {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(
      cat(what,
          ": zstd data, and this program was built without it: install libzstd-dev (scripts/setup.sh) and build "
          "again, or unpack the file first"),
      Exit::usage);
}

}  // namespace

ReadBytes read_zstd(ReadBytes, const std::string& path) { refuse(path); }
void unpack_zstd(std::string_view, std::span<char>, const std::string& what) { refuse(what); }

}  // namespace athanor
