#include "command/options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/error.h"

namespace athanor {

namespace {

// Parses the whole text as a number; returns the error if it is none.
template <class T>
std::errc parse(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end != text.data() + text.size() ? std::errc::invalid_argument : error;
}

Check condition(const std::string& expected, const std::function<bool(double)>& holds) {
  const auto message = [expected, holds](const std::string& text) {
    double value = 0;
    return parse(text, value) == std::errc() && holds(value) ? "" : cat("expected ", expected, ", got ", text);
  };
  return std::make_shared<CLI::Validator>(message, "");
}

// Refuses numbers that T cannot hold exactly as written.
template <class T>
CLI::Validator plain_number() {
  return {[](const std::string& text) -> std::string {
            T value{};
            const std::errc error = parse(text, value);
            if constexpr (std::is_integral_v<T>) {
              const bool octal = text.size() > 1 && text.find_first_not_of("+-") != text.npos &&
                                 text[text.find_first_not_of("+-")] == '0';
              if (error == std::errc::result_out_of_range)
                return cat("expected a whole number from ", std::numeric_limits<T>::min(), " to ",
                           std::numeric_limits<T>::max(), ", got ", text);
              if (error != std::errc() || octal) return cat("expected a whole number, got ", text);
            } else {
              if (error != std::errc() || !std::isfinite(value)) return cat("expected a finite number, got ", text);
            }
            return "";
          },
          ""};
}

constexpr const char* kNotEmpty = "not empty";

// An empty text often comes from an unset variable of a shell, and would otherwise mean the default.
CLI::Validator not_empty(const std::string& name, const std::string& help) {
  const auto message = [name, help](const std::string& text) {
    return text.empty() ? cat("expected a value, got an empty text; ", name, ": ", help) : "";
  };
  return {message, "", kNotEmpty};
}

}  // namespace

Check in_range(int64_t least, int64_t most) {
  return condition(cat(least, " to ", most), [=](double v) { return v >= double(least) && v <= double(most); });
}
Check in_range(double least, double most) {
  return condition(cat(least, " to ", most), [=](double v) { return v >= least && v <= most; });
}
Check positive() {
  return condition("a number above 0", [](double v) { return v > 0; });
}
Check non_negative() {
  return condition("0 or more", [](double v) { return v >= 0; });
}
Check one_of(std::vector<std::string> words) { return std::make_shared<CLI::IsMember>(std::move(words)); }

Option Option::required() { return Option(option_->required()); }
Option Option::show_default() { return Option(option_->capture_default_str()); }
Option Option::one_value() { return Option(option_->allow_extra_args(false)); }
Option Option::values(int count) { return Option(option_->expected(count)); }
Option Option::check(const Check& check) { return Option(option_->check(*check)); }
Option Option::may_be_empty() {
  option_->get_validator(kNotEmpty)->active(false);
  return *this;
}
Option Option::size_in_bytes() {
  const CLI::AsSizeValue size(true);
  const auto to_bytes = [size](std::string& text) -> std::string {
    const std::string given = text;
    try {  // AsSizeValue reads -5 as 2^64 - 5 and 010 as 8
      if (given.find_first_of("123456789") == 0 && size(text).empty()) return "";
    } catch (const CLI::ValidationError&) {  // NOLINT(bugprone-empty-catch): the message below says what is expected
    }
    return cat("expected a whole number of bytes above 0, with or without a unit (5GB, 500MiB), got ", given);
  };
  return Option(option_->transform(CLI::Validator(to_bytes, size.get_description())));
}
Option Option::needs(const Option& other) { return Option(option_->needs(other.option_)); }
Option Option::needs(const std::string& flag) { return Option(option_->needs(flag)); }
Option Option::group(const std::string& heading) { return Option(option_->group(heading)); }
Option Option::excludes(const Option& other) { return Option(option_->excludes(other.option_)); }

Verb Verb::add_verb(const std::string& name, const std::string& help) { return Verb(app_->add_subcommand(name, help)); }

template <class T>
Option Verb::add_option(const std::string& name, T& value, const std::string& help) {
  CLI::Option* option = app_->add_option(name, value, help);
  if constexpr (std::is_arithmetic_v<T>) option->check(plain_number<T>());
  if constexpr (std::is_same_v<T, std::vector<double>>) option->check(plain_number<double>());
  if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, std::vector<std::string>>)
    option->check(not_empty(name, help));
  return Option(option);
}
template Option Verb::add_option(const std::string&, std::string&, const std::string&);
template Option Verb::add_option(const std::string&, int&, const std::string&);
template Option Verb::add_option(const std::string&, int64_t&, const std::string&);
template Option Verb::add_option(const std::string&, uint64_t&, const std::string&);
template Option Verb::add_option(const std::string&, float&, const std::string&);
template Option Verb::add_option(const std::string&, double&, const std::string&);
template Option Verb::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Verb::add_option(const std::string&, std::vector<double>&, const std::string&);

Option Verb::add_flag(const std::string& name, bool& value, const std::string& help) {
  return Option(app_->add_flag(name, value, help));
}

void Verb::footer(const std::string& text) { app_->footer(text); }
void Verb::require_verb() { app_->require_subcommand(1); }
void Verb::on_chosen(std::function<void()> fn) { app_->callback(std::move(fn)); }
void Verb::take_rest() { app_->prefix_command(); }
std::vector<std::string> Verb::rest() const { return app_->remaining(); }

void usage_error(const std::string& verb, const std::string& message) { throw CLI::ValidationError(verb, message); }

}  // namespace athanor
