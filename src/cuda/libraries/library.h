// Opens a shared library at run time: where it is looked for, which versions will do, and an error that tells the user
// what to install. Knows no CUDA header: what a library offers is in the *_table.h files.
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

// What is wanted of one library.
struct LibrarySpec {
  std::string name;                      // as the user knows it: "cuBLASLt"
  std::string file;                      // the soname: "libcublasLt.so.13"
  std::string variable;                  // environment variable that names the file or its folder
  std::vector<std::string> pip_folders;  // below site-packages
  std::string packages;                  // the apt and pip packages which bring it
  Version oldest;                        // inclusive; another major version is another interface
  // The version that an open library reports; {} if it cannot tell before it is initialised.
  Version (*version_of)(void* handle) = nullptr;
};

// Where libraries are looked for, in this order. A plain value, so that tests make their own.
struct SearchPlaces {
  std::map<std::string, std::string> overrides;  // variable -> file or folder; found or failed, nothing else is tried
  std::string program_folder;                    // beside the program and in ../lib
  std::vector<std::string> other_folders = {};   // that have a library which belongs to the wanted one
  bool system = true;                            // what the dynamic linker finds: LD_LIBRARY_PATH, ld.so.cache
  std::vector<std::string> cuda_folders;         // toolkits
  std::vector<std::string> site_packages;        // Python environments with NVIDIA's pip packages
};

// The places of this process: its environment variables (those of the specs), its program and the usual folders.
SearchPlaces search_places(const std::vector<LibrarySpec>& specs);

// An open library. Never unloaded: CUDA libraries run threads and exit handlers, and tables point into them.
struct Library {
  void* handle = nullptr;
  std::string path;  // of the file that was mapped
  Version version;
};

// Throws Error: name, wanted version, every place with the reason why it will not do, the remedy.
Library open_library(const LibrarySpec& spec, const SearchPlaces& places);

// The places for a library that belongs to the one in `file`: first that file's folder, and where it is one of NVIDIA's
// pip packages, the others beside it.
SearchPlaces places_near(const std::string& file, SearchPlaces places);

// Opens all libraries in the folder of this one whose names begin so, for a library that will open them by name. How
// many there are.
int open_neighbours(const Library& library, const std::string& prefix);

// Address of a function; throws Error naming the library, its version and the function.
void* find_function(const LibrarySpec& spec, const Library& library, const char* function);

}  // namespace athanor
