// libFuzzer target: any bytes as what lies beside a shard (Megatron's .idx, nanotron's .index, .metadata and .loss),
// and as a file of multiple-choice questions. Whatever they are: documents and masks that agree with the shard, or an
// Error.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/dataset.h"
#include "data/questions.h"
#include "data/token_file.h"
#include "tests/fuzz/laws.h"
#include "tokenizer/byte_tokenizer.h"

namespace {

using namespace athanor;

constexpr int64_t kTokens = 24;

// In memory where the system has such a folder; one for each process, used again and again.
struct Scratch {
  std::string path = cat(std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp", "/athanor-fuzz-", ::getpid());
  Scratch() { std::filesystem::create_directories(path); }
  ~Scratch() { std::filesystem::remove_all(path); }
};

const std::string& folder() {
  static const Scratch scratch;
  return scratch.path;
}

void put(const std::string& path, std::string_view bytes) { std::ofstream(path, std::ios::binary) << bytes; }

void use(const std::string& path, const char* dtype) {
  const TokenFile file = TokenFile::open(path, dtype);
  std::vector<uint8_t> mask(size_t(file.count()));
  file.read_mask(0, mask);
  if (const auto& index = file.layout().documents) {
    int64_t before = 0;
    for (int64_t i = 0; i < std::min<int64_t>(index->count(), 1000); ++i) {
      require(index->end(i) >= before && index->end(i) <= file.count());
      before = index->end(i);
    }
    const DocumentStatistics s = index->statistics();
    require(s.count == index->count() && s.tokens == (s.count > 0 ? index->end(s.count - 1) : 0));
    for (int64_t at = 0; at < file.count(); at += 5)
      for (const int64_t end : index->ends_within(at, 7)) require(end > at && end <= at + 7);
  }
  const PackingOptions options{
      .reset_attention_mask = true, .reset_position_ids = true, .eod_id = 3, .max_documents = 2};
  const Dataset dataset = Dataset::open({{path, 1, dtype}}, 6, 0);
  std::vector<int32_t> tokens(6), targets(6), positions(6);
  std::vector<Document> documents(2);
  for (int64_t n = 0; n < dataset.windows(); ++n) {
    dataset.read_row(dataset.locate({}, n), options, {tokens, targets, positions, documents});
    int32_t covered = 0;
    for (const Document& d : documents) covered += d.length;
    require(covered == 6);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<uint8_t> tokens(kTokens * 2, 1);
  const std::string shard(tokens.begin(), tokens.end());
  const std::string kinds[] = {".idx", ".ds.index", ".ds.metadata", ".ds.loss", ".questions"};
  const std::string& kind = kinds[data[0] % std::size(kinds)];
  const std::string side = folder() + "/x" + kind, path = folder() + (kind == ".idx" ? "/x.bin" : "/x.ds");
  put(side, bytes);
  try {
    if (kind == ".questions") {
      const ByteTokenizer tokenizer;
      for (const Question& q : read_questions(side, tokenizer, {.seq_length = 64, .vocab_size = 257})) {
        require(!q.context.empty() && q.choices.size() >= 2 && size_t(q.label) < q.choices.size());
        for (const auto& choice : q.choices) require(!choice.empty() && choice.size() <= 64);
      }
    } else {
      put(path, shard);
      use(path, kind == ".idx" || kind == ".ds.metadata" ? "auto" : "uint16");
    }
  } catch (const Error&) {
  }
  std::filesystem::remove(side);
  return 0;
}
