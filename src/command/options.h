// The flags of a verb: a wrapper of CLI11. Only options.cc and cli.cc include that library, whose headers take seconds
// to compile.
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
Check in_range(double least, double most);  // also refuses NaN
template <std::integral T>
Check in_range(T least, T most) {
  return in_range(int64_t{least}, int64_t{most});
}
Check positive();  // integers from 1 on, or real numbers above 0
Check non_negative();
Check one_of(std::vector<std::string> words);

// A flag or a positional argument. The methods return the same option, for chaining.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required();
  Option show_default();     // show the default value in the help
  Option one_value();        // each occurrence of the flag takes one word
  Option values(int count);  // takes exactly `count` words
  Option check(const Check&);
  Option may_be_empty();   // texts: accepts an empty one, which other options refuse
  Option size_in_bytes();  // accepts units, such as 5GB, 500MiB
  Option needs(const Option& other);
  Option needs(const std::string& flag);
  Option excludes(const Option& other);
  Option group(const std::string& heading);  // heading in the help

 private:
  CLI::Option* option_;
};

// A verb of the command line, or a nested verb.
class Verb {
 public:
  explicit Verb(CLI::App* app) : app_(app) {}
  Verb add_verb(const std::string& name, const std::string& help);
  // T: std::string, int, int64_t, uint64_t, float, double, or a std::vector of strings or doubles. Numbers must be
  // finite and fit their type; nothing is rounded, clamped or read as octal. Strings must not be empty.
  template <class T>
  Option add_option(const std::string& name, T& value, const std::string& help);
  Option add_flag(const std::string& name, bool& value, const std::string& help);
  void footer(const std::string& text);
  void require_verb();  // a nested verb must follow
  void on_chosen(std::function<void()>);
  void take_rest();  // collects words that no flag takes into rest()
  std::vector<std::string> rest() const;

 private:
  CLI::App* app_;
};

// Call inside on_chosen: prints the message and exits with code 2.
[[noreturn]] void usage_error(const std::string& verb, const std::string& message);

}  // namespace athanor
