// The only exception type, checks for programmer errors, and string building without <format> (device code includes
// this header). User or environment at fault: throw Error("subject: expectation: actual values: remedy"). Programmer at
// fault: CHECK.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace athanor {

// Process exit codes; documented in README.md ("Exit codes").
enum class Exit : int {
  done = 0,
  error = 1,      // environment at fault: a file, the network, memory
  usage = 2,      // command line or config is wrong; detected within the first second
  diverged = 3,   // loss or gradients stayed non-finite
  peer_lost = 4,  // another rank died or hangs
  requeue = 85,   // checkpoint written, please start again (Slurm's RequeueExit)
};

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, Exit code = Exit::error) : std::runtime_error(message), code_(code) {}
  Exit code() const { return code_; }

 private:
  Exit code_;
};

// cat("x ", shape, " is not ", 3) -> one string, through operator<<.
template <class... A>
std::string cat(const A&... parts) {
  std::ostringstream out;
  (void)(out << ... << parts);
  return out.str();
}

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

// Runs fn; prepends "what: " to an Error thrown by it and keeps its exit code.
template <class Fn>
decltype(auto) with_context(std::string_view what, Fn&& fn) {
  try {
    return std::forward<Fn>(fn)();
  } catch (const Error& e) {
    throw Error(cat(what, ": ", e.what()), e.code());
  }
}

// Runs fn and returns its error message, or "". Rethrows the loss of a rank, since the remaining ranks cannot agree on
// anything.
template <class Fn>
std::string failure_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& e) {
    if (e.code() == Exit::peer_lost) throw;
    return e.what();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

}  // namespace athanor

// Also on in release builds. CHECK(cond, "text ", value, ...): the message is only built on failure.
#define CHECK(cond, ...)                                                                          \
  do {                                                                                            \
    if (!(cond)) ::athanor::check_failed(__FILE__, __LINE__, #cond, ::athanor::cat(__VA_ARGS__)); \
  } while (0)
