// Keys and values of earlier versions. A configuration (also one in a checkpoint) that contains one is refused with a
// message naming the replacement, except if the key has the value that matches today's behaviour.
#include "base/error.h"
#include "config/fields.h"

namespace athanor {
namespace {

struct RemovedKey {
  std::string_view key, left, instead;  // left: the value that matches today's behaviour
};
constexpr RemovedKey kKeys[] = {
    {"transport", "tcp",
     "tensors of CPU ranks travel over TCP alone; delete the key, mpirun starts such ranks as well"},
    {"cpu_gemm", "builtin", "delete the key: the program's own GEMMs are at least as fast as oneDNN's"},
};

struct RemovedValue {
  std::string_view key, value, instead;
};
constexpr RemovedValue kValues[] = {
    {"attention", "ordered", "use builtin, the program's own kernels with the same results but for rounding"},
    {"optimizer", "adam_mini", "use adamw_8bit or adafactor, which need less memory and learn better"},
    {"optimizer", "adamw_fp8", "use adamw_8bit, which keeps as many bytes and learns as well"},
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

void refuse_removed_value(const Json& value, const std::string& path) {
  const size_t dot = path.rfind('.');
  const std::string_view key = std::string_view(path).substr(dot == std::string::npos ? 0 : dot + 1);
  for (const RemovedValue& removed : kValues)
    if (removed.key == key && value.is(Json::Kind::string) && value.text == removed.value)
      throw Error(cat(value.where, ": ", path, ": \"", removed.value, "\" was removed: ", removed.instead),
                  Exit::usage);
}

}  // namespace athanor
