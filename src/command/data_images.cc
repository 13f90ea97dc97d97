// athanor data images: a thin wrapper of data/make_images.h.
#include <memory>

#include "base/log.h"
#include "base/thread.h"
#include "command/command.h"
#include "data/image_file.h"
#include "data/make_images.h"

namespace athanor {
namespace {

void add_options(Verb verb, MakeImagesOptions& o) {
  verb.add_option("inputs", o.inputs,
                  "IDX files of images (MNIST, Fashion-MNIST; also gzip), CIFAR's binary files, or folders with one "
                  "subfolder of JPEG, PNG, PPM or PGM files per class")
      .required();
  verb.add_option("--output-prefix", o.output_prefix,
                  "output is PREFIX_train_000000.bin, PREFIX_val_000000.bin and PREFIX_classes.txt")
      .required();
  verb.add_option("--format", o.format, "auto (folder or idx), idx, cifar10, cifar100 or folder")
      .show_default()
      .check(one_of({"auto", "idx", "cifar10", "cifar100", "folder"}));
  verb.add_option("--labels", o.labels,
                  "IDX: file with the labels; default: the name of the images with labels-idx1 for images-idx3");
  verb.add_option("--split", o.split, "train or val: the split that the images belong to")
      .show_default()
      .check(one_of({"train", "val"}));
  verb.add_option("--valid-every", o.valid_every,
                  "hold out every n-th image, chosen by a hash of its bytes in the input; 0: none")
      .show_default()
      .check(non_negative());
  verb.add_option("--size", o.size,
                  "height and width in pixels: the shorter side is resized, then the centre is cut out; required for "
                  "folders; default: as stored")
      .check(in_range(int64_t{1}, kMaxImageSide));
  verb.add_option("--resize-to", o.resize_to, "length of the shorter side before the cut; default: --size")
      .check(in_range(int64_t{1}, kMaxImageSide));
  verb.add_option("--channels", o.channels, "1 (grey) or 3 (RGB); default: as stored, 3 for folders")
      .check(in_range(1, 3));
  verb.add_flag("--skip-bad", o.skip_bad, "leave damaged images of folders out and count them");
  verb.add_option("--threads", o.threads, "CPU threads; 0: all cores available; does not change the output")
      .show_default()
      .check(in_range(0, kMostThreads));
  verb.add_flag("--overwrite", o.overwrite, "replace existing files of this prefix and split");
}

}  // namespace

void add_data_images(Cli& cli, Verb data) {
  auto args = std::make_shared<MakeImagesOptions>();
  Verb verb = data.add_verb("images", "make shards of labelled images");
  add_options(verb, *args);
  verb.footer(
      "--size N resizes with Pillow's bicubic filter with antialiasing, and the longer side to N x longer / shorter, "
      "rounded down; then N x N pixels are cut out at round((side - N) / 2), as torchvision's Resize and CenterCrop "
      "do. "
      "Details: data/README.md");
  verb.on_chosen([&cli, args] {
    cli.action = [args] {
      const MakeImagesResult result = make_images(*args);
      for (const std::string& warning : result.warnings) log::warn(warning);
      print(result.summary);
      return Exit::done;
    };
  });
}

}  // namespace athanor
