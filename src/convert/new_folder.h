// Creates a folder atomically: it is filled as .NAME.tmp in the same parent and renamed by commit(). Without commit()
// the destructor removes it.
#pragma once
#include <string>

namespace athanor {

// "out" for "out/".
std::string without_slash(const std::string& path);

class NewFolder {
 public:
  explicit NewFolder(const std::string& path);  // throws Error(usage) if the path exists already
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();
  const std::string& path() const { return tmp_; }  // folder to write the files to
  void commit();

 private:
  std::string final_, tmp_;
  bool committed_ = false;
};

}  // namespace athanor
