// IDX files, the format of MNIST and Fashion-MNIST: bytes 0, 0, type (8: uint8), number of dimensions, then each
// dimension as a big-endian uint32, then the values [yann.lecun.com/exdb/mnist].
#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>

#include "base/error.h"
#include "data/image_file.h"
#include "data/image_source.h"
#include "data/text_input.h"

namespace athanor {
namespace {

constexpr size_t kIdxPiece = 1 << 20;  // bytes read at once: a header may claim any size

class IdxFile {
 public:
  // what: the content, for messages. dims: the number of dimensions it must have.
  IdxFile(const std::string& path, const char* what, size_t dims) : path_(path), input_(path) {
    const std::string magic = take(4);
    const auto byte = [&magic](size_t i) { return int(uint8_t(magic[i])); };
    if (byte(0) != 0 || byte(1) != 0)
      throw Error(cat(path, ": expected an IDX file, which begins with two zero bytes, got ", byte(0), " ", byte(1)),
                  Exit::usage);
    if (byte(2) != 8 || size_t(byte(3)) != dims)
      throw Error(cat(path, ": IDX values of type ", byte(2), " in ", byte(3), " dimensions; expected ", what,
                      ", of type 8 (uint8) in ", dims, dims == 3 ? " (grey images)" : ""),
                  Exit::usage);
    for (size_t i = 0; i < dims; ++i) {
      int64_t size = 0;
      for (const char c : take(4)) size = size << 8 | uint8_t(c);
      sizes_.push_back(size);
    }
  }

  int64_t size(size_t dim) const { return sizes_[dim]; }

  std::string take(size_t bytes) {
    std::string text;
    while (text.size() < bytes)
      if (input_.read(text, std::min(bytes - text.size(), kIdxPiece)) == 0)
        throw Error(cat(path_, ": ends after ", taken_ + int64_t(text.size()), " bytes, before what its header says"));
    taken_ += int64_t(bytes);
    return text;
  }

  void require_end() {
    std::string more;
    if (input_.read(more, 1) > 0)
      throw Error(cat(path_, ": has more bytes than the ", taken_, " that its header says"));
  }

 private:
  std::string path_;
  TextInput input_;
  int64_t taken_ = 0;
  std::vector<int64_t> sizes_;
};

std::string labels_of(const std::string& images) {
  const std::string folder = images.substr(0, images.size() - base_name(images).size());
  std::string name = base_name(images);
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"images", "labels"}, {"idx3", "idx1"}}) {
    const size_t at = name.rfind(from);
    if (at == std::string::npos)
      throw Error(cat(images, ": no name of a labels file follows from this name, which has no \"", from,
                      "\"; give it with --labels"),
                  Exit::usage);
    name.replace(at, from.size(), to);
  }
  const std::string path = folder + name;
  const std::string other = name.ends_with(".gz") ? path.substr(0, path.size() - 3) : path + ".gz";
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown)) return path;
  if (std::filesystem::exists(other, unknown)) return other;
  throw Error(cat(images, ": expected its labels in ", path, ", which does not exist; give them with --labels"),
              Exit::usage);
}

std::string read_labels(const std::string& path, int64_t images) {
  IdxFile file(path, "labels", 1);
  if (file.size(0) != images)
    throw Error(cat(path, ": ", file.size(0), " labels for ", images, " images; --labels names the right file"),
                Exit::usage);
  std::string labels = file.take(size_t(images));
  file.require_end();
  return labels;
}

struct IdxPair {
  std::string path, labels;
  int64_t height = 0, width = 0;
};

// Reads the pairs one after the other.
class IdxReader {
 public:
  explicit IdxReader(std::vector<IdxPair> pairs) : pairs_(std::move(pairs)) {}

  std::optional<StoredImage> next() {
    while (at_ < pairs_.size()) {
      const IdxPair& pair = pairs_[at_];
      if (!file_) file_ = std::make_unique<IdxFile>(pair.path, "images", 3);
      if (image_ < pair.labels.size()) {
        const std::string pixels = file_->take(size_t(pair.height * pair.width));
        StoredImage stored{.label = uint8_t(pair.labels[image_]), .name = cat(pair.path, ": image ", image_)};
        stored.picture = {.channels = 1, .height = pair.height, .width = pair.width, .pixels = {}};
        stored.picture.pixels.assign(pixels.begin(), pixels.end());
        ++image_;
        return stored;
      }
      file_->require_end();
      file_ = nullptr, image_ = 0, ++at_;
    }
    return {};
  }

 private:
  std::vector<IdxPair> pairs_;
  std::unique_ptr<IdxFile> file_;
  size_t at_ = 0, image_ = 0;
};

}  // namespace

ImageSource open_idx_images(const std::vector<std::string>& paths, const std::string& labels) {
  if (!labels.empty() && paths.size() != 1)
    throw Error(cat("--labels: expected one images file with it, got ", paths.size()), Exit::usage);
  ImageSource source{.channels = 1};
  std::vector<IdxPair> pairs;
  int highest = -1;
  for (const std::string& path : paths) {
    const IdxFile file(path, "images", 3);
    const int64_t height = file.size(1), width = file.size(2);
    require_valid({.classes = 1, .channels = 1, .height = height, .width = width}, path);
    const bool same = pairs.empty() || (height == source.height && width == source.width);
    source.height = same ? height : 0;
    source.width = same ? width : 0;
    pairs.push_back({path, read_labels(labels.empty() ? labels_of(path) : labels, file.size(0)), height, width});
    source.images += file.size(0);
    for (const char label : pairs.back().labels) highest = std::max(highest, int(uint8_t(label)));
  }
  source.classes = numbered_classes(highest + 1);
  source.next = [reader = std::make_shared<IdxReader>(std::move(pairs))] { return reader->next(); };
  return source;
}

}  // namespace athanor
