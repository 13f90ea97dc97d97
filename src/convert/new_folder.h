// A folder that appears under its name only when it is whole: made as .NAME.tmp beside it and renamed by commit().
// Destroyed before that, it vanishes.
#pragma once
#include <string>

namespace athanor {

class NewFolder {
 public:
  explicit NewFolder(const std::string& path);  // Error(usage) if something is there already
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder();
  const std::string& path() const { return tmp_; }  // where its files are written
  void commit();

 private:
  std::string final_, tmp_;
  bool committed_ = false;
};

}  // namespace athanor
