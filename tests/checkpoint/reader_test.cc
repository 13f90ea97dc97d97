// Law of reading: however a tensor was sharded when saved, any box of it is restored bit for bit; shards that leave
// holes, overlap or disagree are refused.
#include "checkpoint/reader.h"

#include <cstring>

#include "base/rng.h"
#include "checkpoint/store.h"
#include "tests/checkpoint/scratch.h"

namespace athanor::test {
namespace {

class Reader : public Scratch {};

// A logical i32 tensor whose element at a point is its row-major position.
int64_t position(const Shape& whole, const Shape& p) {
  int64_t at = 0;
  for (int i = 0; i < p.rank; ++i) at = at * whole.dim[i] + p.dim[i];
  return at;
}

// Calls fn for every point of [begin, end) in row-major order.
template <class Fn>
void for_each_point(const Shape& begin, const Shape& end, Fn&& fn) {
  int64_t left = 1;
  for (int i = 0; i < begin.rank; ++i) left *= end.dim[i] - begin.dim[i];
  for (Shape p = begin; left > 0; --left) {
    fn(p);
    for (int i = p.rank - 1; i >= 0; --i) {
      if (++p.dim[i] < end.dim[i]) break;
      p.dim[i] = begin.dim[i];
    }
  }
}

struct Piece {
  std::vector<int32_t> values;
  CheckpointTensor tensor;
};

Piece piece_of(const std::string& name, const Shape& whole, const Shape& begin, const Shape& end) {
  Piece p;
  Shape extent = end;
  for (int i = 0; i < end.rank; ++i) extent.dim[i] -= begin.dim[i];
  for_each_point(begin, end, [&](const Shape& at) { p.values.push_back(int32_t(position(whole, at))); });
  p.tensor.data = {.name = name, .dtype = DType::i32, .shape = extent, .pieces = {}};
  p.tensor.data.pieces.push_back(std::as_bytes(std::span(p.values)));
  p.tensor.placement = TensorPlacement{.whole = whole, .begin = begin};
  return p;
}

// Cuts [begin, end) at random into boxes.
void cut(std::vector<std::pair<Shape, Shape>>& out, Shape begin, Shape end, int depth, uint64_t seed, uint64_t& draw) {
  const int axis = begin.rank ? int(random_bits(seed, 1, draw++) % unsigned(begin.rank)) : 0;
  if (depth == 0 || begin.rank == 0 || end.dim[axis] - begin.dim[axis] < 2) {
    out.emplace_back(begin, end);
    return;
  }
  const int64_t at = begin.dim[axis] + 1 + random_bits(seed, 1, draw++) % uint64_t(end.dim[axis] - begin.dim[axis] - 1);
  Shape low_end = end, high_begin = begin;
  low_end.dim[axis] = high_begin.dim[axis] = at;
  cut(out, begin, low_end, depth - 1, seed, draw);
  cut(out, high_begin, end, depth - 1, seed, draw);
}

void save_pieces(const std::string& root, const std::vector<Piece>& pieces) {
  const RunLock lock(root);
  CheckpointWriter w(lock, 1);
  for (size_t i = 0; i < pieces.size(); ++i)
    w.add_safetensors(cat("part", i, ".safetensors"), std::span(&pieces[i].tensor, 1));
  w.add_text("state.json", "{}");
  w.commit();
}

void expect_box(const CheckpointReader& r, const Shape& whole, const Shape& begin, const Shape& end) {
  std::vector<int32_t> want;
  for_each_point(begin, end, [&](const Shape& p) { want.push_back(int32_t(position(whole, p))); });
  std::vector<int32_t> got(want.size(), -1);
  r.read("t", begin, end, std::as_writable_bytes(std::span(got)));
  ASSERT_EQ(got, want) << begin << " " << end << " of " << whole;
}

TEST_F(Reader, AnyRegionIsReadCorrectlyFromAnySharding) {
  const Shape shapes[] = {{}, {1}, {17}, {5, 7}, {3, 4, 5}, {2, 3, 4, 5}, {0, 3}, {40, 300}};
  int trial = 0;
  for (const Shape& whole : shapes)
    for (int repeat = 0; repeat < 3; ++repeat, ++trial) {
      const uint64_t seed = uint64_t(trial);
      SCOPED_TRACE(cat("seed ", seed, " shape ", whole));
      uint64_t draw = 0;
      Shape zero = whole;
      zero.dim.fill(0);
      std::vector<std::pair<Shape, Shape>> boxes;
      cut(boxes, zero, whole, repeat, seed, draw);
      std::vector<Piece> pieces;
      for (const auto& [b, e] : boxes) pieces.push_back(piece_of("t", whole, b, e));
      const std::string root = at(cat("run", trial));
      save_pieces(root, pieces);
      const CheckpointReader r(newest_valid(root)->path);
      EXPECT_EQ(r.at("t").shape, whole);
      expect_box(r, whole, zero, whole);
      for (int k = 0; k < 20; ++k) {
        Shape b = whole, e = whole;
        for (int i = 0; i < whole.rank; ++i) {
          b.dim[i] = random_bits(seed, 2, draw++) % uint64_t(whole.dim[i] + 1);
          e.dim[i] = b.dim[i] + random_bits(seed, 2, draw++) % uint64_t(whole.dim[i] - b.dim[i] + 1);
        }
        expect_box(r, whole, b, e);
      }
    }
}

TEST_F(Reader, FlatElementRangesReadCorrectlyAcrossShards) {
  save_pieces(at("run"), {piece_of("t", {5, 7}, {0, 0}, {5, 3}), piece_of("t", {5, 7}, {0, 3}, {5, 7})});
  save_pieces(at("vector"), {piece_of("t", {35}, {0}, {35})});
  for (const char* run : {"run", "vector"}) {
    const CheckpointReader r(at(cat(run, "/step-00000001")));
    std::vector<std::byte> all(35 * 4);
    r.read("t", all);
    for (int64_t begin = 0; begin <= 35; ++begin)
      for (int64_t end = begin; end <= 35; ++end) {
        std::vector<std::byte> some(size_t(end - begin) * 4);
        r.read_run("t", begin, end, some);
        EXPECT_EQ(some, std::vector(all.begin() + begin * 4, all.begin() + end * 4)) << begin << " to " << end;
      }
  }
}

TEST_F(Reader, ShardsMustTileTheTensor) {
  save_pieces(at("hole"), {piece_of("t", {4, 4}, {0, 0}, {2, 4}), piece_of("t", {4, 4}, {3, 0}, {4, 4})});
  EXPECT_ERROR(CheckpointReader{at("hole/step-00000001")}, "'t'", "hold 12 of 16 elements");
  save_pieces(at("overlap"), {piece_of("t", {4, 4}, {0, 0}, {3, 4}), piece_of("t", {4, 4}, {2, 0}, {4, 4})});
  EXPECT_ERROR(CheckpointReader{at("overlap/step-00000001")}, "'t'", "part0.safetensors", "part1.safetensors",
               "overlap");
  save_pieces(at("shapes"), {piece_of("t", {4, 4}, {0, 0}, {2, 4}), piece_of("t", {5, 4}, {2, 0}, {4, 4})});
  EXPECT_ERROR(CheckpointReader{at("shapes/step-00000001")}, "'t'", "disagree", "[4, 4]", "[5, 4]");
}

TEST_F(Reader, ManifestAndFilesMustAgree) {
  save_pieces(at("run"), {piece_of("t", {4, 4}, {0, 0}, {4, 4})});
  const std::string step = at("run/step-00000001"), file = step + "/part0.safetensors";
  const Piece other = piece_of("t", {2, 8}, {0, 0}, {2, 8}), renamed = piece_of("u", {4, 4}, {0, 0}, {4, 4});
  save_safetensors(file, std::span(&other.tensor.data, 1));
  EXPECT_ERROR(CheckpointReader{step}, file, "'t'", "[2, 8]", "the manifest expects i32 [4, 4]");
  save_safetensors(file, std::span(&renamed.tensor.data, 1));
  EXPECT_ERROR(CheckpointReader{step}, file, "no tensor 't'");
  std::filesystem::remove(file);
  EXPECT_ERROR(CheckpointReader{step}, file, "No such file");
  EXPECT_ERROR(CheckpointReader{at("none")}, at("none/manifest.json"), "No such file");
}

TEST_F(Reader, InvalidRequestsAreErrors) {
  save_pieces(at("run"), {piece_of("t", {4, 4}, {0, 0}, {4, 4})});
  const CheckpointReader r(at("run/step-00000001"));
  std::vector<std::byte> out(64);
  EXPECT_ERROR(r.read("u", out), "no tensor 'u'", "1 others");
  EXPECT_ERROR(r.read("t", std::span(out).first(60)), "needs 64 bytes", "has 60");
  EXPECT_ERROR(r.read("t", {0, 0}, {4, 5}, out), "slice");
  EXPECT_ERROR(r.read("t", {0}, {4}, out), "has shape [4, 4]");
  EXPECT_EQ(r.text("state.json"), "{}");
  EXPECT_ERROR(r.text("state.json", 1), "more than the 1 bytes");
  EXPECT_ERROR(r.text("../.lock"), "has no file");
}

}  // namespace
}  // namespace athanor::test
