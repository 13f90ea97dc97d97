// Makes shards of labelled images (image_file.h) from the files of other programs: `athanor data images`. Uses all
// cores; the output does not depend on their number.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace athanor {

struct MakeImagesOptions {
  std::vector<std::string> inputs;
  std::string output_prefix;    // PREFIX_train_000000.bin, PREFIX_val_000000.bin, PREFIX_classes.txt
  std::string format = "auto";  // idx, cifar10, cifar100, folder; auto: idx or folder, by the first input
  std::string labels;           // IDX: file with the labels; "": found by the name of the images
  std::string split = "train";  // train or val: the split that the images belong to
  int64_t valid_every = 0;      // one in this many images of split train goes to val; 0: none
  int64_t size = 0;             // height and width in pixels; 0: as stored, not for folders
  int64_t resize_to = 0;        // length of the shorter side before the centre is cut out; 0: size
  int64_t channels = 0;         // 1 or 3; 0: as stored, 3 for folders
  bool skip_bad = false;        // leave damaged images out instead of ending with an Error
  bool overwrite = false;       // replace existing files
  int64_t threads = 0;          // 0: all cores this process may use
};

struct MakeImagesResult {
  int64_t train_images = 0, valid_images = 0, bad_images = 0, ignored_files = 0;
  std::vector<std::string> files;     // written, with their paths
  std::string summary;                // a few lines of text
  std::vector<std::string> warnings;  // about classes
};

// Where the shard of the other split exists already, PREFIX_classes.txt decides which label a class has, and the inputs
// may have no other classes; otherwise the file is written. Files appear when all images are written, or not at all.
MakeImagesResult make_images(const MakeImagesOptions& options);

}  // namespace athanor
