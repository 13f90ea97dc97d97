// Helpers of the checkpoint tests: a temporary folder, and tensors with known random content.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "checkpoint/safetensors_writer.h"
#include "tests/expect_error.h"

namespace athanor::test {

// In memory if the machine has such a file system: syncing costs nothing there, so that crash tests can be many.
inline std::filesystem::path scratch_base() {
  const std::filesystem::path shm = "/dev/shm";
  return access(shm.c_str(), W_OK) == 0 ? shm : std::filesystem::temp_directory_path();
}

class Scratch : public testing::Test {
 protected:
  std::string dir;
  std::filesystem::path base = scratch_base();
  void SetUp() override {
    log::configure({.level = log::Level::off});  // leftovers are removed by the hundred
    std::string name = (base / "athanor-ckpt-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir = name;
  }
  void TearDown() override { std::filesystem::remove_all(dir); }
  std::string at(std::string_view name) const { return cat(dir, "/", name); }
};

// Plain, non-atomic access for tests that damage files.
inline std::string slurp(const std::string& path) { return read_file(path, int64_t{1} << 30); }
inline void spill(const std::string& path, std::string_view content) {
  std::filesystem::remove(path);  // some file systems sync a file that is truncated and rewritten, which is slow
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

// A tensor with its own memory, filled from (seed, name).
struct OwnedTensor {
  std::vector<std::byte> bytes;
  TensorData data;
};
inline OwnedTensor random_tensor(std::string name, DType dtype, Shape shape, uint64_t seed = 0) {
  OwnedTensor t;
  t.bytes.resize(size_t(shape.numel()) * size_of(dtype));
  for (size_t i = 0; i < t.bytes.size(); ++i) t.bytes[i] = std::byte(random_bits(seed, stream_of(name), i));
  t.data = {.name = std::move(name), .dtype = dtype, .shape = shape, .pieces = {}};
  t.data.pieces.emplace_back(t.bytes);  // a moved vector keeps its memory
  return t;
}

}  // namespace athanor::test
