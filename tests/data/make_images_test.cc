// Image shards from IDX, CIFAR and image files: pixels as Pillow makes them, labels, splits, and what bad input ends
// in.
#include "data/make_images.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

#include "data/image_decode.h"
#include "data/image_file.h"
#include "data/picture.h"
#include "data_testing.h"

namespace athanor {
namespace {

using namespace testing;

const std::string kPictures = "tests/data/fixtures/pictures/";

// What a shard holds, read without the program's reader.
struct ReadShard {
  std::array<int32_t, 5> header{};  // version, classes, channels, height, width
  std::vector<int> labels;
  std::vector<std::string> pixels;
};

ReadShard read_shard(const std::string& path) {
  const std::string bytes = read_bytes(path);
  ReadShard shard;
  EXPECT_TRUE(bytes.starts_with("ATHIMAGE")) << path;
  if (bytes.size() < 64) return shard;
  std::memcpy(shard.header.data(), bytes.data() + 8, sizeof shard.header);
  EXPECT_EQ(bytes.substr(28, 36), std::string(36, '\0'));
  const size_t pixels = size_t(shard.header[2]) * size_t(shard.header[3]) * size_t(shard.header[4]);
  EXPECT_EQ((bytes.size() - 64) % (2 + pixels), 0u);
  for (size_t at = 64; at + 2 + pixels <= bytes.size(); at += 2 + pixels) {
    shard.labels.push_back(uint8_t(bytes[at]) + 256 * uint8_t(bytes[at + 1]));
    shard.pixels.push_back(bytes.substr(at + 2, pixels));
  }
  return shard;
}

std::string big_endian(uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += char(value >> shift);
  return text;
}

std::string idx(const std::vector<uint32_t>& sizes, const std::string& values, char type = 8) {
  std::string text = {0, 0, type, char(sizes.size())};
  for (const uint32_t size : sizes) text += big_endian(size);
  return text + values;
}

// Pixels that differ from image to image.
std::string pixels_of(int64_t images, int64_t each) {
  std::string text;
  for (int64_t i = 0; i < images * each; ++i) text += char(i * 7 + i / each * 31 + i / 251);
  return text;
}

std::string labels_of(int64_t images, int classes) {
  std::string text;
  for (int64_t i = 0; i < images; ++i) text += char(i * 3 % classes);
  return text;
}

std::string pgm(int width, int height, int value) {
  return cat("P5\n# a comment\n", width, " ", height, "\n255\n", std::string(size_t(width * height), char(value)));
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  if (std::filesystem::exists(folder))
    for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

struct MakeImages : ::testing::Test {
  TempDir dir;

  // Writes x-images-idx3-ubyte and x-labels-idx1-ubyte.
  std::string write_idx(int64_t images, const std::string& name = "x", int classes = 5) {
    write_bytes(dir / (name + "-images-idx3-ubyte"), idx({uint32_t(images), 2, 3}, pixels_of(images, 6)));
    write_bytes(dir / (name + "-labels-idx1-ubyte"), idx({uint32_t(images)}, labels_of(images, classes)));
    return dir / (name + "-images-idx3-ubyte");
  }
  MakeImagesOptions options_for(std::vector<std::string> inputs) {
    MakeImagesOptions o;
    o.inputs = std::move(inputs);
    o.output_prefix = dir / "out/p";
    o.threads = 2;
    return o;
  }
  MakeImagesOptions folder_options() {
    MakeImagesOptions o = options_for({dir / "tree"});
    o.size = 2;
    return o;
  }
};

// ---- Decoders and the resizer

TEST(Pictures, EqualPillowsToTheByte) {
  std::istringstream lines(read_bytes(kPictures + "expected.txt"));
  int checked = 0;
  for (std::string line; std::getline(lines, line); ++checked) {
    std::istringstream words(line);
    std::string name;
    int64_t size = 0, resize_to = 0, channels = 0;
    words >> name >> size >> resize_to >> channels;
    std::vector<int> expected;
    for (int value = 0; words >> value;) expected.push_back(value);
    try {
      const Picture decoded = decode_image(read_bytes(kPictures + name), name);
      const Picture got = resize_and_crop(with_channels(decoded, channels), {.shorter = resize_to, .size = size});
      EXPECT_EQ(std::vector<int>(got.pixels.begin(), got.pixels.end()), expected) << line.substr(0, 30);
    } catch (const Error& e) {
      EXPECT_TRUE(has(e.what(), "built without lib")) << e.what();
    }
  }
  EXPECT_EQ(checked, 50);
}

TEST(Pictures, EveryTruncatedFileIsAnError) {
  for (const std::string& name : names_in(kPictures)) {
    if (name == "expected.txt") continue;
    const std::string bytes = read_bytes(kPictures + name);
    for (size_t length = 0; length < bytes.size(); ++length)
      EXPECT_ERROR(decode_image(bytes.substr(0, length), "some/" + name), "some/" + name);
  }
}

TEST(Pictures, DamagedBytesNeverCrash) {
  for (const std::string& name : names_in(kPictures)) {
    if (name == "expected.txt") continue;
    const std::string bytes = read_bytes(kPictures + name);
    for (size_t at = 0; at < bytes.size(); ++at)
      for (const int flip : {0x01, 0x80, 0xff}) {
        std::string damaged = bytes;
        damaged[at] = char(damaged[at] ^ flip);
        try {
          const Picture picture = decode_image(damaged, "some/" + name);
          EXPECT_EQ(int64_t(picture.pixels.size()), picture.channels * picture.height * picture.width);
        } catch (const Error& e) {
          EXPECT_TRUE(has(e.what(), "some/" + name)) << e.what();
        }
      }
  }
}

TEST(Pictures, JpegFilesOfManyScansAreErrors) {
  const std::string bytes = read_bytes(kPictures + "progressive.jpg");
  const size_t begin = bytes.find("\xff\xda");  // the first scan, which sets the mean of each block
  size_t end = begin + 2;
  while (bytes[end] != '\xff' || bytes[end + 1] == 0) ++end;
  const auto repeated = [&](int times) {
    std::string scans;
    for (int i = 0; i < times; ++i) scans += bytes.substr(begin, end - begin);
    return error_of([&] { decode_image(bytes.substr(0, begin) + scans + bytes.substr(end), "x.jpg"); });
  };
  if (has(repeated(1), "built without libjpeg")) GTEST_SKIP() << "no libjpeg";
  EXPECT_EQ(repeated(50), "no error");
  expect_parts(repeated(120), {"x.jpg", "damaged JPEG data"});
}

TEST(Pictures, PgmHeadersAreChecked) {
  const auto refused = [](const std::string& bytes, const std::string& part) {
    EXPECT_ERROR(decode_image(bytes, "x.pgm"), "x.pgm", part);
  };
  refused("P5 2 2 65535\n", "up to 65535, expected 255");
  refused("P5 2 2 255\nabc", "3 bytes of pixels, expected 4");
  refused("P5 2 2 255", "expected white space at byte 10");
  refused("P5 0 2 255\n", "0 x 2 pixels");
  refused("P6 99999999999999999999999 9 255\n", "1073741824 x 9 pixels");
  refused("P6 16384 16384 255\n", "at most 134217728 pixels");
  refused("P5 # never ends", "expected a number at byte 15");
  refused("P5 -1 2 255\n", "expected a number at byte 3");
  refused("P2 1 1 255\n7", "expected a JPEG, PNG, PPM (P6) or PGM (P5) file");
  refused("", "the file is empty");
  EXPECT_EQ(decode_image("P5 1 1 255\n7more", "x").pixels, std::vector<uint8_t>{'7'});
}

TEST(Pictures, ExtremeShapesAreResized) {
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{1, 16384}, {16384, 1}, {1, 1}, {3, 2}}) {
    Picture picture = make_picture(1, height, width, "x");
    std::fill(picture.pixels.begin(), picture.pixels.end(), uint8_t{200});
    for (const int64_t shorter : {1, 7, 300}) {
      const Picture got = resize_and_crop(picture, {.shorter = shorter, .size = std::min<int64_t>(shorter, 50)});
      EXPECT_EQ(got.pixels, std::vector<uint8_t>(got.pixels.size(), 200)) << height << " x " << width;
    }
  }
}

// ---- IDX

TEST_F(MakeImages, StoresIdxImagesUnchanged) {
  const MakeImagesResult result = make_images(options_for({write_idx(7)}));
  EXPECT_EQ(result.train_images, 7);
  EXPECT_EQ(result.files, (std::vector<std::string>{dir / "out/p_train_000000.bin", dir / "out/p_classes.txt"}));
  EXPECT_EQ(names_in(dir / "out"), (std::vector<std::string>{"p_classes.txt", "p_train_000000.bin"}));
  const ReadShard shard = read_shard(dir / "out/p_train_000000.bin");
  EXPECT_EQ(shard.header, (std::array<int32_t, 5>{1, 5, 1, 2, 3}));
  EXPECT_EQ(shard.labels, (std::vector<int>{0, 3, 1, 4, 2, 0, 3}));
  std::string all;
  for (const std::string& pixels : shard.pixels) all += pixels;
  EXPECT_EQ(all, pixels_of(7, 6));
  EXPECT_EQ(read_bytes(dir / "out/p_classes.txt"), "0\n1\n2\n3\n4\n");
  expect_parts(result.summary, {"7 images of 5 classes, 1 channel(s) of 2 x 3 pixels",
                                "training: 7 images, 1 to 2 of a class", dir / "out/p_classes.txt"});
}

TEST_F(MakeImages, FindsIdxLabelsByName) {
  const std::string images = write_idx(4);
  std::filesystem::rename(dir / "x-labels-idx1-ubyte", dir / "else");
  EXPECT_ERROR(make_images(options_for({images})), dir / "x-labels-idx1-ubyte", "--labels");
  std::filesystem::rename(images, dir / "x");
  EXPECT_ERROR(make_images(options_for({dir / "x"})), dir / "x", "has no \"images\"", "--labels");
  MakeImagesOptions o = options_for({dir / "x"});
  o.labels = dir / "else";
  EXPECT_EQ(make_images(o).train_images, 4);
  std::filesystem::rename(dir / "x", dir / "x-images.idx3-ubyte");
  std::filesystem::rename(dir / "else", dir / "x-labels.idx1-ubyte");
  o = options_for({dir / "x-images.idx3-ubyte"});
  o.overwrite = true;
  EXPECT_EQ(make_images(o).train_images, 4);
  o.inputs.push_back(write_idx(9, "y", 8));
  EXPECT_EQ(make_images(o).train_images, 13);
  EXPECT_EQ(read_shard(dir / "out/p_train_000000.bin").header[1], 8);
  o.labels = dir / "else";
  EXPECT_ERROR(make_images(o), "--labels: expected one images file", "got 2");
}

TEST_F(MakeImages, RefusesDamagedIdxFiles) {
  const std::string images = write_idx(4), good = read_bytes(images);
  const auto refused = [&](const std::string& bytes, const std::vector<std::string>& parts) {
    write_bytes(images, bytes);
    MakeImagesOptions o = options_for({images});
    o.format = "idx";
    expect_error([&] { make_images(o); }, parts);
    EXPECT_EQ(names_in(dir / "out"), std::vector<std::string>{});
  };
  refused(good.substr(0, good.size() - 1), {images, "ends after", "before what its header says"});
  refused(good.substr(0, 3), {images, "ends after 3 bytes"});
  refused("", {images, "ends after 0 bytes"});
  refused(good + "x", {images, "more bytes than the 40"});
  refused("x" + good, {images, "begins with two zero bytes", "got 120 0"});
  refused(idx({4, 2, 3, 1}, pixels_of(4, 6)), {images, "in 4 dimensions", "expected images", "in 3 (grey images)"});
  refused(idx({4, 2, 3}, pixels_of(4, 6), 13), {images, "type 13"});
  refused(idx({5, 2, 3}, pixels_of(5, 6)), {dir / "x-labels-idx1-ubyte", "4 labels for 5 images"});
  refused(idx({4, 0, 3}, ""), {images, "0 rows of pixels"});
  refused(idx({4, 0xffffffff, 0xffffffff}, ""), {images, "4294967295 rows"});
  write_bytes(dir / "x-labels-idx1-ubyte", idx({0xffffffff}, "abc"));
  refused(idx({0xffffffff, 1, 1}, "abc"), {dir / "x-labels-idx1-ubyte", "ends after 11 bytes"});
  write_bytes(dir / "x-labels-idx1-ubyte", idx({0}, ""));
  refused(idx({0, 1, 1}, ""), {images, "no images"});
}

TEST_F(MakeImages, RefusesImagesThatDoNotFitOnTheDisk) {
  MakeImagesOptions o = options_for({write_idx(60000)});
  o.size = 16384;  // 60,000 images of 256 MiB: 15 TiB
  EXPECT_ERROR(make_images(o), o.output_prefix, "60000 images of 16384 x 16384 pixels need 14.6 TiB", "are free",
               "--size");
}

TEST_F(MakeImages, ReadsGzippedIdxFiles) {
  const std::string images = write_idx(7), labels = dir / "x-labels-idx1-ubyte";
  const std::string shard = dir / "out/p_train_000000.bin";
  make_images(options_for({images}));
  const std::string expected = read_bytes(shard);
  MakeImagesOptions o = options_for({images + ".gz"});
  o.overwrite = true;
  for (const std::string& plain : {images, labels}) {  // the labels of gzipped images may be gzipped or not
    ASSERT_EQ(std::system(cat("gzip '", plain, "'").c_str()), 0);
    std::filesystem::remove(shard);
    const std::string error = error_of([&] { make_images(o); });
    if (has(error, "built without it: install zlib")) GTEST_SKIP() << "no zlib";
    EXPECT_EQ(error, "no error") << plain;
    EXPECT_EQ(read_bytes(shard), expected) << plain;
  }
}

// ---- CIFAR

TEST_F(MakeImages, ReadsCifarFiles) {
  std::string ten, hundred;
  for (int i = 0; i < 6; ++i) {
    const std::string pixels = pixels_of(1, 3072);
    ten += char(9 - i) + pixels;
    hundred += std::string{char(17), char(94 + i)} + pixels;
  }
  write_bytes(dir / "ten.bin", ten);
  write_bytes(dir / "hundred.bin", hundred);
  MakeImagesOptions o = options_for({dir / "ten.bin", dir / "ten.bin"});
  EXPECT_ERROR(make_images(o), dir / "ten.bin", "neither a folder nor an IDX file", "--format cifar10");
  o.format = "cifar10";
  EXPECT_EQ(make_images(o).train_images, 12);
  ReadShard shard = read_shard(dir / "out/p_train_000000.bin");
  EXPECT_EQ(shard.header, (std::array<int32_t, 5>{1, 10, 3, 32, 32}));
  EXPECT_EQ(shard.labels, (std::vector<int>{9, 8, 7, 6, 5, 4, 9, 8, 7, 6, 5, 4}));
  EXPECT_EQ(shard.pixels[3], pixels_of(1, 3072));

  o.inputs = {dir / "hundred.bin"};
  o.overwrite = true;
  EXPECT_ERROR(make_images(o), dir / "hundred.bin", "image 0 has the label 17", "cifar100");
  o.format = "cifar100";
  o.channels = 1;
  o.size = 8;
  EXPECT_EQ(make_images(o).train_images, 6);
  shard = read_shard(dir / "out/p_train_000000.bin");
  EXPECT_EQ(shard.header, (std::array<int32_t, 5>{1, 100, 1, 8, 8}));
  EXPECT_EQ(shard.labels, (std::vector<int>{94, 95, 96, 97, 98, 99}));

  write_bytes(dir / "hundred.bin", hundred.substr(0, hundred.size() - 1));
  EXPECT_ERROR(make_images(o), dir / "hundred.bin", "in the middle of image 5");
  EXPECT_EQ(read_shard(dir / "out/p_train_000000.bin").labels.size(), 6u);  // the old shard stays
  EXPECT_EQ(names_in(dir / "out"), (std::vector<std::string>{"p_classes.txt", "p_train_000000.bin"}));
}

// ---- Folders

TEST_F(MakeImages, SortsClassesAndFilesByBytes) {
  write_bytes(dir / "tree/b/2.pgm", pgm(2, 2, 12));
  write_bytes(dir / "tree/b/10.PGM", pgm(2, 2, 11));
  write_bytes(dir / "tree/b/deep/er/x.pgm", pgm(2, 2, 13));
  write_bytes(dir / "tree/a/x.pgm", pgm(5, 3, 2));
  write_bytes(dir / "tree/Z/x.pgm", pgm(2, 3, 1));
  write_bytes(dir / "tree/Z/notes.txt", "text");
  write_bytes(dir / "tree/.hidden/x.pgm", pgm(2, 2, 99));
  write_bytes(dir / "tree/top.pgm", pgm(2, 2, 99));
  MakeImagesOptions o = folder_options();
  const MakeImagesResult result = make_images(o);
  const ReadShard shard = read_shard(dir / "out/p_train_000000.bin");
  EXPECT_EQ(shard.header, (std::array<int32_t, 5>{1, 3, 3, 2, 2}));
  EXPECT_EQ(shard.labels, (std::vector<int>{0, 1, 2, 2, 2}));
  std::string values;
  for (const std::string& pixels : shard.pixels) {
    EXPECT_EQ(pixels, std::string(12, pixels[0]));
    values += pixels[0];
  }
  EXPECT_EQ(values, "\x01\x02\x0b\x0c\x0d");
  EXPECT_EQ(read_bytes(dir / "out/p_classes.txt"), "Z\na\nb\n");
  EXPECT_EQ(result.ignored_files, 3);
  expect_parts(result.summary, {"3 file(s) ignored", "1 to 3 of a class"});
  EXPECT_TRUE(result.warnings.empty());

  o.threads = 1;
  o.overwrite = true;
  o.inputs.push_back(dir / "tree");  // classes of several folders are one set
  make_images(o);
  EXPECT_EQ(read_shard(dir / "out/p_train_000000.bin").labels, (std::vector<int>{0, 1, 2, 2, 2}));
}

TEST_F(MakeImages, FollowsLinksButReadsNoFolderTwice) {
  write_bytes(dir / "tree/a/x.pgm", pgm(2, 2, 1));
  write_bytes(dir / "elsewhere/y.pgm", pgm(2, 2, 2));
  std::filesystem::create_directory_symlink(dir / "elsewhere", dir / "tree/b");
  for (const char* loop : {"1", "2", "3"})
    std::filesystem::create_directory_symlink(dir / "tree", dir / "tree/a" + ("/" + std::string(loop)));
  std::filesystem::create_symlink(dir / "elsewhere/y.pgm", dir / "tree/a/z.pgm");
  const MakeImagesResult result = make_images(folder_options());
  EXPECT_EQ(read_bytes(dir / "out/p_classes.txt"), "a\nb\n");
  const ReadShard shard = read_shard(dir / "out/p_train_000000.bin");
  EXPECT_EQ(shard.labels, (std::vector<int>{0, 0, 0, 1}));  // the links lead from a to tree, and so to b once
  std::filesystem::create_symlink(dir / "nowhere", dir / "tree/a/zz.pgm");
  MakeImagesOptions o = folder_options();
  o.overwrite = true;
  EXPECT_ERROR(make_images(o), "zz.pgm", "--skip-bad");
}

TEST_F(MakeImages, DamagedImagesAreErrorsOrLeftOut) {
  write_bytes(dir / "tree/a/1.pgm", pgm(2, 2, 1));
  write_bytes(dir / "tree/a/2.jpg", "not an image");
  write_bytes(dir / "tree/b/1.png", "");
  write_bytes(dir / "tree/b/2.pgm", pgm(2, 2, 2));
  ASSERT_EQ(::mkfifo((dir / "tree/b/3.pgm").c_str(), 0600), 0);
  MakeImagesOptions o = folder_options();
  EXPECT_ERROR(make_images(o), dir / "tree/a/2.jpg", "expected a JPEG", "--skip-bad");
  EXPECT_EQ(names_in(dir / "out"), std::vector<std::string>{});
  o.skip_bad = true;
  const MakeImagesResult result = make_images(o);
  EXPECT_EQ(result.bad_images, 3);
  EXPECT_EQ(result.train_images, 2);
  expect_parts(result.summary, {"3 damaged image(s) left out, the first: ", dir / "tree/a/2.jpg"});
  o.overwrite = true;
  std::filesystem::remove(dir / "tree/a/1.pgm");
  std::filesystem::remove(dir / "tree/b/2.pgm");
  EXPECT_ERROR(make_images(o), "no images", "3 damaged");
}

TEST_F(MakeImages, UnusualFoldersAreNamed) {
  std::filesystem::create_directories(dir / "tree");
  MakeImagesOptions o = folder_options();
  EXPECT_ERROR(make_images(o), dir / "tree", "one subfolder per class", "no subfolder");
  write_bytes(dir / "tree/a/notes.txt", "text");
  EXPECT_ERROR(make_images(o), dir / "tree", "no images", "1 other files", "notes.txt");
  EXPECT_EQ(names_in(dir / "out"), std::vector<std::string>{});
  write_bytes(dir / "tree/a/x.pgm", pgm(2, 2, 1));
  const MakeImagesResult one = make_images(o);
  ASSERT_EQ(one.warnings.size(), 1u);
  expect_parts(one.warnings[0], {"only one class, \"a\""});
  std::filesystem::create_directories(dir / "tree/empty");
  o.overwrite = true;
  const MakeImagesResult two = make_images(o);
  ASSERT_EQ(two.warnings.size(), 1u);
  expect_parts(two.warnings[0], {"1 of 2 classes have no image", "\"empty\""});
  std::filesystem::create_directories(dir / "tree/line\nbreak");
  EXPECT_ERROR(make_images(o), "line break");
  o.inputs = {dir / "none"};
  EXPECT_ERROR(make_images(o), dir / "none");
  o.format = "folder";
  EXPECT_ERROR(make_images(o), dir / "none");
}

// ---- Splits and outputs

TEST_F(MakeImages, HoldsOutByTheBytesOfTheInput) {
  const std::string images = write_idx(400);
  MakeImagesOptions o = options_for({images});
  o.valid_every = 4;
  const MakeImagesResult result = make_images(o);
  EXPECT_EQ(result.train_images + result.valid_images, 400);
  EXPECT_NEAR(double(result.valid_images), 100, 30);
  const ReadShard first = read_shard(dir / "out/p_val_000000.bin");
  EXPECT_EQ(int64_t(first.labels.size()), result.valid_images);
  o.size = 1;
  o.overwrite = true;
  make_images(o);
  EXPECT_EQ(read_shard(dir / "out/p_val_000000.bin").labels, first.labels);  // the same images at any size
  o.valid_every = 1 << 30;
  EXPECT_EQ(make_images(o).valid_images, 0);
  EXPECT_EQ(names_in(dir / "out"), (std::vector<std::string>{"p_classes.txt", "p_train_000000.bin"}));
}

TEST_F(MakeImages, BothSplitsShareClassNames) {
  for (const char* name : {"a", "b", "c"}) write_bytes(cat(dir.path(), "/tree/", name, "/x.pgm"), pgm(2, 2, 1));
  write_bytes(dir / "test/c/x.pgm", pgm(2, 2, 3));
  make_images(folder_options());
  MakeImagesOptions o = folder_options();
  o.inputs = {dir / "test"};
  EXPECT_ERROR(make_images(o), dir / "out/p_train_000000.bin", "exists already", "--overwrite");
  o.split = "val";
  EXPECT_EQ(make_images(o).valid_images, 1);
  EXPECT_EQ(read_shard(dir / "out/p_val_000000.bin").labels, std::vector<int>{2});
  EXPECT_EQ(read_shard(dir / "out/p_val_000000.bin").header[1], 3);
  EXPECT_EQ(read_bytes(dir / "out/p_classes.txt"), "a\nb\nc\n");
  EXPECT_ERROR(make_images(o), dir / "out/p_val_000000.bin", "exists already");
  write_bytes(dir / "test/d/x.pgm", pgm(2, 2, 3));
  o.overwrite = true;
  EXPECT_ERROR(make_images(o), "class \"d\"", dir / "out/p_classes.txt", "3 classes");
  std::filesystem::remove_all(dir / "test/d");
  o.size = 3;
  EXPECT_ERROR(make_images(o), dir / "out/p_train_000000.bin has images of 3 classes, 3 channel(s) and 2 x 2 pixels",
               "3 x 3 pixels", "--size");
  std::filesystem::remove(dir / "out/p_classes.txt");
  EXPECT_ERROR(make_images(o), dir / "out/p_train_000000.bin", dir / "out/p_classes.txt");
}

TEST_F(MakeImages, RefusesOptionsThatDoNotFit) {
  const std::string images = write_idx(4);
  const auto refused = [&](auto change, const std::vector<std::string>& parts) {
    MakeImagesOptions o = options_for({images});
    change(o);
    expect_error([&] { make_images(o); }, parts);
    EXPECT_FALSE(std::filesystem::exists(dir / "out"));
  };
  using O = MakeImagesOptions;
  refused([](O& o) { o.inputs = {}; }, {"at least one input"});
  refused([](O& o) { o.output_prefix += "/"; }, {"output prefix"});
  refused([](O& o) { o.split = "test"; }, {"\"train\" or \"val\"", "\"test\""});
  refused([](O& o) { o.valid_every = 1; }, {"valid-every", "at least 2"});
  refused([](O& o) { o.valid_every = 2, o.split = "val"; }, {"valid-every", "--split val"});
  refused([](O& o) { o.format = "tar"; }, {"format", "\"tar\""});
  refused([](O& o) { o.size = 20000; }, {"size", "16384", "20000"});
  refused([](O& o) { o.resize_to = 4; }, {"resize-to", "--size"});
  refused([](O& o) { o.size = 5, o.resize_to = 4; }, {"resize-to", "(5)", "got 4"});
  refused([](O& o) { o.channels = 2; }, {"channels", "1 or 3"});
  refused([&](O& o) { o.inputs = {dir.path()}; }, {"size", "folders"});
  refused([&](O& o) { o.inputs = {dir.path()}, o.labels = images; }, {"labels", "IDX"});
  write_bytes(dir / "y-images-idx3-ubyte", idx({1, 3, 3}, pixels_of(1, 9)));
  write_bytes(dir / "y-labels-idx1-ubyte", idx({1}, "\1"));
  refused([&](O& o) { o.inputs.push_back(dir / "y-images-idx3-ubyte"); }, {"different sizes", "--size"});
}

}  // namespace
}  // namespace athanor
