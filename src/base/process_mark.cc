#include "base/process_mark.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <optional>

#include "base/checksum.h"
#include "base/error.h"

namespace athanor {
namespace {

constexpr size_t kHostDigits = 8;

std::string mark_of_host() { return xxh3_hex(host_name()).substr(0, kHostDigits); }

struct Mark {
  pid_t pid = 0;
  std::string_view host;
};
std::optional<Mark> parse(std::string_view text) {
  Mark mark;
  const size_t dash = text.find('-');
  if (dash == text.npos || text.size() - dash - 1 != kHostDigits) return {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + dash, mark.pid);
  if (error != std::errc() || end != text.data() + dash || mark.pid <= 0) return {};
  mark.host = text.substr(dash + 1);
  if (mark.host.find_first_not_of("0123456789abcdef") != text.npos) return {};
  return mark;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

std::string process_mark() { return cat(getpid(), "-", mark_of_host()); }

bool is_of_ended_process(std::string_view text) {
  const auto mark = parse(text);
  return mark && mark->host == mark_of_host() && kill(mark->pid, 0) != 0 && errno == ESRCH;
}

}  // namespace athanor
