// Folders with a subfolder per class, as torchvision's ImageFolder reads them.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "data/image_file.h"
#include "data/image_source.h"

namespace athanor {
namespace {

constexpr std::array<std::string_view, 5> kExtensions = {".jpg", ".jpeg", ".png", ".ppm", ".pgm"};

bool is_image_name(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return false;
  std::string extension(name.substr(dot));
  for (char& c : extension)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return std::find(kExtensions.begin(), kExtensions.end(), extension) != kExtensions.end();
}

struct CloseDir {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

struct Entry {
  std::string name;
  bool maybe_folder = true;  // false: a file, known without a call of stat, which takes long on network file systems
  bool operator<(const Entry& other) const { return name < other.name; }
};

// Entries of a folder, sorted by the bytes of their names.
std::vector<Entry> entries_in(const std::string& folder) {
  const std::unique_ptr<DIR, CloseDir> dir(::opendir(folder.c_str()));
  if (!dir) throw_io("reading the folder", folder, errno);
  std::vector<Entry> entries;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(dir.get());
    if (!entry && errno != 0) throw_io("reading the folder", folder, errno);
    if (!entry) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") entries.push_back({name, entry->d_type != DT_REG});
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

using FolderId = std::pair<dev_t, ino_t>;

// The identity of a folder, also behind a link; nullopt: no folder. A link that leads nowhere is no folder.
std::optional<FolderId> folder_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return {};
  return FolderId{status.st_dev, status.st_ino};
}

class FolderWalk {
 public:
  void add_root(const std::string& root, ImageSource& source) {
    for (const auto& [name, maybe_folder] : entries_in(root)) {
      const std::string path = cat(root, root.ends_with('/') ? "" : "/", name);
      if (name[0] == '.' || !maybe_folder || !folder_at(path)) {
        ignore(path, source);
        continue;
      }
      if (name.find_first_of("\n\r") != name.npos)
        throw Error(cat(path, ": the name of a class holds a line break, but classes are stored as lines; rename it"),
                    Exit::usage);
      classes_.push_back({name, path});
    }
  }

  // Lists the images of all classes, which get their labels here.
  std::vector<std::pair<int64_t, std::string>> images(ImageSource& source) {
    std::stable_sort(classes_.begin(), classes_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::pair<int64_t, std::string>> found;
    std::set<FolderId> read;
    for (const auto& [name, path] : classes_) {
      if (source.classes.empty() || source.classes.back() != name) {
        source.classes.push_back(name);
        read.clear();
      }
      walk(path, int64_t(source.classes.size()) - 1, read, found, source);
    }
    return found;
  }

 private:
  static void ignore(const std::string& path, ImageSource& source) {
    if (source.ignored++ == 0) source.first_ignored = path;
  }

  static void walk(const std::string& top, int64_t label, std::set<FolderId>& read,
                   std::vector<std::pair<int64_t, std::string>>& found, ImageSource& source) {
    std::vector<std::string> left = {top};
    const size_t before = found.size();
    while (!left.empty()) {
      const std::string folder = std::move(left.back());
      left.pop_back();
      const auto id = folder_at(folder);
      if (id && !read.insert(*id).second) continue;
      for (const auto& [name, maybe_folder] : entries_in(folder)) {
        std::string path = cat(folder, "/", name);
        if (name[0] != '.' && maybe_folder && folder_at(path))
          left.push_back(std::move(path));
        else if (name[0] != '.' && is_image_name(name))
          found.emplace_back(label, std::move(path));
        else
          ignore(path, source);
      }
    }
    std::sort(found.begin() + int64_t(before), found.end());
  }

  std::vector<std::pair<std::string, std::string>> classes_;  // name and path of each class folder
};

}  // namespace

ImageSource open_image_folders(const std::vector<std::string>& paths) {
  ImageSource source{.channels = 3};
  FolderWalk walk;
  for (const std::string& path : paths) walk.add_root(path, source);
  auto found = std::make_shared<std::vector<std::pair<int64_t, std::string>>>(walk.images(source));
  if (source.classes.empty())
    throw Error(cat(paths.front(), ": expected a folder with one subfolder per class, found no subfolder"),
                Exit::usage);
  source.images = int64_t(found->size());
  source.next = [found, at = size_t{0}]() mutable -> std::optional<StoredImage> {
    if (at == found->size()) return {};
    auto& [label, path] = (*found)[at++];
    return StoredImage{.label = label, .name = std::move(path), .picture = {}};
  };
  return source;
}

}  // namespace athanor
