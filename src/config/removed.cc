// Keys that earlier versions had. A configuration, or a checkpoint's, that has one is refused with what to use instead,
// unless the key has the value that is left.
#include "base/error.h"
#include "config/fields.h"

namespace athanor {
namespace {

struct RemovedKey {
  std::string_view key, left, instead;  // left: the value that does what runs now do without the key
};
constexpr RemovedKey kKeys[] = {
    {"transport", "tcp", "tensors of CPU ranks travel over TCP alone; delete the key, mpirun starts such ranks as well"},
};

}  // namespace

bool skips_removed_key(const Json& value, const std::string& prefix, std::string_view key, Notices notices) {
  for (const RemovedKey& removed : kKeys) {
    if (removed.key != key || !prefix.empty()) continue;
    if (!value.is(Json::Kind::string) || value.text != removed.left)
      throw Error(cat(value.where, ": ", key, ": ", to_line(value), " was removed: ", removed.instead), Exit::usage);
    if (notices) notices->push_back(cat(value.where, ": ", key, " was removed and has no effect"));
    return true;
  }
  return false;
}

}  // namespace athanor
