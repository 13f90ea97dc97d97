#include "convert/folder_links.h"

#include <filesystem>

#include "base/error.h"
#include "base/file.h"

namespace athanor {
namespace fs = std::filesystem;
namespace {

bool is_below(const fs::path& file, const fs::path& folder) {
  const fs::path relative = file.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace

std::string path_behind(const std::string& path) {
  std::error_code failed;
  const fs::path real = fs::canonical(path, failed);
  if (failed) throw_io("opening", path, failed.value());
  return real.string();
}

void require_in_folder(const std::string& folder, const std::string& name, const std::string& opened) {
  const fs::path real = path_behind(folder);
  if (is_below(opened, real)) return;
  const fs::path model = real.parent_path().parent_path();  // models--OWNER--NAME in the hub's cache
  if (real.parent_path().filename() == "snapshots" && is_below(opened, model / "blobs")) return;
  throw Error(cat(folder, "/", name, ": leads out of the folder, to ", opened,
                  "; expected files in the folder itself: if you trust that file, copy it there, or import the model "
                  "with `athanor import --follow-links`"),
              Exit::usage);
}

std::string read_file_in(const std::string& folder, const std::string& name, int64_t max_bytes, Links links) {
  const std::string path = cat(folder, "/", name);
  const Fd file = open_regular(path);
  // Checks the path of the file that is already open, so that nobody can change the link in between.
  if (links == Links::inside) require_in_folder(folder, name, path_behind(cat("/proc/self/fd/", file.get())));
  return read_all(file, max_bytes, path);
}

}  // namespace athanor
