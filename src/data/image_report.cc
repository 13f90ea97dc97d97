#include "base/format.h"
#include "data/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "data/token_file.h"

namespace athanor {
namespace {

// Counts over all shards.
struct Images {
  std::optional<ImageFormat> format;  // of the first shard
  std::vector<int64_t> of_class;
  std::array<double, kMaxImageChannels> sums{}, squares{};  // of pixels between 0 and 1
  int64_t count = 0;
  std::ostringstream lines, problems;
};

void add_image(Images& all, const ImageFormat& format, int64_t label, std::span<const uint8_t> pixels) {
  if (label >= int64_t(all.of_class.size())) all.of_class.resize(size_t(label) + 1);
  ++all.of_class[size_t(label)];
  ++all.count;
  const auto plane = size_t(format.height * format.width);
  for (size_t channel = 0; channel < size_t(format.channels); ++channel) {
    int64_t sum = 0, squares = 0;
    for (const uint8_t x : pixels.subspan(channel * plane, plane)) sum += x, squares += int64_t{x} * x;
    all.sums[channel] += double(sum) / (255.0 * double(plane));
    all.squares[channel] += double(squares) / (255.0 * 255.0 * double(plane));
  }
}

void add_shard(Images& all, const std::string& path) {
  const TokenFile shard = TokenFile::open_images(path);
  const ImageFormat& format = *shard.layout().images;
  const int64_t count = shard.count() / format.record_bytes();
  all.lines << path << ": " << count << " images of " << format.channels << " x " << format.height << " x "
            << format.width << " (channels, height, width), " << format.classes << " classes, " << shard.bytes()
            << " bytes\n";
  if (!all.format) all.format = format;
  if (format != *all.format)
    throw Error(cat(path, ": its images or classes differ from those of the first shard; one run reads one format"));
  std::vector<uint8_t> pixels(size_t(format.pixels()));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t label = read_image(shard.file(), format, i, pixels);
    add_image(all, format, label, pixels);
  }
}

std::string describe(const Images& all) {
  std::ostringstream out;
  int64_t fewest = all.count, most = 0, used = 0;
  for (const int64_t count : all.of_class) {
    used += count > 0;
    if (count > 0) fewest = std::min(fewest, count);
    most = std::max(most, count);
  }
  out << "classes: " << used << " of " << all.format->classes << " have images, " << fewest << " to " << most
      << " each\npixels between 0 and 1:";
  for (size_t channel = 0; channel < size_t(all.format->channels); ++channel) {
    const double mean = all.sums[channel] / double(all.count);
    const double variance = std::max(0.0, all.squares[channel] / double(all.count) - mean * mean);
    out << format_text("%s channel %zu mean %.4f, standard deviation %.4f", channel > 0 ? ";" : "", channel, mean,
                       std::sqrt(variance));
  }
  return out.str() + "\n";
}

}  // namespace

bool is_image_shard(const std::string& path) {
  try {
    const StableFile file = StableFile::open(path);
    std::string magic(8, '\0');
    if (file.bytes() < int64_t(magic.size())) return false;
    file.read(0, std::as_writable_bytes(std::span(magic)));
    return magic == "ATHIMAGE";
  } catch (const Error&) {
    return false;
  }
}

DataInfo image_info(std::span<const std::string> paths) {
  Images all;
  for (const std::string& path : paths) {
    try {
      add_shard(all, path);
    } catch (const Error& e) {
      all.problems << "problem: " << e.what() << "\n";
    }
  }
  all.lines << "total: " << all.count << " images in " << paths.size() << " shard(s)\n";
  if (all.count > 0) all.lines << describe(all);
  const std::string problems = all.problems.str();
  return {all.lines.str() + problems, problems.empty()};
}

}  // namespace athanor
