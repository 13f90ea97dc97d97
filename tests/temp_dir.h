// A temporary folder for one test, removed with its contents.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "base/error.h"

namespace athanor::testing {

class TempDir {
 public:
  TempDir() {
    path_ = (std::filesystem::temp_directory_path() / "athanor-test-XXXXXX").string();
    if (::mkdtemp(path_.data()) == nullptr) throw Error("cannot make a temporary folder");
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace athanor::testing
