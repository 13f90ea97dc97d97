// Shards of images as training data: what is read, in which order, changed how, and what is refused.
#include <algorithm>
#include <set>

#include "data/image_file.h"
#include "data/loader.h"
#include "data/report.h"
#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

constexpr ImageFormat kFormat{.classes = 5, .channels = 2, .height = 3, .width = 4};
constexpr int64_t kTokens = 4;

// Image i has label i % 5, and pixels that name it.
std::vector<uint8_t> image(int64_t i) {
  std::vector<uint8_t> pixels(size_t(kFormat.pixels()));
  for (size_t p = 0; p < pixels.size(); ++p) pixels[p] = uint8_t(10 * i + int64_t(p));
  return pixels;
}

void write_images(const std::string& path, int64_t first, int64_t count, const ImageFormat& format = kFormat) {
  ImageWriter writer(path, format);
  for (int64_t i = first; i < first + count; ++i) writer.append(i % 5, image(i));
  writer.finish();
}

struct ImageData : ::testing::Test {
  ImageData() {
    write_images(dir / "a.bin", 0, 6);
    write_images(dir / "b.bin", 6, 3);
  }
  Dataset open(const std::string& glob, const ImageFormat& format = kFormat) const {
    return Dataset::open_images({{.path_glob = dir / glob}}, kTokens, format);
  }
  TempDir dir;
};

TEST_F(ImageData, EpochReadsEveryImageOnceWithItsLabel) {
  const Dataset data = open("*.bin");
  EXPECT_EQ(data.windows(), 9);
  EXPECT_TRUE(data.doubts().empty());
  HostBatch batch(1, kTokens, data.whole_rows());
  std::vector<int64_t> order;
  for (int64_t n = 0; n < 9; ++n) {
    batch.read(0, data, data.locate({.seed = 3}, n), data.whole_rows());
    const int64_t i = batch.pixels[0] / 10;
    order.push_back(i);
    EXPECT_EQ(batch.pixels, image(i));
    EXPECT_EQ(batch.tokens, (std::vector<int32_t>{1, 0, 0, 0}));
    EXPECT_EQ(batch.targets, (std::vector<int32_t>{int32_t(i % 5), -1, -1, -1}));
  }
  EXPECT_FALSE(std::ranges::is_sorted(order)) << "images are shuffled";
  EXPECT_EQ(std::set(order.begin(), order.end()).size(), 9u);
  EXPECT_NE(data.fingerprint(), open("a.bin").fingerprint());
}

TEST_F(ImageData, LoaderGivesAnyDivisionIntoMicroBatchesTheSameImages) {
  const Dataset data = open("*.bin");
  const Augmentation augmentation{.seed = 7, .horizontal_flip = true, .crop_padding = 1};
  const auto pixels = [&](int64_t rows) {
    Loader loader(data,
                  {.order = {.seed = 3}, .rows = rows, .packing = data.whole_rows(), .augmentation = augmentation});
    std::vector<uint8_t> all;
    for (int64_t n = 0; n < 12; n += rows) std::ranges::copy(loader.next().pixels, std::back_inserter(all));
    return all;
  };
  EXPECT_EQ(pixels(1), pixels(4));
}

TEST_F(ImageData, AugmentationMirrorsAndMovesImages) {
  const std::vector<uint8_t> before = image(0);
  const int64_t w = kFormat.width, h = kFormat.height;
  std::set<std::tuple<int64_t, int64_t, bool>> seen;
  for (int64_t sample = 0; sample < 200; ++sample) {
    std::vector<uint8_t> after = before;
    augment(after, kFormat, {.seed = 1, .horizontal_flip = true, .crop_padding = 1}, sample);
    int matches = 0;
    for (int64_t down = -1; down <= 1; ++down)
      for (int64_t right = -1; right <= 1; ++right)
        for (const bool flip : {false, true}) {
          bool same = true;
          for (int64_t c = 0; c < kFormat.channels; ++c)
            for (int64_t y = 0; y < h; ++y)
              for (int64_t x = 0; x < w; ++x) {
                const int64_t fy = y - down, fx = flip ? w - 1 - (x - right) : x - right;
                const bool inside = fy >= 0 && fy < h && x - right >= 0 && x - right < w;
                const uint8_t want = inside ? before[size_t((c * h + fy) * w + fx)] : 0;
                same = same && after[size_t((c * h + y) * w + x)] == want;
              }
          if (same) seen.insert({down, right, flip}), ++matches;
        }
    EXPECT_EQ(matches, 1) << sample;
  }
  EXPECT_EQ(seen.size(), 18u) << "every change occurs";
  std::vector<uint8_t> unchanged = before;
  augment(unchanged, kFormat, {.seed = 1}, 0);
  EXPECT_EQ(unchanged, before);
}

TEST_F(ImageData, OtherShardsAreRefused) {
  EXPECT_ERROR(open("a.bin", {.classes = 5, .channels = 2, .height = 4, .width = 3}), "a.bin", "2 x 3 x 4", "2 x 4 x 3",
               "model.image_size");
  EXPECT_ERROR(open("a.bin", {.classes = 4, .channels = 2, .height = 3, .width = 4}), "5 classes", "4", "num_labels");
  EXPECT_ERROR(Dataset::open({{.path_glob = dir / "a.bin"}}, 4, 300), "a.bin", "expected tokens, found images");
  write_bytes(dir / "text.bin", llmc(counting(100)));
  EXPECT_ERROR(open("text.bin"), "text.bin", "expected images, found tokens", "data images");
  std::string bytes = read_bytes(dir / "a.bin");
  write_bytes(dir / "cut.bin", bytes.substr(0, bytes.size() - 1));
  EXPECT_ERROR(open("cut.bin"), "cut.bin", "truncated");
  write_bytes(dir / "head.bin", bytes.substr(0, 40));
  EXPECT_ERROR(open("head.bin"), "head.bin", "header");
  bytes[8] = 2;
  write_bytes(dir / "new.bin", bytes);
  EXPECT_ERROR(open("new.bin"), "new.bin", "version 1", "2");
}

TEST_F(ImageData, LabelOutsideTheClassesIsFoundWhenItIsRead) {
  std::string bytes = read_bytes(dir / "a.bin");
  bytes[size_t(kImageHeaderBytes + kFormat.record_bytes())] = 9;
  write_bytes(dir / "bad.bin", bytes);
  const Dataset data = open("bad.bin");
  HostBatch batch(1, kTokens, data.whole_rows());
  EXPECT_ERROR(batch.read(0, data, data.at(0, 1), data.whole_rows()), "bad.bin", "image 1 has label 9", "5 classes");
  const std::vector<std::string> paths = {dir / "bad.bin"};
  const DataInfo info = image_info(paths);
  EXPECT_FALSE(info.sound);
  expect_parts(info.text, {"problem", "image 1 has label 9"});
}

TEST_F(ImageData, InfoCountsClassesAndPixels) {
  const std::vector<std::string> paths = {dir / "a.bin", dir / "b.bin"};
  const DataInfo info = data_info({.path_globs = {dir / "*.bin"}});
  EXPECT_TRUE(info.sound) << info.text;
  expect_parts(info.text,
               {"6 images of 2 x 3 x 4", "total: 9 images in 2 shard(s)", "5 of 5 have images, 1 to 2 each"});
  // Pixels 10 i + p for i < 9: of channel 0, with p < 12, the mean is 45.5; of channel 1 it is 12 more.
  expect_parts(info.text, {"channel 0 mean 0.1784", "channel 1 mean 0.2255"});
  EXPECT_EQ(data_verify({.path_globs = {dir / "*.bin"}}), info.text);
}

}  // namespace
}  // namespace athanor
