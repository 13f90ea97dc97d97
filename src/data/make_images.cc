#include "data/make_images.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/escape.h"
#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "data/document_stream.h"
#include "data/glob.h"
#include "data/image_decode.h"
#include "data/image_file.h"
#include "data/image_source.h"
#include "data/ordered_pool.h"
#include "data/picture.h"
#include "data/text_input.h"
#include "data/token_file.h"

namespace athanor {
namespace {

constexpr int64_t kMostFileBytes = int64_t{256} << 20;            // of one image
constexpr int64_t kMostClassesBytes = int64_t{64} << 20;          // of PREFIX_classes.txt
constexpr std::array<const char*, 2> kSplits = {"train", "val"};  // [Part]

template <class... Text>
[[noreturn]] void refuse(const Text&... text) {
  throw Error(cat("data images: ", text...), Exit::usage);
}

void require_sizes(const MakeImagesOptions& o) {
  if (o.size < 0 || o.size > kMaxImageSide) refuse("size: expected 1 to ", kMaxImageSide, " pixels, got ", o.size);
  if (o.resize_to != 0 && o.size == 0) refuse("resize-to: expected with --size, which cuts the centre out");
  if (o.resize_to != 0 && (o.resize_to < o.size || o.resize_to > kMaxImageSide))
    refuse("resize-to: expected --size (", o.size, ") to ", kMaxImageSide, " pixels, got ", o.resize_to);
  if (o.channels != 0 && o.channels != 1 && o.channels != 3) refuse("channels: expected 1 or 3, got ", o.channels);
}

void require_sane(const MakeImagesOptions& o) {
  if (o.inputs.empty()) refuse("expected at least one input, got none");
  require_output("data images", o.output_prefix, o.valid_every);
  if (o.split != "train" && o.split != "val") refuse("split: expected \"train\" or \"val\", got \"", o.split, "\"");
  if (o.valid_every > 0 && o.split == "val") refuse("valid-every: no use with --split val, which holds out all images");
  if (o.threads < 0) refuse("threads: expected 0 (all cores) or more, got ", o.threads);
  require_sizes(o);
}

std::string format_of(const MakeImagesOptions& o) {
  if (o.format != "auto") return o.format;
  const std::string format = image_format_of(o.inputs.front());
  if (format.empty())
    refuse(o.inputs.front(),
           ": neither a folder nor an IDX file: give --format cifar10 or --format cifar100 if it is one of these");
  return format;
}

ImageSource open_source(const MakeImagesOptions& o, const std::string& format) {
  if (!o.labels.empty() && format != "idx") refuse("labels: only IDX files have labels in another file");
  if (format == "idx") return open_idx_images(o.inputs, o.labels);
  if (format == "cifar10" || format == "cifar100") return open_cifar_images(o.inputs, format == "cifar10" ? 10 : 100);
  if (format != "folder") refuse("format: expected auto, idx, cifar10, cifar100 or folder, got \"", format, "\"");
  if (o.size == 0) refuse("size: expected with folders, whose images may have any size");
  return open_image_folders(o.inputs);
}

// What every image becomes.
struct Conversion {
  ImageFormat format;
  int64_t resize_to = 0;  // 0: not resized
  int64_t valid_every = 0;
};

struct Converted {
  int64_t label = 0;
  bool held_out = false;
  std::string name;
  std::string problem;  // not empty: the image is damaged
  std::vector<uint8_t> pixels;
};

// The split depends on the bytes of the input, so that it is the same at any size.
bool image_is_held_out(std::string_view bytes, int64_t valid_every) {
  return valid_every > 0 && is_held_out(xxh3_hex(bytes), valid_every);
}

Converted convert(StoredImage image, const Conversion& to) {
  Converted out{.label = image.label, .name = image.name};
  Picture& picture = image.picture;
  try {
    if (picture.pixels.empty()) {
      const std::string bytes = read_file(image.name, kMostFileBytes);
      out.held_out = image_is_held_out(bytes, to.valid_every);
      picture = decode_image(bytes, image.name);
    } else {
      const std::string_view bytes(reinterpret_cast<const char*>(picture.pixels.data()), picture.pixels.size());
      out.held_out = image_is_held_out(bytes, to.valid_every);
    }
  } catch (const Error& e) {
    if (e.code() == Exit::usage) throw;  // a library is missing: all images of this format would be left out
    out.problem = e.what();
    return out;
  }
  picture = with_channels(std::move(picture), to.format.channels);
  if (to.resize_to > 0) picture = resize_and_crop(picture, {.shorter = to.resize_to, .size = to.format.width});
  out.pixels = std::move(picture.pixels);
  return out;
}

class MakeImages {
 public:
  explicit MakeImages(const MakeImagesOptions& options) : options_(options) {}

  MakeImagesResult go() {
    require_sane(options_);
    const std::string format = format_of(options_);
    source_ = open_source(options_, format);
    if (source_.classes.empty()) refuse(options_.inputs.front(), ": holds no images");
    writes_ = {options_.split == "train", options_.split == "val" || options_.valid_every > 0};
    name_classes();
    choose_conversion();
    require_new_outputs();
    counts_.assign(classes_.size(), {0, 0});
    make_dirs(parent_dir(options_.output_prefix));
    require_space();
    convert_all();
    publish();
    warn_about_classes();
    result_.train_images = images_in(kTrain);
    result_.valid_images = images_in(kValid);
    result_.ignored_files = source_.ignored;
    result_.summary = summarise();
    return std::move(result_);
  }

 private:
  std::string prefix_of(Part part) const { return cat(options_.output_prefix, "_", kSplits[part], "_"); }
  std::string shard_of(Part part) const { return prefix_of(part) + "000000.bin"; }
  std::string classes_path() const { return options_.output_prefix + "_classes.txt"; }
  std::vector<std::string> existing_shards(Part part) const {
    return match_glob(escape_glob(prefix_of(part)) + "[0-9][0-9][0-9][0-9][0-9][0-9].bin");
  }
  bool bound() const { return !other_shard_.empty(); }  // to the class names of that shard
  int64_t images_in(Part part) const { return writers_[part] ? writers_[part]->images() : 0; }

  // Sets the class names of the shards, and the label that each class of the source has there.
  void name_classes() {
    for (const Part part : {kTrain, kValid})
      if (const auto others = existing_shards(part); !writes_[part] && !others.empty()) other_shard_ = others.front();
    classes_ = bound() ? with_context(cat(other_shard_, " exists, and its labels are needed"),
                                      [this] { return read_classes(); })
                       : source_.classes;
    std::map<std::string, int64_t> labels;
    for (size_t i = 0; i < classes_.size(); ++i) labels[classes_[i]] = int64_t(i);
    for (const std::string& name : source_.classes) {
      const auto found = labels.find(name);
      if (found == labels.end())
        refuse("class \"", name, "\" of ", options_.inputs.front(), " is not in ", classes_path(), ", which names the ",
               classes_.size(), " classes of ", other_shard_, ": choose another output prefix, or remove that shard");
      labels_.push_back(found->second);
    }
  }

  std::vector<std::string> read_classes() const {
    std::vector<std::string> names;
    std::istringstream text(read_file(classes_path(), kMostClassesBytes));
    for (std::string line; std::getline(text, line);) names.push_back(line);
    return names;
  }

  void choose_conversion() {
    const int64_t size = options_.size;
    if (size == 0 && source_.height == 0)
      refuse(options_.inputs.front(), " and the other inputs have images of different sizes: give --size");
    conversion_.format = {.classes = int64_t(classes_.size()),
                          .channels = options_.channels > 0 ? options_.channels : source_.channels,
                          .height = size > 0 ? size : source_.height,
                          .width = size > 0 ? size : source_.width};
    conversion_.resize_to = options_.resize_to > 0 ? options_.resize_to : size;
    conversion_.valid_every = options_.valid_every;
    require_valid(conversion_.format, options_.inputs.front());
    if (bound()) require_format_of(other_shard_);
  }

  // Images of both splits are of one size, since one model reads them.
  void require_format_of(const std::string& path) const {
    const ImageFormat& f = conversion_.format;
    const ImageFormat other = *TokenFile::open_images(path).layout().images;
    if (other != f)
      refuse(path, " has images of ", other.classes, " classes, ", other.channels, " channel(s) and ", other.height,
             " x ", other.width, " pixels, these are of ", f.classes, " classes, ", f.channels, " channel(s) and ",
             f.height, " x ", f.width, " pixels: give the --size and --channels that it was made with, or remove it");
  }

  void require_new_outputs() const {
    std::vector<std::string> existing;
    for (const Part part : {kTrain, kValid})
      if (writes_[part])
        for (const std::string& path : existing_shards(part)) existing.push_back(path);
    struct stat status {};
    if (!bound() && ::lstat(classes_path().c_str(), &status) == 0) existing.push_back(classes_path());
    if (!existing.empty() && !options_.overwrite)
      refuse(existing.front(), " exists already: choose another output prefix, or give --overwrite");
  }

  // Damaged images that are left out need no space.
  void require_space() const {
    if (options_.skip_bad) return;
    const int64_t needed = source_.images * conversion_.format.record_bytes();
    const std::optional<int64_t> free = free_bytes(parent_dir(options_.output_prefix));
    if (free && *free < needed)
      throw Error(cat(options_.output_prefix, ": ", source_.images, " images of ", conversion_.format.height, " x ",
                      conversion_.format.width, " pixels need ", format_bytes(uint64_t(needed)), ", but only ",
                      format_bytes(uint64_t(*free)), " are free; give a smaller --size, or another --output-prefix"),
                  Exit::usage);
  }

  void convert_all() {
    using Pool = OrderedPool<StoredImage, Converted>;
    const int64_t threads = options_.threads > 0 ? options_.threads : allowed_cores();
    Pool pool(threads, options_.threads > 0 ? Pool::Fewer::refused : Pool::Fewer::allowed,
              [this] { return [this](StoredImage image) { return convert(std::move(image), conversion_); }; });
    auto logged = std::chrono::steady_clock::now();
    int64_t done = 0;
    for (bool more = true; more || !pool.empty();) {
      while (more && !pool.full()) {
        auto image = source_.next();
        more = image.has_value();
        if (image) pool.put(std::move(*image));
      }
      if (pool.empty()) break;
      accept(pool.take());
      ++done;
      if (std::chrono::steady_clock::now() - logged < std::chrono::seconds(15)) continue;
      logged = std::chrono::steady_clock::now();
      log::info("data images: ", done, source_.images > 0 ? cat(" of ", source_.images) : "", " images");
    }
  }

  void accept(const Converted& image) {
    if (!image.problem.empty()) {
      if (!options_.skip_bad)
        throw Error(cat(image.problem, "; repair or remove the file, or leave such images out with --skip-bad"));
      if (result_.bad_images++ == 0) first_problem_ = image.problem;
      return;
    }
    const Part part = options_.split == "val" || image.held_out ? kValid : kTrain;
    if (!writers_[part]) writers_[part].emplace(shard_of(part), conversion_.format);
    const int64_t label = labels_[size_t(image.label)];
    writers_[part]->append(label, image.pixels);
    ++counts_[size_t(label)][part];
  }

  // Class names come first: no shard is ever without them.
  void publish() {
    const Part main = options_.split == "val" ? kValid : kTrain;
    if (images_in(main) == 0)
      throw Error(
          cat("data images: ", options_.inputs.front(),
              images_in(kValid) > 0 ? ": all images are held out" : ": no images",
              result_.bad_images > 0 ? cat(", ", result_.bad_images, " damaged ones, the first: ", first_problem_) : "",
              source_.ignored > 0 ? cat(", ", source_.ignored, " other files, such as ", source_.first_ignored) : ""),
          Exit::usage);
    if (!bound()) {
      std::string text;
      for (const std::string& name : classes_) text += name + "\n";
      write_file(classes_path(), text);
    }
    for (const Part part : {kTrain, kValid}) {
      if (!writes_[part]) continue;
      if (writers_[part]) {
        writers_[part]->finish();
        result_.files.push_back(shard_of(part));
      }
      for (const std::string& old : existing_shards(part))
        if (!writers_[part] || old != shard_of(part)) remove_tree(old);
    }
    if (!bound()) result_.files.push_back(classes_path());
  }

  void warn_about_classes() {
    const auto warn = [this](const auto&... text) { result_.warnings.push_back(cat("data images: ", text...)); };
    if (classes_.size() == 1)
      warn("there is only one class, \"", classes_[0], "\": a classifier needs two; ", options_.inputs.front(),
           " is to hold one subfolder per class");
    int64_t empty = 0;
    std::string first;
    for (const int64_t label : labels_)
      if (counts_[size_t(label)][kTrain] + counts_[size_t(label)][kValid] == 0 && empty++ == 0)
        first = classes_[size_t(label)];
    if (empty > 0) warn(empty, " of ", labels_.size(), " classes have no image, such as \"", first, "\"");
  }

  std::string summarise() const {
    std::ostringstream out;
    const ImageFormat& f = conversion_.format;
    out << images_in(kTrain) + images_in(kValid) << " images of " << f.classes << " classes, " << f.channels
        << " channel(s) of " << f.height << " x " << f.width << " pixels\n";
    for (const Part part : {kTrain, kValid}) {
      if (!writers_[part]) continue;
      const auto less = [part](const auto& a, const auto& b) { return a[part] < b[part]; };
      const auto [least, most] = std::minmax_element(counts_.begin(), counts_.end(), less);
      out << (part == kTrain ? "training: " : "validation: ") << images_in(part) << " images, " << (*least)[part]
          << " to " << (*most)[part] << " of a class: " << shard_of(part) << "\n";
    }
    out << "class names: " << classes_path() << "\n";
    if (result_.bad_images > 0)
      out << result_.bad_images << " damaged image(s) left out, the first: " << escape_controls(first_problem_) << "\n";
    if (source_.ignored > 0)
      out << source_.ignored << " file(s) ignored: hidden, in no subfolder, or no images by their names; the first: "
          << escape_controls(source_.first_ignored) << "\n";
    return out.str();
  }

  const MakeImagesOptions& options_;
  ImageSource source_;
  std::array<bool, 2> writes_{};  // [Part]
  std::string other_shard_;       // of the split that is not written, if one exists
  std::vector<std::string> classes_;
  std::vector<int64_t> labels_;  // [classes of the source]
  Conversion conversion_;
  std::array<std::optional<ImageWriter>, 2> writers_;  // [Part]
  std::vector<std::array<int64_t, 2>> counts_;         // [class][Part]
  std::string first_problem_;
  MakeImagesResult result_;
};

}  // namespace

std::vector<std::string> numbered_classes(int64_t count) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

std::string image_format_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return "folder";
  std::string start;
  TextInput(path).read(start, 4);
  const bool idx = start.size() == 4 && start[0] == 0 && start[1] == 0 && start[3] > 0 && start[3] <= 8 &&
                   ((start[2] >= 8 && start[2] <= 9) || (start[2] >= 11 && start[2] <= 14));
  return idx ? "idx" : "";
}

MakeImagesResult make_images(const MakeImagesOptions& options) { return MakeImages(options).go(); }

}  // namespace athanor
