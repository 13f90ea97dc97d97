// What the fake libraries share: the machine, planned failures, a record of why a call was refused, and the one pointer
// through which C functions that carry no context find their fake.
#pragma once
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "machine.h"

namespace emu::fakes {

template <class... A>
std::string text(const A&... parts) {
  std::ostringstream out;
  (void)(out << ... << parts);
  return out.str();
}

// Why the fake refused calls. A real library gives a status only; this says which rule was broken.
class Refusals {
 public:
  void add(const std::string& why) {
    std::lock_guard lock(mutex_);
    all_.push_back(why);
  }
  std::string last() const {
    std::lock_guard lock(mutex_);
    return all_.empty() ? "" : all_.back();
  }
  std::vector<std::string> all() const {
    std::lock_guard lock(mutex_);
    return all_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> all_;
};

// One fake of each library at a time: the library's functions have no argument that could tell fakes apart.
template <class Fake>
class Installed {
 public:
  explicit Installed(Fake* fake) {
    if (slot() != nullptr) throw std::logic_error("a fake of this library exists already; destroy it first");
    slot() = fake;
  }
  ~Installed() { slot() = nullptr; }
  Installed(const Installed&) = delete;
  Installed& operator=(const Installed&) = delete;

  static Fake& get() {
    if (slot() == nullptr) throw std::logic_error("a fake library was called after its end");
    return *slot();
  }

 private:
  static Fake*& slot() {
    static Fake* fake = nullptr;
    return fake;
  }
};

}  // namespace emu::fakes
