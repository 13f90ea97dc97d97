// libFuzzer target: any bytes as a parquet file, as a block of snappy and as runs of integers. Whatever they are,
// reading ends in texts, no more than the file says, or in an Error, and memory stays within what pages may take.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/hybrid_decoder.h"
#include "data/parquet_column.h"
#include "data/unpack.h"
#include "tests/fuzz/laws.h"

namespace {

using namespace athanor;

// A file only in memory.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("parquet", MFD_CLOEXEC)) {
    if (fd_ < 0 || ::write(fd_, bytes.data(), bytes.size()) != ssize_t(bytes.size())) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return cat("/proc/self/fd/", fd_); }

 private:
  int fd_;
};

constexpr int64_t kMaxRows = 5000;  // a few bytes may stand for any number of rows

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const MemoryFile memory(input);
  survive([&] {
    ParquetColumn column(memory.path(), "text");
    int64_t rows = 0;
    while (rows < kMaxRows && column.next()) ++rows;
    require(rows <= column.rows());
  });
  survive([&] {
    ParquetColumn column(memory.path(), "text");
    column.skip(std::min<int64_t>(column.rows() / 2, kMaxRows));
    column.next();
  });
  if (size < 2) return 0;
  survive([&] {
    std::string out(data[0] * size_t{16}, '\0');
    unpack_snappy(input.substr(1), out, "fuzz");
  });
  survive([&] {
    HybridDecoder decoder(input.substr(1), data[0] % 34);
    const int width = data[0] % 34;
    for (int64_t i = 0; i < kMaxRows; ++i) {
      const uint64_t value = decoder.next();
      require(value >> width == 0);
    }
  });
  return 0;
}
