// Searching, opening and checking one library; see library.h.
#include "cuda/libraries/library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <ostream>
#include <sstream>

#include "base/error.h"

namespace athanor {
namespace {
namespace fs = std::filesystem;

struct Attempt {
  std::string place;
  std::string problem;
};

std::string variable_value(const std::string& name) {
  const char* value = name.empty() ? nullptr : std::getenv(name.c_str());
  return value ? value : "";
}

bool is_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// Adds prefix/lib/python3.*/<packages> of every installed Python.
void add_site_packages(const std::string& prefix, std::vector<std::string>& out) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(prefix + "/lib", error)) {
    if (entry.path().filename().string().rfind("python3", 0) != 0) continue;
    for (const char* packages : {"site-packages", "dist-packages"}) {
      std::string folder = entry.path().string() + "/" + packages;
      if (is_folder(folder + "/nvidia") && std::find(out.begin(), out.end(), folder) == out.end())
        out.push_back(folder);
    }
  }
}

// Adds the site packages of the first python3 on PATH, which need not be an activated environment.
void add_python_of_path(std::vector<std::string>& out) {
  std::istringstream folders(variable_value("PATH"));
  std::error_code ignored;
  for (std::string folder; std::getline(folders, folder, ':');)
    if (fs::exists(folder + "/python3", ignored))
      return add_site_packages(fs::path(folder).parent_path().string(), out);
}

// Lists files of other versions: libcublasLt.so.12 if libcublasLt.so.13 is missing.
std::string other_versions(const fs::path& file) {
  const std::string name = file.filename().string();
  const std::string stem = name.substr(0, name.find(".so") + 3);
  std::string found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(file.parent_path(), error))
    if (const std::string other = entry.path().filename().string(); other.starts_with(stem + '.'))
      found += cat(found.empty() ? ", but " : ", ", other);
  return found;
}

std::string mapped_path(void* handle, const std::string& fallback) {
  char folder[4096];
  if (dlinfo(handle, RTLD_DI_ORIGIN, folder) != 0) return fallback;
  return std::string(folder) + "/" + fs::path(fallback).filename().string();
}

std::string why_unfit(const LibrarySpec& spec, const Version& found) {
  if (found == Version{}) return "";  // version unknown before initialization; the soname fixes the major version
  if (found.major != spec.oldest.major) return cat("version ", found, " has another interface");
  if (found < spec.oldest) return cat("version ", found, " is too old");
  return "";
}

// Returns nullopt if the file is not usable, and adds the reason to `tried`.
std::optional<Library> try_open(const LibrarySpec& spec, const std::string& file, const std::string& place,
                                std::vector<Attempt>& tried) {
  if (file.find('/') != std::string::npos) {
    std::error_code ignored;
    if (!fs::exists(file, ignored)) {
      tried.push_back({place, "no such file" + other_versions(file)});
      return std::nullopt;
    }
  }
  void* handle = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  if (!handle) {
    const char* reason = dlerror();
    tried.push_back({place, reason ? reason : "cannot be opened"});
    return std::nullopt;
  }
  Library library{.handle = handle, .path = mapped_path(handle, file), .version = {}};
  if (spec.version_of) library.version = spec.version_of(handle);
  std::string problem = why_unfit(spec, library.version);
  if (problem.empty()) return library;
  dlclose(handle);
  tried.push_back({place, problem});
  return std::nullopt;
}

// Folders to try, without the override; "" stands for the dynamic linker's search.
std::vector<std::string> candidate_folders(const LibrarySpec& spec, const SearchPlaces& places) {
  std::vector<std::string> folders;
  if (!places.program_folder.empty()) {
    folders.push_back(places.program_folder);
    folders.push_back(places.program_folder + "/../lib");
  }
  folders.insert(folders.end(), places.other_folders.begin(), places.other_folders.end());
  if (places.system) folders.emplace_back();
  for (const std::string& folder : places.cuda_folders) {
    folders.push_back(folder + "/lib64");
    folders.push_back(folder + "/lib");
  }
  for (const std::string& site : places.site_packages) {
    for (const std::string& folder : spec.pip_folders) folders.push_back(cat(site, "/", folder));
  }
  return folders;
}

[[noreturn]] void throw_unusable(const LibrarySpec& spec, const std::vector<Attempt>& tried) {
  std::string text = cat(spec.name, ": version ", spec.oldest.major, ".", spec.oldest.minor,
                         " or later of major version ", spec.oldest.major, " is needed, none was found:");
  for (const Attempt& attempt : tried) text += cat("\n  ", attempt.place, ": ", attempt.problem);
  text += cat("\n  install ", spec.packages, ", or set ", spec.variable, " to the file or its folder");
  throw Error(text);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Version& version) {
  return out << version.major << "." << version.minor << "." << version.patch;
}

Version decimal_version(long code) {
  return {static_cast<int>(code / 10000), static_cast<int>(code / 100 % 100), static_cast<int>(code % 100)};
}

SearchPlaces search_places(const std::vector<LibrarySpec>& specs) {
  SearchPlaces places;
  for (const LibrarySpec& spec : specs) {
    std::string value = variable_value(spec.variable);
    if (!value.empty()) places.overrides[spec.variable] = value;
  }
  std::error_code error;
  fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) places.program_folder = program.parent_path().string();
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    std::string folder = variable_value(name);
    if (!folder.empty()) places.cuda_folders.push_back(folder);
  }
  places.cuda_folders.emplace_back("/usr/local/cuda");
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    std::string prefix = variable_value(name);
    if (!prefix.empty()) add_site_packages(prefix, places.site_packages);
  }
  add_python_of_path(places.site_packages);
  std::string home = variable_value("HOME");
  if (!home.empty()) add_site_packages(home + "/.local", places.site_packages);
  for (const char* prefix : {"/usr/local", "/usr"}) add_site_packages(prefix, places.site_packages);
  return places;
}

Library open_library(const LibrarySpec& spec, const SearchPlaces& places) {
  std::vector<Attempt> tried;
  auto chosen = places.overrides.find(spec.variable);
  if (chosen != places.overrides.end()) {
    std::string file = chosen->second;
    if (is_folder(file)) file += "/" + spec.file;
    // A name without a folder means the current folder, not the dynamic linker's search.
    if (file.find('/') == std::string::npos) file = "./" + file;
    if (auto library = try_open(spec, file, cat(spec.variable, "=", chosen->second), tried)) return *library;
    throw_unusable(spec, tried);
  }
  for (const std::string& folder : candidate_folders(spec, places)) {
    bool system = folder.empty();
    std::string file = system ? spec.file : folder + "/" + spec.file;
    if (auto library = try_open(spec, file, system ? cat(spec.file, " (system)") : file, tried)) return *library;
  }
  throw_unusable(spec, tried);
}

SearchPlaces places_near(const std::string& file, SearchPlaces places) {
  const fs::path folder = fs::path(file).parent_path();
  if (folder.empty()) return places;
  places.other_folders.push_back(folder.string());
  // site-packages/nvidia/cudnn/lib
  places.site_packages.insert(places.site_packages.begin(), (folder / "../../..").lexically_normal().string());
  return places;
}

int open_neighbours(const Library& library, const std::string& prefix) {
  int opened = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fs::path(library.path).parent_path(), error))
    if (entry.path().filename().string().starts_with(prefix))
      opened += dlopen(entry.path().c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE) != nullptr;
  return opened;
}

void* find_function(const LibrarySpec& spec, const Library& library, const char* function) {
  void* address = dlsym(library.handle, function);
  if (!address) {
    throw Error(cat(spec.name, ": ", library.path, " (version ", library.version, ") has no function ", function,
                    ": install ", spec.packages, ", or set ", spec.variable, " to another file"));
  }
  return address;
}

}  // namespace athanor
