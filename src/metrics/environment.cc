#include "metrics/environment.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "metrics/json_text.h"

namespace athanor {
namespace {

// The value after `key` and a separator, in the first line that starts with `key`.
std::string value_of(const std::string& path, const std::string& key, char separator) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t at = line.find(separator);
    if (at == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t\"", at + 1);
    const size_t end = line.find_last_not_of(" \t\"\r");
    return begin == std::string::npos || end < begin ? "" : line.substr(begin, end - begin + 1);
  }
  return "";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

std::vector<int> affinity() {
  std::vector<int> cores;
  // The kernel rejects a set smaller than its own, so sizes up to 65536 cores are tried; if all are rejected, no cores
  // are reported.
  for (int capacity = CPU_SETSIZE; capacity <= 65536; capacity *= 4) {
    cpu_set_t* set = CPU_ALLOC(size_t(capacity));
    const size_t bytes = CPU_ALLOC_SIZE(size_t(capacity));
    CPU_ZERO_S(bytes, set);
    const bool known = ::sched_getaffinity(0, bytes, set) == 0;
    for (int core = 0; known && core < capacity; ++core)
      if (CPU_ISSET_S(size_t(core), bytes, set)) cores.push_back(core);
    CPU_FREE(set);
    if (known) break;
  }
  return cores;
}

// GCC's __VERSION__ is only a number; Clang's contains the name.
std::string compiler() {
  const std::string version = __VERSION__;
  return version.find("lang") == std::string::npos ? cat("g++ ", version) : version;
}

// Writes one JSON object, indented by two spaces per level.
class ObjectWriter {
 public:
  explicit ObjectWriter(std::string& out, int level = 1) : out_(out), indent_(size_t(level) * 2, ' ') { out_ += "{"; }
  void close() { out_ += cat("\n", indent_.substr(2), "}"); }
  std::string& key(std::string_view name) {
    out_ += cat(first_ ? "\n" : ",\n", indent_);
    first_ = false;
    append_json_string(out_, name);
    return out_ += ": ";
  }
  void text(std::string_view name, std::string_view value) { append_json_string(key(name), value); }
  template <class Number>
  void number(std::string_view name, Number value) {
    append_json_number(key(name), value);
  }

 private:
  std::string& out_;
  std::string indent_;
  bool first_ = true;
};

template <class List, class Append>
void append_list(std::string& out, const List& list, Append&& append) {
  out += "[";
  for (size_t i = 0; i < list.size(); ++i) {
    if (i > 0) out += ", ";
    append(list[i]);
  }
  out += "]";
}

void append_limits(ObjectWriter& parent, const CgroupLimits& limits) {
  ObjectWriter object(parent.key("cgroup"), 2);
  if (limits.memory)
    object.number("memory_bytes", *limits.memory);
  else
    object.key("memory_bytes") += "null";
  object.number("cpus", limits.cpus.value_or(std::numeric_limits<double>::quiet_NaN()));  // null: no limit
  object.close();
}

}  // namespace

Environment find_environment(ProgramInfo program, const SystemRoot& root) {
  Environment env;
  env.program = std::move(program);
  env.time = utc_now();
  env.compiler = compiler();
  utsname names{};
  if (::uname(&names) == 0) {
    env.host = names.nodename;
    env.kernel = cat(names.sysname, " ", names.release, " ", names.machine);
  }
  env.os = value_of(root.path + "/etc/os-release", "PRETTY_NAME", '=');
  env.cpu_model = value_of(root.path + "/proc/cpuinfo", "model name", ':');
  env.cores_online = ::sysconf(_SC_NPROCESSORS_ONLN);
  env.affinity = affinity();
  env.cgroup = cgroup_limits(root);
  env.memory = machine_memory(root);
  return env;
}

std::string to_json(const Environment& env) {
  std::string out;
  ObjectWriter object(out);
  object.text("program_version", env.program.version);
  append_list(object.key("command"), env.program.command, [&](const std::string& s) { append_json_string(out, s); });
  object.text("time", env.time);
  object.text("compiler", env.compiler);
  object.text("host", env.host);
  object.text("kernel", env.kernel);
  object.text("os", env.os);
  object.text("cpu_model", env.cpu_model);
  object.number("cores_online", env.cores_online);
  append_list(object.key("affinity"), env.affinity, [&](int core) { append_json_number(out, int64_t(core)); });
  append_limits(object, env.cgroup);
  object.number("memory_total_bytes", env.memory.total);
  object.number("memory_available_bytes", env.memory.available);
  ObjectWriter libraries(object.key("libraries"), 2);
  for (const LibraryVersion& library : env.program.libraries) libraries.text(library.name, library.version);
  libraries.close();
  object.close();
  return out + "\n";
}

void write_environment(const Environment& env, const std::string& path) { write_file(path, to_json(env)); }

}  // namespace athanor
