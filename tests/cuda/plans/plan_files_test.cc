// Plan files of CudnnAttention, with the fake cuDNN but without the emulated GPU, so that sanitizers work: plans are
// stored in files and restored, damaged files are handled, and backward plans are built ahead by a background thread,
// whatever becomes of them.
#include "cuda/plan_files.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "cuda/attention/cudnn_attention.h"
#include "emulator/libraries/cudnn/fake_cudnn.h"
#include "emulator/libraries/simple_machine.h"
#include "tests/temp_dir.h"

namespace athanor {
namespace {
namespace fs = std::filesystem;
using cuda::CudnnAttention;
using cuda::PlanFiles;
using ::testing::HasSubstr;
using testing::TempDir;

constexpr int64_t kTokens = 16, kHeads = 2, kDim = 8, kCols = kHeads * kDim;

struct Memory {  // packed Q, K and V rows, y, and log-sum-exp; the fake computes in host memory
  std::vector<uint16_t> qkv = std::vector<uint16_t>(kTokens * 3 * kCols, 0x3f00),
                        y = std::vector<uint16_t>(kTokens * kCols);
  std::vector<float> lse = std::vector<float>(kTokens * kHeads);
};

AttentionFwd forward(Memory& m) {
  const auto part = [&](int i) { return Tensor{m.qkv.data() + i * kCols, DType::bf16, {kTokens, kCols}, 3 * kCols}; };
  return {.y = {m.y.data(), DType::bf16, {kTokens, kCols}},
          .lse = {m.lse.data(), DType::f32, {kTokens, kHeads}},
          .q = part(0),
          .k = part(1),
          .v = part(2),
          .spans = {nullptr, DType::i32, {1, kSpanWords}},
          .shape = {kHeads, kHeads, kDim, 0, 0.5F}};
}

// Gradients packed like Q, K and V, or in separate tensors.
AttentionBwd backward(Memory& m, bool packed) {
  const AttentionFwd f = forward(m);
  const Tensor d{nullptr, DType::bf16, {kTokens, kCols}, packed ? 3 * kCols : kCols};
  return {.dq = d,
          .dk = d,
          .dv = d,
          .dy = f.y,
          .y = f.y,
          .lse = f.lse,
          .q = f.q,
          .k = f.k,
          .v = f.v,
          .spans = f.spans,
          .shape = f.shape};
}

class PlansTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_TRUE(fake.leaks().empty()); }
  CudnnAttention::Options kept(const std::string& key = "a GPU") {
    return {.tokens = kTokens, .files = {folder.path(), key}};
  }
  // The number of plans, forward and backward, that an attention with these options builds with the library.
  int made(const CudnnAttention::Options& options) {
    const int before = fake.plans_made();
    CudnnAttention attention(fake.table(), stream, options);
    EXPECT_TRUE(attention.supports(forward(memory)) && attention.supports(backward(memory, true)));
    std::vector<char> scratch(attention.scratch(forward(memory)));
    attention.run(forward(memory), scratch.data());
    EXPECT_TRUE(machine.synchronize(stream));
    for (int64_t t = 0; t < kTokens; ++t)  // equal values everywhere: every visible key has the same weight
      EXPECT_NEAR(memory.lse[size_t(t * kHeads)], std::log(double(t + 1)) + 0.5 * kDim * 0.25, 1e-2);
    return fake.plans_made() - before;
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder.path())) found.push_back(entry.path());
    return found;
  }

  emu::fakes::SimpleMachine machine;
  emu::fakes::FakeCudnn fake{machine.machine()};
  cudaStream_t stream = machine.make_stream();
  Memory memory;
  TempDir folder;
};

TEST_F(PlansTest, AreBuiltOnceAndRestoredLater) {
  EXPECT_EQ(made({.tokens = kTokens}), 2);
  EXPECT_EQ(made({.tokens = kTokens}), 2);
  EXPECT_EQ(made(kept()), 2);
  EXPECT_EQ(files().size(), 2U);
  EXPECT_EQ(made(kept()), 0);
  EXPECT_EQ(made(kept("another driver")), 2);
  EXPECT_EQ(files().size(), 4U);
}

// The window is a number read at launch; documents need another graph.
TEST_F(PlansTest, OnePlanServesEveryWindow) {
  CudnnAttention::Options options = kept();
  options.documents = true;
  const auto made_for = [&](int64_t window, int64_t documents) {
    const int before = fake.plans_made();
    AttentionFwd op = forward(memory);
    op.shape.window = window;
    op.spans.shape = {documents, kSpanWords};
    std::string why;
    EXPECT_TRUE(CudnnAttention(fake.table(), stream, options).supports(op, &why)) << why;
    return fake.plans_made() - before;
  };
  EXPECT_EQ(made_for(0, 1), 1);
  EXPECT_EQ(made_for(3, 1), 1);
  EXPECT_EQ(made_for(5, 1), 0);
  EXPECT_EQ(made_for(kTokens, 1), 0);  // masks nothing
  EXPECT_EQ(made_for(0, 3), 1);
  EXPECT_EQ(made_for(0, 4), 0);
  EXPECT_EQ(made_for(3, 3), 1);
  EXPECT_EQ(files().size(), 4U);
}

TEST_F(PlansTest, DamagedFilesAreReplaced) {
  made(kept());
  const auto corrupt = [&](const std::function<void(std::string&)>& change) {
    for (const fs::path& file : files()) {
      std::string text = read_file(file, 1 << 20);
      change(text);
      write_file(file, text);
    }
    EXPECT_EQ(made(kept()), 2);
    EXPECT_EQ(made(kept()), 0);
  };
  corrupt([](std::string& text) { text.back() ^= 1; });
  corrupt([](std::string& text) { text.resize(text.size() / 2); });
  corrupt([](std::string& text) { text.resize(10); });
  corrupt([](std::string& text) { text.clear(); });
  corrupt([](std::string& text) { text += "more"; });
  corrupt([](std::string& text) { text[9] ^= 1; });
  corrupt([](std::string& text) { text.assign(5 << 20, 'x'); });
  const auto two = files();
  fs::remove(two[0]);
  fs::copy_file(two[1], two[0]);  // the plan of another graph
  EXPECT_EQ(made(kept()), 1);
}

TEST_F(PlansTest, RefusedPlansAreRebuilt) {
  made(kept());
  machine.describe_devices({.major = 8, .minor = 0, .multiprocessors = 108});
  EXPECT_EQ(made(kept()), 2);
  EXPECT_EQ(made(kept()), 0);
}

TEST_F(PlansTest, UnusableFolderOnlyCostsTime) {
  write_file(folder.path() + "/file", "");
  EXPECT_EQ(made({.tokens = kTokens, .files = {folder.path() + "/file/plans", "a GPU"}}), 2);
  fs::create_directories(folder.path() + "/plans");
  made({.tokens = kTokens, .files = {folder.path() + "/plans", "a GPU"}});
  for (const auto& entry : fs::directory_iterator(folder.path() + "/plans")) {
    fs::remove(entry.path());
    fs::create_directory(entry.path());
  }
  EXPECT_EQ(made({.tokens = kTokens, .files = {folder.path() + "/plans", "a GPU"}}), 2);
}

TEST_F(PlansTest, OldestFilesAreDeleted) {
  const PlanFiles store(folder.path(), "a GPU");
  write_file(folder.path() + "/gemms-1.json", "{}");
  const auto before = fs::file_time_type::clock::now();
  for (int i = 0; i < PlanFiles::kMost + 3; ++i) {
    store.store(cat("graph ", i), cat("plan ", i));
    for (const fs::path& file : files())
      if (fs::last_write_time(file) > before - std::chrono::hours(1))
        fs::last_write_time(file, before - std::chrono::hours(1000 - i));
  }
  EXPECT_EQ(files().size(), size_t{PlanFiles::kMost} + 1);
  EXPECT_EQ(store.load("graph 2"), "");
  EXPECT_EQ(store.load("graph 3"), "plan 3");
  EXPECT_EQ(store.load(cat("graph ", PlanFiles::kMost + 2)), cat("plan ", PlanFiles::kMost + 2));
  store.store("nothing", "");
  EXPECT_EQ(store.load("nothing"), "");
  EXPECT_EQ(PlanFiles().load("graph 3"), "");
}

// These tests run the background thread concurrently with the caller: under the thread sanitizer they detect races.
class PlansAhead : public PlansTest {
 protected:
  CudnnAttention::Options ahead() {
    CudnnAttention::Options options = kept();
    options.enter_thread = [this] { ++entered; };
    return options;
  }
  std::atomic<int> entered{0};
};

TEST_F(PlansAhead, AreReadyWhenBackwardNeedsThem) {
  EXPECT_EQ(made(ahead()), 2);
  EXPECT_EQ(entered, 1);
  EXPECT_EQ(made(ahead()), 0);
  EXPECT_EQ(entered, 2);
}

TEST_F(PlansAhead, GradientsOfAnotherLayoutGetTheirOwnPlan) {
  CudnnAttention attention(fake.table(), stream, ahead());
  EXPECT_TRUE(attention.supports(forward(memory)));
  EXPECT_TRUE(attention.supports(backward(memory, false)));
  EXPECT_EQ(fake.plans_made(), 3);
  EXPECT_TRUE(attention.supports(backward(memory, true)));
  EXPECT_EQ(fake.plans_made(), 3);
}

TEST_F(PlansAhead, MayStayUnused) {
  CudnnAttention attention(fake.table(), stream, ahead());
  EXPECT_TRUE(attention.supports(forward(memory)));
}

TEST_F(PlansAhead, FailureIsThrownOnlyToTheCaller) {
  CudnnAttention::Options failing = ahead();
  failing.enter_thread = [] { throw Error("no device in this thread"); };
  {
    CudnnAttention attention(fake.table(), stream, failing);
    EXPECT_TRUE(attention.supports(forward(memory)));
    EXPECT_TRUE(attention.supports(backward(memory, true)));  // built by this thread
    EXPECT_EQ(fake.plans_made(), 2);
  }
  CudnnAttention attention(fake.table(), stream, {.tokens = kTokens});
  machine.fail_next("cudnnCreate", 1, int{CUDNN_STATUS_NOT_INITIALIZED});  // the handle for backward
  EXPECT_TRUE(attention.supports(forward(memory)));
  try {
    attention.supports(backward(memory, true));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot start"));
  }
  EXPECT_TRUE(attention.supports(backward(memory, true)));
}

}  // namespace
}  // namespace athanor
