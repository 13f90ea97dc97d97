// Laws of the loader: rows are the data set's samples, the order ignores ranks and restarts, failures surface in
// next().
#include "data/loader.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <tuple>

#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

constexpr int64_t kT = 16;

struct LoaderTest : ::testing::Test {
  TempDir dir;
  std::unique_ptr<Dataset> data;
  LoaderTest() {
    write_bytes(dir / "a.bin", llmc(counting(10'001)));  // 625 windows
    write_bytes(dir / "b.bin", llmc(counting(1'601, 30'000)));
    data = std::make_unique<Dataset>(Dataset::open({{dir / "a.bin", 3}, {dir / "b.bin", 1}}, kT, 0));
  }
  void expect_row(const HostBatch& batch, int64_t row, const SampleOrder& order) const {
    std::vector<int32_t> tokens(kT), targets(kT);
    const Sample sample = data->locate(order, batch.first_sample + row);
    data->read_row(sample, data->whole_rows(), {.tokens = tokens, .targets = targets});
    ASSERT_EQ(batch.sources[size_t(row)], sample.source);
    for (int64_t t = 0; t < kT; ++t) {
      ASSERT_EQ(batch.tokens[size_t(row * kT + t)], tokens[size_t(t)]);
      ASSERT_EQ(batch.targets[size_t(row * kT + t)], targets[size_t(t)]);
    }
  }
};

TEST_F(LoaderTest, DeliversSamplesInOrderForEveryDepth) {
  for (int depth : {1, 2, 7}) {
    Loader loader(*data, {.order = {.seed = 5}, .first_sample = 13, .rows = 3, .depth = depth});
    for (int64_t micro = 0; micro < 50; ++micro) {
      const HostBatch& batch = loader.next();
      ASSERT_EQ(batch.first_sample, 13 + micro * 3);
      ASSERT_EQ(batch.tokens.size(), size_t(3 * kT));
      for (int64_t row = 0; row < 3; ++row) expect_row(batch, row, {.seed = 5});
    }
  }
}

// Tests all epochs and orders.
TEST_F(LoaderTest, DeliversTheCachedLogitsOfEachSample) {
  const LogitCacheInfo info{
      .seq_length = kT, .vocab_size = 65536, .teacher_vocab_size = 65536, .top_k = 2, .windows = data->windows()};
  begin_logit_cache(dir / "logits", info);
  LogitShardWriter writer(dir / "logits", info, 0);
  HostBatch window(1, kT, {});
  for (int64_t w = 0; w < info.windows; ++w) {
    window.read(0, *data, data->window(w), {});
    ASSERT_EQ(data->window_number(data->window(w)), w);
    std::vector<int32_t> ids;
    for (const int32_t token : window.tokens) ids.insert(ids.end(), {token, token + 1});
    std::vector<float> values(2 * kT, -float(w)), rest(kT, float(w));
    writer.append(window.tokens, {.ids = ids, .values = values, .rest = rest});
  }
  writer.commit();
  const LogitCache cache(dir / "logits");
  for (const int rank : {0, 1}) {
    Loader loader(*data, {.order = {.seed = 5},
                          .first_sample = data->windows() - 20,
                          .rows = 3,
                          .ranks = {.rank = rank, .world = 2},
                          .teacher_logits = &cache});
    for (int64_t micro = 0; micro < 10; ++micro) {
      const HostBatch& batch = loader.next();
      for (size_t i = 0; i < batch.tokens.size(); ++i) {
        ASSERT_EQ(batch.teacher_ids[2 * i], batch.tokens[i]);
        ASSERT_EQ(batch.teacher_ids[2 * i + 1], batch.tokens[i] + 1);
        ASSERT_EQ(batch.teacher_values[2 * i], -batch.teacher_rest[i]);
      }
    }
  }
}

// The current batch must not be overwritten, however far the prefetch thread runs ahead.
TEST_F(LoaderTest, BatchStaysValidUntilTheNextCall) {
  Loader loader(*data, {.order = {.seed = 5}, .rows = 2, .depth = 2});
  for (int i = 0; i < 20; ++i) {
    const HostBatch& batch = loader.next();
    const HostBatch copy = batch;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    ASSERT_EQ(batch.tokens, copy.tokens);
    ASSERT_EQ(batch.first_sample, copy.first_sample);
  }
}

// The global batch of 24 rows as 1 x 24, 2 ranks x 12, 4 x 3 x 2 micro-batches, ...: the same rows at the same places.
TEST_F(LoaderTest, OrderDoesNotDependOnRanksOrMicroBatches) {
  constexpr int64_t kGlobal = 24, kSteps = 3;
  std::vector<int32_t> expected;
  {
    Loader loader(*data, {.order = {.seed = 9}, .rows = kGlobal * kSteps});
    expected = loader.next().tokens;
  }
  for (const auto& [world, rows] : {std::pair<int, int64_t>{2, 12}, {4, 3}, {3, 8}, {8, 1}, {1, 4}}) {
    std::vector<int32_t> got(expected.size(), -1);
    for (int rank = 0; rank < world; ++rank) {
      Loader loader(*data, {.order = {.seed = 9}, .rows = rows, .ranks = {.rank = rank, .world = world}});
      for (int64_t micro = 0; micro < kSteps * kGlobal / (world * rows); ++micro) {
        const HostBatch& batch = loader.next();
        std::copy(batch.tokens.begin(), batch.tokens.end(), got.begin() + batch.first_sample * kT);
      }
    }
    EXPECT_EQ(got, expected) << world << " ranks of " << rows << " rows";
  }
}

// Lengths of chunks follow from the sample's number: for any ranks, micro-batches and restarts; and no sample moves.
TEST_F(LoaderTest, ChunkLengthDependsOnTheSampleNumber) {
  constexpr int64_t kSamples = 48;
  const auto length = [](int64_t sample) { return 2 + sample / 4; };
  const PackingOptions packing{.max_chunks = 8};
  const SampleOrder order{.seed = 9};
  for (const auto& [world, rows, first] :
       {std::tuple<int, int64_t, int64_t>{1, kSamples, 0}, {2, 12, 0}, {4, 3, 0}, {1, 4, 20}, {3, 1, 30}})
    for (int rank = 0; rank < world; ++rank) {
      Loader loader(*data, {.order = order,
                            .first_sample = first,
                            .rows = rows,
                            .ranks = {.rank = rank, .world = world},
                            .packing = packing,
                            .chunk_length = length});
      for (int64_t micro = 0; micro < (kSamples - first) / (world * rows); ++micro) {
        const HostBatch& batch = loader.next();
        for (int64_t row = 0; row < rows; ++row) {
          expect_row(batch, row, order);
          const int64_t l = length(batch.first_sample + row);
          for (int64_t t = 0; t < kT; ++t) ASSERT_EQ(batch.positions[size_t(row * kT + t)], t % l);
          for (int64_t chunk = 0, begin = 0; chunk < 8; ++chunk, begin += l) {
            const int64_t n = std::max<int64_t>(0, std::min(l, kT - begin));
            const Document want = n > 0 ? Document{int32_t(begin), int32_t(n)} : Document{};
            ASSERT_EQ(batch.documents[size_t(row * 8 + chunk)], want) << batch.first_sample + row;
          }
        }
      }
    }
}

TEST_F(LoaderTest, ChunkGivesARankSuccessiveMicroBatches) {
  for (const int rank : {0, 1}) {
    Loader loader(*data, {.rows = 2, .ranks = {.rank = rank, .world = 2, .chunk = 3}});
    std::vector<int64_t> first;
    for (int micro = 0; micro < 6; ++micro) first.push_back(loader.next().first_sample);
    const int64_t own = rank * 6;
    EXPECT_EQ(first, (std::vector<int64_t>{own, own + 2, own + 4, own + 12, own + 14, own + 16}));
  }
}

// Two workers, of one or two ranks, with micro-batches of any size: each gets half of the samples of every step.
TEST_F(LoaderTest, WorkersGetEqualPartsOfAStepForAnyRanks) {
  constexpr int64_t kStep = 8;
  for (const auto& [ranks, rows] : {std::pair<int, int64_t>{1, 4}, {1, 1}, {2, 2}, {2, 1}})
    for (const int worker : {0, 1})
      for (const int64_t step : {0, 1, 2}) {
        std::vector<int64_t> samples;
        const int64_t per_step = kStep / (2 * ranks * rows);
        for (int rank = 0; rank < ranks; ++rank) {
          const MicroBatchOrder order{
              .rank = worker * ranks + rank, .world = 2 * ranks, .workers = 2, .per_step = per_step};
          Loader loader(*data, {.rows = rows, .ranks = order});
          for (int64_t micro = 0; micro < (step + 1) * per_step; ++micro) {
            const int64_t first = loader.next().first_sample;
            for (int64_t row = 0; row < rows && micro >= step * per_step; ++row) samples.push_back(first + row);
          }
        }
        std::ranges::sort(samples);
        for (int64_t i = 0; i < kStep / 2; ++i)
          EXPECT_EQ(samples[size_t(i)], step * kStep + worker * (kStep / 2) + i) << ranks << " " << rows;
      }
}

TEST_F(LoaderTest, RestartContinuesWhereTheRunStopped) {
  Loader whole(*data, {.order = {.seed = 9}, .rows = 4});
  for (int i = 0; i < 10; ++i) whole.next();
  Loader resumed(*data, {.order = {.seed = 9}, .first_sample = 40, .rows = 4});
  for (int i = 0; i < 10; ++i) ASSERT_EQ(whole.next().tokens, resumed.next().tokens);
}

TEST_F(LoaderTest, UnshuffledModeStartsWithTheFirstWindows) {
  const Dataset only_a = Dataset::open({{dir / "a.bin"}}, kT, 0);
  Loader loader(only_a, {.order = {.shuffled = false}, .rows = 2});
  const HostBatch& batch = loader.next();
  for (int64_t i = 0; i < 2 * kT; ++i) {
    EXPECT_EQ(batch.tokens[size_t(i)], i);
    EXPECT_EQ(batch.targets[size_t(i)], i + 1);
  }
}

TEST_F(LoaderTest, FailuresAreRethrownByEveryNextCall) {
  Loader loader(*data, {.order = {.seed = 5}, .rows = 2, .depth = 2});
  const std::vector<int32_t> first = loader.next().tokens;
  std::filesystem::resize_file(dir / "a.bin", 1500);
  std::string message;
  for (int i = 0; i < 10 && message.empty(); ++i) try {
      loader.next();
    } catch (const Error& e) {
      message = e.what();
    }
  expect_parts(message, {"a.bin"});  // detected before a read, or by a read that came too late
  EXPECT_TRUE(message.find("1500 now") != std::string::npos || message.find("truncated") != std::string::npos)
      << message;
  EXPECT_THROW(loader.next(), Error);
  EXPECT_THROW(loader.next(), Error);
}

// Batches prepared before the failure are still valid: a run trains on them before it stops.
TEST_F(LoaderTest, BatchesBeforeAFailureAreDelivered) {
  auto tokens = counting(1'000, 0, 100);
  tokens.insert(tokens.begin(), 100'000, 5);
  tokens[60'000] = 100;  // in window 3750: not near the ends that are checked at open
  write_bytes(dir / "bad.bin", llmc(tokens));
  const Dataset bad = Dataset::open({{dir / "bad.bin"}}, kT, 100);
  Loader loader(bad, {.order = {.shuffled = false}, .first_sample = 3747, .depth = 8});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (int64_t n = 3747; n < 3749; ++n) EXPECT_EQ(loader.next().first_sample, n);
  expect_parts(error_of([&] {
                 loader.next();  // 3749's last target is 60000 = 3750's first token
               }),
               {"bad.bin", "token 60000 is 100"});
}

TEST_F(LoaderTest, StopsWithoutReadingTheRemainingDepth) {
  std::atomic<int> samples = 0;
  const auto slow = [&](int64_t) {
    ++samples;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return kT;
  };
  Loader(*data, {.depth = 1000, .chunk_length = slow}).next();
  EXPECT_LT(samples, 1000);
}

TEST_F(LoaderTest, InvalidOptionsAreErrors) {
  EXPECT_THROW(Loader(*data, {.rows = 0}), Error);
  EXPECT_THROW(Loader(*data, {.depth = 0}), Error);
  EXPECT_THROW(Loader(*data, {.ranks = {.rank = 2, .world = 2}}), Error);
  EXPECT_THROW(Loader(*data, {.ranks = {.rank = -1}}), Error);
  EXPECT_THROW(Loader(*data, {.first_sample = -1}), Error);
}

}  // namespace
}  // namespace athanor
