// A folder of cached logits: any window is read as it was written; damage, other tokens, other data and missing shards
// are refused by name.
#include "data/logit_cache.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "base/process_mark.h"
#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

constexpr float kInf = std::numeric_limits<float>::infinity();

LogitCacheInfo small(int64_t vocab_size = 300, DType dtype = DType::f16) {
  return {.teacher = "/runs/teacher",
          .teacher_fingerprint = "aa",
          .data_fingerprint = "bb",
          .documents = "one per window",
          .compute = "f32",
          .seq_length = 3,
          .vocab_size = vocab_size,
          .teacher_vocab_size = vocab_size,
          .top_k = 2,
          .windows = 5,
          .temperature = 2,
          .dtype = dtype};
}

// Any window's tokens and logits, which f16 has exactly.
struct CachedWindow {
  std::vector<int32_t> tokens, ids;
  std::vector<float> values, rest;
  CachedWindow(int64_t number, int64_t vocab_size) {
    for (int64_t t = 0; t < 3; ++t) {
      tokens.push_back(int32_t(number + t));
      rest.push_back(t == 1 ? -kInf : -0.1f * float(number + t));
      for (int64_t j = 0; j < 2; ++j) {
        ids.push_back(int32_t(vocab_size - 1 - number - t - j));
        values.push_back(j == 0 ? 0.0f : -0.25f * float(number + t));
      }
    }
  }
  TopLogitRow row() { return {.ids = ids, .values = values, .rest = rest}; }
};

void write(const std::string& folder, const LogitCacheInfo& info) {
  begin_logit_cache(folder, info);
  for (int64_t shard = 0; shard < info.shards(); ++shard) {
    LogitShardWriter writer(folder, info, shard);
    for (int64_t w = 0; w < info.windows_in(shard); ++w) {
      CachedWindow window(shard * info.shard_windows() + w, info.vocab_size);
      writer.append(window.tokens, window.row());
    }
    writer.commit();
  }
}

void expect_window(const LogitCache& cache, int64_t number) {
  const CachedWindow want(number, cache.info().vocab_size);
  CachedWindow got = want;
  got.ids.assign(got.ids.size(), 0), got.values.assign(got.values.size(), 1), got.rest.assign(got.rest.size(), 1);
  cache.read(number, want.tokens, got.row());
  EXPECT_EQ(got.ids, want.ids);
  EXPECT_EQ(got.values, want.values);
  EXPECT_EQ(got.rest, want.rest);
}

TEST(LogitCache, ReadsEveryWindowInAnyOrder) {
  const TempDir dir;
  int number = 0;
  for (const int64_t vocab_size : {300, 65536, 65537, 200'000})
    for (const DType dtype : {DType::f16, DType::f32}) {
      const std::string folder = dir / cat("cache", ++number);
      const LogitCacheInfo info = small(vocab_size, dtype);
      write(folder, info);
      const LogitCache cache(folder);
      EXPECT_EQ(cache.info(), info);
      for (const int64_t window : {4, 0, 2, 2}) expect_window(cache, window);
    }
}

// A shard has at most 1 GiB; none is made here.
TEST(LogitCache, SplitsWindowsIntoShards) {
  LogitCacheInfo info = small();
  info.seq_length = 4096, info.top_k = 64, info.windows = 5000;
  EXPECT_EQ(info.record_bytes(), 4096 * (64 * (2 + 2) + 4) + 32);
  EXPECT_EQ(info.shard_windows(), 1008);
  EXPECT_EQ(info.shards(), 5);
  EXPECT_EQ(info.windows_in(4), 5000 - 4 * 1008);
}

TEST(LogitCache, FiniteLogitsStayFiniteInHalfPrecision) {
  const TempDir dir;
  LogitCacheInfo info = small();
  info.windows = 1;
  begin_logit_cache(dir / "cache", info);
  CachedWindow window(0, 300);
  window.values = {0, -1e6f, 0, -kInf, 0, -65504};
  LogitShardWriter writer(dir / "cache", info, 0);
  writer.append(window.tokens, window.row());
  writer.commit();
  const LogitCache cache(dir / "cache");
  cache.read(0, window.tokens, window.row());
  EXPECT_EQ(window.values, (std::vector<float>{0, -65504, 0, -kInf, 0, -65504}));
}

TEST(LogitCache, RefusesNanLogits) {
  const TempDir dir;
  begin_logit_cache(dir / "cache", small());
  LogitShardWriter writer(dir / "cache", small(), 0);
  CachedWindow window(0, 300);
  window.rest[2] = NAN;
  EXPECT_ERROR(writer.append(window.tokens, window.row()), "window 0", "not finite");
}

TEST(LogitCache, RefusesDamageAndOtherTokens) {
  const TempDir dir;
  const std::string folder = dir / "cache", shard = logit_shard(folder, 0);
  write(folder, small());
  const std::string whole = read_bytes(shard);
  for (const size_t at : {size_t{0}, whole.size() / 2, whole.size() - 1}) {
    std::string damaged = whole;
    damaged[at] = char(damaged[at] ^ 1);
    write_bytes(shard, damaged);
    const LogitCache cache(folder);
    const auto window = int64_t(at) / small().record_bytes();
    EXPECT_ERROR(expect_window(cache, window), shard, cat("window ", window), "checksum");
    expect_window(cache, window == 0 ? 1 : 0);
  }
  write_bytes(shard, whole);
  const LogitCache cache(folder);
  CachedWindow window(1, 300);
  ++window.tokens[1];
  EXPECT_ERROR(cache.read(1, window.tokens, window.row()), "other tokens");
  EXPECT_ERROR(cache.read(2, CachedWindow(1, 300).tokens, window.row()), "window 2", "checksum");
}

TEST(LogitCache, RefusesMissingShards) {
  const TempDir dir;
  const std::string folder = dir / "cache";
  EXPECT_ERROR(LogitCache cache(folder), folder, "manifest.json", "cache-logits");
  write(folder, small());
  const std::string shard = logit_shard(folder, 0), whole = read_bytes(shard);
  EXPECT_TRUE(has_logit_shard(folder, small(), 0));
  write_bytes(shard, whole.substr(1));
  EXPECT_FALSE(has_logit_shard(folder, small(), 0));
  EXPECT_ERROR(LogitCache cache(folder), shard, "not complete");
}

TEST(LogitCache, ResumesOnlyItsOwnFolder) {
  const TempDir dir;
  const std::string folder = dir / "cache";
  begin_logit_cache(folder, small());
  begin_logit_cache(folder, small());
  LogitCacheInfo other = small();
  other.teacher_fingerprint = "cc", other.top_k = 3;
  EXPECT_ERROR(begin_logit_cache(folder, other), folder, "teacher_fingerprint: cached \"aa\", needed \"cc\"",
               "top_k: cached 2, needed 3");
  std::filesystem::create_directory(dir / "full");
  write_bytes(dir / "full/file", "x");
  EXPECT_ERROR(begin_logit_cache(dir / "full", small()), "files that are no cached logits");
}

TEST(LogitCache, RemovesWhatKilledProcessesLeft) {
  const pid_t killed = ::fork();
  if (killed == 0) _exit(0);
  ASSERT_EQ(waitpid(killed, nullptr, 0), killed);
  const std::string mark = process_mark(), of_killed = cat(killed, mark.substr(mark.find('-')));
  const TempDir dir;
  const std::string folder = dir / "cache";
  std::filesystem::create_directory(folder);
  for (const std::string name : {"manifest.json", "logits-00000.bin"}) {
    const std::string left = cat(folder, "/.", name, ".", of_killed, ".0.tmp");
    write_bytes(left, "x");
    write(folder, small());
    EXPECT_FALSE(std::filesystem::exists(left)) << left;
    std::filesystem::remove(folder + "/logits-00000.bin");
  }
}

TEST(LogitCache, RefusesInvalidManifests) {
  const TempDir dir;
  const std::string manifest = dir / "manifest.json", whole = small().text();
  for (const auto& [from, to] : {std::pair{"\"top_k\": 2", "\"top_k\": 301"},
                                 {"\"top_k\": 2", "\"top_k\": -1"},
                                 {"\"windows\": 5", "\"windows\": 0"},
                                 {"\"format\": 1", "\"format\": 2"},
                                 {"\"dtype\": \"f16\"", "\"dtype\": \"i8\""},
                                 {"\"temperature\": 2.0", "\"temperature\": 0"},
                                 {"{", "["}}) {
    std::string text = whole;
    ASSERT_NE(text.find(from), text.npos) << from << " in " << whole;
    write_bytes(manifest, text.replace(text.find(from), std::string(from).size(), to));
    EXPECT_ERROR(read_logit_cache_info(dir.path()), manifest);
  }
}

}  // namespace
}  // namespace athanor
