// Assembles logical tensors from pieces: intersects the requested box with every piece and copies contiguous runs.
#include "checkpoint/reader.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/printable.h"

namespace athanor {
namespace {

// Runs of at least this length are copied by pread, where a disk failure is an Error; shorter ones from the mapping,
// because a system call each would cost more than the copy.
constexpr int64_t kMinPread = 4096;
// Limits the pairwise disjointness check.
constexpr size_t kMaxPieces = 16384;

// A box: elements [begin, end) of every dimension.
struct Box {
  Shape begin, end;

  int64_t extent(int i) const { return end.dim[i] - begin.dim[i]; }
  int64_t volume() const {
    int64_t n = 1;
    for (int i = 0; i < begin.rank; ++i) n *= extent(i);
    return n;
  }
};

Box intersect(const Box& a, const Box& b) {
  Box c = a;
  for (int i = 0; i < a.begin.rank; ++i) {
    c.begin.dim[i] = std::max(a.begin.dim[i], b.begin.dim[i]);
    c.end.dim[i] = std::max(c.begin.dim[i], std::min(a.end.dim[i], b.end.dim[i]));
  }
  return c;
}

// Row-major position of a point inside a box.
int64_t position(const Box& box, const Shape& point) {
  int64_t at = 0;
  for (int i = 0; i < point.rank; ++i) at = at * box.extent(i) + (point.dim[i] - box.begin.dim[i]);
  return at;
}

// Calls copy(from, to, count), in elements, for every run that is contiguous in both boxes.
template <class Copy>
void for_each_run(const Box& from, const Box& to, Copy&& copy) {
  const Box common = intersect(from, to);
  if (common.volume() == 0) return;
  // Dimensions from `split` on form one run: all but the first of them are whole in both boxes.
  int split = common.begin.rank;
  int64_t run = 1;
  while (split > 0) {
    run *= common.extent(--split);
    if (common.extent(split) != from.extent(split) || common.extent(split) != to.extent(split)) break;
  }
  Shape point = common.begin;
  for (int64_t left = common.volume() / run; left > 0; --left) {
    copy(position(from, point), position(to, point), run);
    for (int i = split - 1; i >= 0; --i) {
      if (++point.dim[i] < common.end.dim[i]) break;
      point.dim[i] = common.begin.dim[i];
    }
  }
}

}  // namespace

CheckpointReader::CheckpointReader(std::string dir) : dir_(std::move(dir)), manifest_(read_manifest(dir_)) {
  open_pieces();
  for (const auto& [name, pieces] : pieces_) check_tiling(name);
}

void CheckpointReader::open_pieces() {
  for (const ManifestTensor& t : manifest_.tensors) {
    auto& file = files_[t.file];
    if (!file) file = std::make_unique<SafetensorsFile>(cat(dir_, "/", t.file));
    const TensorEntry& entry = file->at(t.name);
    if (entry.checked_dtype() != t.dtype || entry.checked_shape() != t.piece_shape())
      throw Error(cat(file->path(), ": ", printable(t.name), " is ", entry.dtype, " ", entry.checked_shape(),
                      ", the manifest expects ", t.dtype, " ", t.piece_shape()));
    const auto [it, added] = infos_.emplace(t.name, Info{t.dtype, t.shape});
    if (!added && (it->second.dtype != t.dtype || it->second.shape != t.shape))
      throw Error(cat(dir_, ": the pieces of ", printable(t.name), " disagree: ", it->second.dtype, " ",
                      it->second.shape, " and ", t.dtype, " ", t.shape));
    pieces_[t.name].push_back({&t, file.get(), &entry});
  }
}

// Disjoint pieces whose volumes add up to the whole cover it.
void CheckpointReader::check_tiling(const std::string& name) const {
  const std::vector<Piece>& pieces = pieces_.find(name)->second;
  if (pieces.size() > kMaxPieces)
    throw Error(
        cat(dir_, ": ", printable(name), " has ", pieces.size(), " pieces, at most ", kMaxPieces, " are supported"));
  int64_t covered = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Box a{pieces[i].place->begin, pieces[i].place->end};
    covered += a.volume();
    for (size_t j = 0; j < i; ++j)
      if (intersect(a, {pieces[j].place->begin, pieces[j].place->end}).volume() != 0)
        throw Error(cat(dir_, ": ", printable(name), ": the pieces in ", pieces[j].place->file, " and ",
                        pieces[i].place->file, " overlap"));
  }
  const Shape& whole = infos_.find(name)->second.shape;
  if (covered != whole.numel())
    throw Error(cat(dir_, ": ", printable(name), " ", whole, ": its pieces hold ", covered, " of ", whole.numel(),
                    " elements"));
}

const CheckpointReader::Info& CheckpointReader::at(std::string_view name) const {
  const auto it = infos_.find(name);
  if (it == infos_.end())
    throw Error(cat(dir_, ": has no tensor ", printable(name), "; it holds ", infos_.size(), " others"));
  return it->second;
}

void CheckpointReader::read(std::string_view name, const Shape& begin, const Shape& end,
                            std::span<std::byte> out) const {
  const Info& info = at(name);
  CHECK(begin.rank == info.shape.rank && end.rank == info.shape.rank, name, " has shape ", info.shape);
  for (int i = 0; i < begin.rank; ++i)
    CHECK(0 <= begin.dim[i] && begin.dim[i] <= end.dim[i] && end.dim[i] <= info.shape.dim[i], name, " ", info.shape,
          ": slice ", begin, " to ", end);
  const Box wanted{begin, end};
  const int64_t size = int64_t(size_of(info.dtype));
  CHECK(int64_t(out.size()) == wanted.volume() * size, name, " ", begin, " to ", end, " needs ", wanted.volume() * size,
        " bytes, the buffer has ", out.size());
  for (const Piece& piece : pieces_.find(name)->second) {
    const Box held{piece.place->begin, piece.place->end};
    for_each_run(held, wanted, [&](int64_t from, int64_t to, int64_t count) {
      const auto target = out.subspan(size_t(to * size), size_t(count * size));
      if (count * size >= kMinPread)
        piece.file->read_part(*piece.entry, from * size, target);
      else
        std::memcpy(target.data(), piece.file->data(*piece.entry).data() + from * size, target.size());
    });
  }
}

void CheckpointReader::read(std::string_view name, std::span<std::byte> out) const {
  Shape begin = at(name).shape;
  begin.dim.fill(0);
  read(name, begin, at(name).shape, out);
}

// Reads boxes that are as large as possible: of a matrix the rest of a row, whole rows, and the beginning of a row.
void CheckpointReader::read_run(std::string_view name, int64_t begin, int64_t end, std::span<std::byte> out) const {
  const Info& info = at(name);
  const int rank = info.shape.rank;
  const int64_t size = int64_t(size_of(info.dtype));
  while (begin < end) {
    Shape from = info.shape, to = info.shape;
    from.dim.fill(0);
    int64_t step = info.shape.numel(), count = step;  // elements per index of a dimension; of the box
    for (int d = 0; d < rank; ++d) {
      const int64_t whole = step;
      step /= info.shape[d];
      from.dim[d] = begin % whole / step;
      if (begin % step != 0 || end - begin < step) {  // the box has a part of one index
        to.dim[d] = from.dim[d] + 1;
        continue;
      }
      to.dim[d] = std::min(info.shape[d], from.dim[d] + (end - begin) / step);
      count = (to.dim[d] - from.dim[d]) * step;
      break;
    }
    read(name, from, to, out.first(size_t(count * size)));
    out = out.subspan(size_t(count * size));
    begin += count;
  }
}

std::string CheckpointReader::text(const std::string& file, int64_t max_bytes) const {
  if (!manifest_.find_file(file)) throw Error(cat(dir_, ": has no file ", printable(file)));
  const std::string path = cat(dir_, "/", file);
  return read_file(path, max_bytes);
}

}  // namespace athanor
