// The flags of a verb: what the command line needs of CLI11. Only options.cc and cli.cc include that library, whose
// headers take seconds to compile.
#pragma once
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
class Validator;
}  // namespace CLI

namespace athanor {

// A condition on the value of a flag.
using Check = std::shared_ptr<const CLI::Validator>;
Check in_range(int64_t least, int64_t most);
Check in_range(double least, double most);  // not NaN either
template <std::integral T>
Check in_range(T least, T most) {
  return in_range(int64_t{least}, int64_t{most});
}
Check positive();  // whole numbers from 1 on, or numbers above 0
Check non_negative();
Check one_of(std::vector<std::string> words);

// A flag or a positional argument. Methods return the same option.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required();
  Option show_default();     // in the help
  Option one_value();        // each occurrence of the flag takes a single word
  Option values(int count);  // takes exactly so many words
  Option check(const Check&);
  Option size_in_bytes();  // also 5GB, 500MiB
  Option needs(const Option& other);
  Option needs(const std::string& flag);
  Option excludes(const Option& other);
  Option group(const std::string& heading);  // heading in the help

 private:
  CLI::Option* option_;
};

// A verb of the command line, or a verb below it.
class Verb {
 public:
  explicit Verb(CLI::App* app) : app_(app) {}
  Verb add_verb(const std::string& name, const std::string& help);
  // T: std::string, int, int64_t, uint64_t, float, double, or a std::vector of strings or doubles. Numbers are finite
  // and fit their type; nothing is rounded, clamped or read as octal.
  template <class T>
  Option add_option(const std::string& name, T& value, const std::string& help);
  Option add_flag(const std::string& name, bool& value, const std::string& help);
  void footer(const std::string& text);
  void require_verb();  // one of those below it
  void on_chosen(std::function<void()>);
  void take_rest();  // what no flag takes: rest()
  std::vector<std::string> rest() const;

 private:
  CLI::App* app_;
};

// From within on_chosen: the message, then exit code 2.
[[noreturn]] void usage_error(const std::string& verb, const std::string& message);

}  // namespace athanor
