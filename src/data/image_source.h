// Labelled images as other programs store them, read one after the other: IDX files, CIFAR's binary files, and folders
// with one subfolder per class.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/picture.h"

namespace athanor {

// One image, not decoded yet.
struct StoredImage {
  int64_t label = 0;  // place in ImageSource::classes
  std::string name;   // for messages: the file, or the file and the number in it
  Picture picture;    // of a folder: empty, since the file `name` is to be decoded
};

struct ImageSource {
  std::vector<std::string> classes;                  // names: those of subfolders, or "0", "1", ...
  int64_t channels = 0;                              // of the images; of a folder's, which may differ: 3
  int64_t height = 0, width = 0;                     // 0: images may differ
  int64_t images = 0;                                // how many next() returns
  int64_t ignored = 0;                               // files of folders that are no images by their names
  std::string first_ignored;                         // one of them
  std::function<std::optional<StoredImage>()> next;  // nullopt at the end
};

// Each function throws Error naming the file if it is not of the format or ends too early; next() does so where the
// damage is found.

// IDX files of bytes [images, height, width], and of their labels [images]; plain, gzip or zstd. labels: the file with
// the labels of the only images file; "": found by its name (train-images-idx3-ubyte -> train-labels-idx1-ubyte).
ImageSource open_idx_images(const std::vector<std::string>& paths, const std::string& labels);

// CIFAR's binary files: records of a label byte (CIFAR-100: a byte of the coarse class, which is not used, and one of
// the fine class) and 3 x 32 x 32 bytes. classes: 10 or 100.
ImageSource open_cifar_images(const std::vector<std::string>& paths, int64_t classes);

// Folders with a subfolder per class, which holds images (.jpg, .jpeg, .png, .ppm, .pgm) at any depth. Classes are the
// names of the subfolders of all `paths`, and images come sorted by class, root folder and path, all by bytes. Links
// are followed, but no folder is read twice for one class. Names that begin with a dot are ignored.
ImageSource open_image_folders(const std::vector<std::string>& paths);

// "folder", "idx", or "" if neither can be told from the input.
std::string image_format_of(const std::string& path);

// "0", "1", ...
std::vector<std::string> numbered_classes(int64_t count);

}  // namespace athanor
