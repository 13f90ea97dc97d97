// CIFAR-10's and CIFAR-100's binary files [cs.toronto.edu/~kriz/cifar.html].
#include <memory>

#include "base/error.h"
#include "data/image_source.h"
#include "data/text_input.h"

namespace athanor {
namespace {

constexpr int64_t kSide = 32, kPixels = 3 * kSide * kSide;

class CifarReader {
 public:
  CifarReader(std::vector<std::string> paths, int64_t classes)
      : paths_(std::move(paths)), classes_(classes), labels_(classes == 100 ? 2 : 1) {}

  std::optional<StoredImage> next() {
    for (; at_ < paths_.size(); ++at_, image_ = 0, input_ = nullptr) {
      if (!input_) input_ = std::make_unique<TextInput>(paths_[at_]);
      std::string record;
      const size_t got = input_->read(record, size_t(labels_ + kPixels));
      if (got == 0 && image_ > 0) continue;
      if (int64_t(got) != labels_ + kPixels)
        throw Error(cat(paths_[at_], ": ends in the middle of image ", image_, ", after ", got, " of ",
                        labels_ + kPixels, " bytes; --format names the format"));
      return take(record);
    }
    return {};
  }

 private:
  StoredImage take(const std::string& record) {
    StoredImage stored{.label = uint8_t(record[size_t(labels_ - 1)]), .name = cat(paths_[at_], ": image ", image_++)};
    if (stored.label >= classes_)
      throw Error(cat(stored.name, " has the label ", stored.label, ", expected less than ", classes_,
                      "; --format cifar10 or cifar100 names the format"));
    stored.picture = {.channels = 3, .height = kSide, .width = kSide, .pixels = {}};
    stored.picture.pixels.assign(record.begin() + labels_, record.end());
    return stored;
  }

  std::vector<std::string> paths_;
  int64_t classes_, labels_;
  size_t at_ = 0;
  int64_t image_ = 0;
  std::unique_ptr<TextInput> input_;
};

}  // namespace

ImageSource open_cifar_images(const std::vector<std::string>& paths, int64_t classes) {
  CHECK(classes == 10 || classes == 100, classes, " classes");
  for (const std::string& path : paths) open_regular(path);  // all inputs must exist before the first is read
  ImageSource source{.classes = numbered_classes(classes), .channels = 3, .height = kSide, .width = kSide};
  source.next = [reader = std::make_shared<CifarReader>(paths, classes)] { return reader->next(); };
  return source;
}

}  // namespace athanor
