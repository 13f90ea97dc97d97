// Creates a folder atomically: it is filled as .NAME.MARK.tmp in the same parent, where MARK is process_mark(), and
// renamed by commit(). Without commit() the destructor removes it.
#pragma once
#include <string>

namespace athanor {

// "out" for "out/".
std::string without_slash(const std::string& path);

// Throws Error(usage) if the path exists, or is no path for other files (require_outside_checkpoints()).
void require_new_path(const std::string& path);

// Throws Error if no file or folder can be created at the path. Creates its missing parents, and removes what killed
// processes left of earlier attempts at this path.
void prepare_new_path(const std::string& path);

class NewFolder {
 public:
  explicit NewFolder(const std::string& path);  // prepare_new_path()
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
