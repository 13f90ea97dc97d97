// Opening libraries at run time: where they are looked for, what is refused, and what the error says. Needs no CUDA:
// the libraries of these tests are small ones that the C compiler of the machine makes, or files that are none.
#include "cuda/libraries/library.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace athanor {
namespace {
namespace fs = std::filesystem;

Version fake_version(void* handle) {
  auto get = reinterpret_cast<long (*)()>(dlsym(handle, "fake_version"));
  return get ? decimal_version(get()) : Version{};
}

class LibraryTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("athanor_library_test_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A library of the given version at folder_/place; each has its own name, since an open library is never unloaded.
  std::string make_library(const std::string& place, long version) {
    fs::path file = folder_ / place;
    fs::create_directories(file.parent_path());
    fs::path source = folder_ / "fake.c";
    std::ofstream(source) << "long fake_version(void) { return " << version << "; }\n";
    std::string command = cat("cc -shared -fPIC -w -o '", file.string(), "' '", source.string(), "'");
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return file.string();
  }
  std::string make_file(const std::string& place, const std::string& content) {
    fs::path file = folder_ / place;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << content;
    return file.string();
  }
  LibrarySpec spec(const std::string& file) {
    return {.name = "Fake",
            .file = file,
            .variable = "ATHANOR_FAKE",
            .pip_folders = {"nvidia/fake/lib"},
            .packages = "apt: libfake1, or pip: nvidia-fake",
            .oldest = {2, 5, 0},
            .version_of = fake_version};
  }
  static std::string error_of(const LibrarySpec& spec, const SearchPlaces& places) {
    try {
      open_library(spec, places);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  fs::path folder_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(LibraryTest, OpensTheFileThatTheVariableNames) {
  std::string file = make_library("a/libfake_a.so", 20600);
  SearchPlaces places{.overrides = {{"ATHANOR_FAKE", file}}};
  Library library = open_library(spec("libfake_a.so"), places);
  EXPECT_EQ(library.version, (Version{2, 6, 0}));
  EXPECT_EQ(fs::canonical(library.path), fs::canonical(file));
  EXPECT_NE(find_function(spec("libfake_a.so"), library, "fake_version"), nullptr);
}

TEST_F(LibraryTest, TheVariableMayNameTheFolder) {
  make_library("b/libfake_b.so", 20500);
  SearchPlaces places{.overrides = {{"ATHANOR_FAKE", (folder_ / "b").string()}}};
  EXPECT_EQ(open_library(spec("libfake_b.so"), places).version, (Version{2, 5, 0}));
}

TEST_F(LibraryTest, InvalidVariableIsAnErrorEvenIfTheLibraryIsElsewhere) {
  make_library("lib/libfake_c.so", 20500);
  SearchPlaces places{.overrides = {{"ATHANOR_FAKE", "/nowhere/libfake.so"}}, .cuda_folders = {folder_.string()}};
  std::string error = error_of(spec("libfake_c.so"), places);
  EXPECT_HAS(error, "ATHANOR_FAKE=/nowhere/libfake.so: no such file");
  EXPECT_EQ(error.find((folder_ / "lib").string()), std::string::npos) << error;
}

TEST_F(LibraryTest, SearchesProgramThenToolkitThenPip) {
  SearchPlaces places{.program_folder = (folder_ / "bin").string(),
                      .system = false,
                      .cuda_folders = {(folder_ / "cuda").string()},
                      .site_packages = {(folder_ / "site").string()}};
  make_library("site/nvidia/fake/lib/libfake_d.so", 20503);
  EXPECT_EQ(open_library(spec("libfake_d.so"), places).version.patch, 3);
  make_library("cuda/lib64/libfake_d.so", 20502);
  EXPECT_EQ(open_library(spec("libfake_d.so"), places).version.patch, 2);
  fs::create_directories(folder_ / "bin");
  make_library("lib/libfake_d.so", 20501);  // bin/../lib
  EXPECT_EQ(open_library(spec("libfake_d.so"), places).version.patch, 1);
}

TEST_F(LibraryTest, MissingLibraryReportsPlacesVersionsAndPackages) {
  SearchPlaces places{.program_folder = "/prog", .cuda_folders = {"/toolkit"}, .site_packages = {"/site"}};
  std::string error = error_of(spec("libfake_missing.so.7"), places);
  for (const char* part :
       {"Fake: version 2.5 or later of major version 2 is needed", "/prog/libfake_missing.so.7: no such file",
        "/prog/../lib/libfake_missing.so.7", "libfake_missing.so.7 (system): ", "/toolkit/lib64/libfake_missing.so.7",
        "/site/nvidia/fake/lib/libfake_missing.so.7", "apt: libfake1", "pip: nvidia-fake", "set ATHANOR_FAKE"}) {
    EXPECT_HAS(error, part);
  }
}

TEST_F(LibraryTest, TooOldLibraryIsSkippedAndNamed) {
  std::string old = make_library("cuda/lib64/libfake_e.so", 20400);
  SearchPlaces places{.system = false, .cuda_folders = {(folder_ / "cuda").string()}};
  std::string error = error_of(spec("libfake_e.so"), places);
  EXPECT_HAS(error, old + ": version 2.4.0 is too old");
  make_library("cuda/lib/libfake_e.so", 20900);
  EXPECT_EQ(open_library(spec("libfake_e.so"), places).version, (Version{2, 9, 0}));
}

TEST_F(LibraryTest, AnotherMajorVersionIsRefused) {
  SearchPlaces places{.overrides = {{"ATHANOR_FAKE", make_library("f/libfake_f.so", 30000)}}};
  EXPECT_HAS(error_of(spec("libfake_f.so"), places), "version 3.0.0 has another interface");
}

// PyTorch for an older CUDA brings the same library under another name.
TEST_F(LibraryTest, OtherMajorVersionsOfAMissingFileAreNamed) {
  make_file("site/nvidia/fake/lib/libfake_v.so.12", "");
  const std::string error =
      error_of(spec("libfake_v.so.13"), {.system = false, .site_packages = {(folder_ / "site").string()}});
  EXPECT_HAS(error, "site/nvidia/fake/lib/libfake_v.so.13: no such file, but libfake_v.so.12");
}

// A Python environment that is not activated: its folder bin is in PATH, VIRTUAL_ENV is not set.
TEST_F(LibraryTest, PythonInPathIsSearched) {
  make_file("env/bin/python3", "");
  make_file("env/lib/python3.12/site-packages/nvidia/fake/lib/libfake.so", "");
  const std::string path = std::getenv("PATH");
  ASSERT_EQ(
      setenv("PATH", cat((folder_ / "none/bin").string(), ":", (folder_ / "env/bin").string(), ":", path).c_str(), 1),
      0);
  const auto found = search_places({}).site_packages;
  ASSERT_EQ(setenv("PATH", path.c_str(), 1), 0);
  EXPECT_EQ(std::count(found.begin(), found.end(), (folder_ / "env/lib/python3.12/site-packages").string()), 1);
}

TEST_F(LibraryTest, BrokenFileIsNamedWithTheLinkerError) {
  SearchPlaces places{.overrides = {{"ATHANOR_FAKE", make_file("g/libfake_g.so", "not a library at all")}}};
  std::string error = error_of(spec("libfake_g.so"), places);
  EXPECT_HAS(error, "libfake_g.so");
  EXPECT_TRUE(error.find("invalid ELF") != std::string::npos || error.find("too short") != std::string::npos) << error;
  places.overrides["ATHANOR_FAKE"] = make_file("g/libfake_empty.so", "");
  EXPECT_HAS(error_of(spec("libfake_empty.so"), places), "libfake_empty.so");
}

TEST_F(LibraryTest, BrokenFileDoesNotHideAValidOne) {
  make_file("cuda/lib64/libfake_h.so", "broken");
  make_library("cuda/lib/libfake_h.so", 20500);
  SearchPlaces places{.system = false, .cuda_folders = {(folder_ / "cuda").string()}};
  EXPECT_EQ(open_library(spec("libfake_h.so"), places).version, (Version{2, 5, 0}));
}

TEST_F(LibraryTest, MissingFunctionIsNamed) {
  SearchPlaces places{.overrides = {{"ATHANOR_FAKE", make_library("i/libfake_i.so", 20500)}}};
  Library library = open_library(spec("libfake_i.so"), places);
  try {
    find_function(spec("libfake_i.so"), library, "fakeAllReduce");
    FAIL();
  } catch (const Error& error) {
    std::string text = error.what();
    EXPECT_HAS(text, "has no function fakeAllReduce");
    EXPECT_HAS(text, "version 2.5.0");
  }
}

TEST(Version, ParsesDecimalVersionNumbers) {
  EXPECT_EQ(decimal_version(130100), (Version{13, 1, 0}));
  EXPECT_EQ(decimal_version(22809), (Version{2, 28, 9}));
  std::ostringstream text;
  text << decimal_version(91900);
  EXPECT_EQ(text.str(), "9.19.0");
}

TEST(SearchPlaces, AreReadFromTheEnvironment) {
  LibrarySpec spec{.name = "Fake", .variable = "ATHANOR_FAKE_PLACES"};
  ASSERT_EQ(setenv("ATHANOR_FAKE_PLACES", "/some/file.so", 1), 0);
  SearchPlaces places = search_places({spec});
  EXPECT_EQ(places.overrides.at("ATHANOR_FAKE_PLACES"), "/some/file.so");
  EXPECT_FALSE(places.program_folder.empty());
  ASSERT_EQ(setenv("ATHANOR_FAKE_PLACES", "", 1), 0);  // empty counts as not set
  EXPECT_TRUE(search_places({spec}).overrides.empty());
  unsetenv("ATHANOR_FAKE_PLACES");
}

// A PyTorch installation, whose packages the dynamic linker does not know: cuDNN in one folder, its compiler in
// another, and a library that the compiler opens by name.
TEST_F(LibraryTest, LibraryNextToAnotherIsFoundWithItsDependencies) {
  const std::string first = make_library("site/nvidia/cudnn/lib/libfake_first.so", 20600);
  make_library("site/nvidia/fake/lib/libfake_compiler.so", 20700);
  const std::string neighbour = make_library("site/nvidia/fake/lib/libfake_compiler-builtins.so.2", 1);
  ASSERT_EQ(std::system(cat("cc -shared -fPIC -w -Wl,-soname,libfake_compiler-builtins.so.2 -o '", neighbour, "' '",
                            (folder_ / "fake.c").string(), "'")
                            .c_str()),
            0);
  const LibrarySpec compiler = spec("libfake_compiler.so");
  SearchPlaces places{.system = false};
  EXPECT_HAS(error_of(compiler, places), "none was found");
  const Library found = open_library(compiler, places_near(first, places));
  EXPECT_EQ(found.version, (Version{2, 7, 0}));
  EXPECT_EQ(dlopen("libfake_compiler-builtins.so.2", RTLD_LAZY), nullptr);
  EXPECT_EQ(open_neighbours(found, "libfake_compiler-builtins.so."), 1);
  EXPECT_NE(dlopen("libfake_compiler-builtins.so.2", RTLD_LAZY), nullptr);

  make_library("other/libfake_first.so", 20600);  // side by side, in no Python
  make_library("other/libfake_beside.so", 20800);
  EXPECT_EQ(open_library(spec("libfake_beside.so"), places_near((folder_ / "other/libfake_first.so").string(), places))
                .version,
            (Version{2, 8, 0}));
  EXPECT_EQ(places_near("", places).other_folders.size(), 0u);
}

}  // namespace
}  // namespace athanor
