// Opens a shared library at run time: search order, accepted versions, and errors that say what to install. Includes no
// CUDA header; the functions of each library are in *_table.h.
#pragma once
#include <compare>
#include <iosfwd>
#include <map>
#include <string>
#include <vector>

namespace athanor {

struct Version {
  int major = 0, minor = 0, patch = 0;
  auto operator<=>(const Version&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
};
std::ostream& operator<<(std::ostream& out, const Version& version);

// major*ten_thousands + minor*hundreds + patch, as cuBLAS, cuDNN and NCCL count.
Version decimal_version(long code);

// Requirements for one library.
struct LibrarySpec {
  std::string name;                      // display name
  std::string file;                      // the soname: "libcublasLt.so.13"
  std::string variable;                  // environment variable that names the file or its folder
  std::vector<std::string> pip_folders;  // below site-packages
  std::string packages;                  // the apt and pip packages that provide it
  Version oldest;                        // minimum, inclusive; another major version has another interface
  // The version that an open library reports; {}: unknown before it is initialized.
  Version (*version_of)(void* handle) = nullptr;
};

// Search order for libraries. A plain value, so that tests can make their own.
struct SearchPlaces {
  std::map<std::string, std::string> overrides;  // variable -> file or folder; if set, nothing else is tried
  std::string program_folder;                    // folder of the program; searched, and its ../lib
  std::vector<std::string> other_folders = {};   // folders of related libraries, see places_near()
  bool system = true;                            // the dynamic linker's search: LD_LIBRARY_PATH, ld.so.cache
  std::vector<std::string> cuda_folders;         // CUDA toolkits
  std::vector<std::string> site_packages;        // Python environments with NVIDIA's pip packages
};

// The search places of this process: its environment variables (those of the specs), its program and the usual folders.
SearchPlaces search_places(const std::vector<LibrarySpec>& specs);

// An open library. Never unloaded: CUDA libraries run threads and exit handlers, and tables point into them.
struct Library {
  void* handle = nullptr;
  std::string path;  // path of the mapped file
  Version version;
};

// Throws Error with name, required version, every place with the reason why it is not usable, and the remedy.
Library open_library(const LibrarySpec& spec, const SearchPlaces& places);

// Search places for a library related to `file`: first the folder of `file`; if that is an NVIDIA pip package, then its
// sibling packages.
SearchPlaces places_near(const std::string& file, SearchPlaces places);

// Opens all libraries in the same folder whose names begin with a prefix, so that `library` finds them by name. Returns
// their number.
int open_neighbours(const Library& library, const std::string& prefix);

// Address of a function; throws Error naming the library, its version and the function.
void* find_function(const LibrarySpec& spec, const Library& library, const char* function);

}  // namespace athanor
