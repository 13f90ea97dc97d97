// libFuzzer target: any bytes as a token shard. Whatever they are, opening and reading end in tokens or in an Error.
// Build by hand:
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -Isrc tests/fuzz/shard_fuzz.cc \
//     src/data/{token_file,token_format,format_flat,format_megatron,stable_file,document_index,dataset,packing,order,glob}.cc
//     \ src/base/{error,file,checksum}.cc -o shard_fuzz
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/dataset.h"
#include "data/token_file.h"
#include "tests/fuzz/laws.h"

namespace {

using namespace athanor;

// Files only in memory: nothing is left behind, and no disk slows the fuzzer down.
class MemoryFile {
 public:
  MemoryFile(const uint8_t* bytes, size_t size) : fd_(::memfd_create("shard", MFD_CLOEXEC)) {
    if (fd_ < 0 || ::write(fd_, bytes, size) != ssize_t(size)) std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  std::string path() const { return cat("/proc/self/fd/", fd_); }
  void truncate(size_t size) const {
    if (::ftruncate(fd_, off_t(size)) != 0) std::abort();
  }

 private:
  int fd_;
};

template <class Fn>
bool survives(Fn&& fn) {
  try {
    fn();
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const char* dtypes[] = {"auto", "uint16", "uint32", "int8", "int32", "uint64", "int64", "float32", "float64"};
  const std::string dtype = dtypes[data[0] % std::size(dtypes)];
  const int64_t vocab = data[1] % 2 ? int64_t{data[1]} * 300 : 0;
  const MemoryFile memory(data + 2, size - 2);

  survives([&] {
    const TokenFile file = TokenFile::open(memory.path(), dtype, vocab);
    const TokenLayout& layout = file.layout();
    require(layout.count >= 0 && layout.offset >= 0 &&
            layout.count <= (int64_t(size - 2) - layout.offset) / item_size(layout.type));
    std::vector<int32_t> tokens(size_t(std::min<int64_t>(file.count(), 300)));
    for (int64_t at : {int64_t{0}, file.count() / 2, file.count() - int64_t(tokens.size()), int64_t{-1}})
      if (survives([&] { file.read(at, tokens); }))
        for (int32_t t : tokens) require(t >= 0 && (vocab == 0 || t < vocab));
    std::vector<uint8_t> mask(tokens.size());
    file.read_mask(file.count() - int64_t(mask.size()), mask);
    for (uint8_t m : mask) require(m <= 1);
  });
  survives([&] {
    const Dataset dataset = Dataset::open({{memory.path(), 1, dtype}}, 1 + data[0] % 7, vocab);
    std::vector<int32_t> tokens(size_t(dataset.seq_length())), targets(tokens.size());
    const auto read = [&](const SampleOrder& order, int64_t n) {
      dataset.read_row(dataset.locate(order, n), dataset.whole_rows(), {.tokens = tokens, .targets = targets});
    };
    for (int64_t n = 0; n < std::min<int64_t>(dataset.windows(), 50); ++n)
      survives([&] { read({.seed = data[1]}, n); });
    memory.truncate((size - 2) / 2);
    require(!survives([&] { read({}, 0); }));
  });
  return 0;
}
