#include "command/options.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace athanor {

Check in_range(int64_t least, int64_t most) { return std::make_shared<CLI::Range>(least, most); }
Check in_range(double least, double most) { return std::make_shared<CLI::Range>(least, most); }
Check positive() { return std::make_shared<CLI::Validator>(CLI::PositiveNumber); }
Check non_negative() { return std::make_shared<CLI::Validator>(CLI::NonNegativeNumber); }
Check one_of(std::vector<std::string> words) { return std::make_shared<CLI::IsMember>(std::move(words)); }

Option Option::required() { return Option(option_->required()); }
Option Option::show_default() { return Option(option_->capture_default_str()); }
Option Option::one_value() { return Option(option_->allow_extra_args(false)); }
Option Option::values(int count) { return Option(option_->expected(count)); }
Option Option::check(const Check& check) { return Option(option_->check(*check)); }
Option Option::size_in_bytes() { return Option(option_->transform(CLI::AsSizeValue(true))); }
Option Option::needs(Option other) { return Option(option_->needs(other.option_)); }
Option Option::needs(const std::string& flag) { return Option(option_->needs(flag)); }
Option Option::group(const std::string& heading) { return Option(option_->group(heading)); }
Option Option::excludes(Option other) { return Option(option_->excludes(other.option_)); }

Verb Verb::add_verb(const std::string& name, const std::string& help) { return Verb(app_->add_subcommand(name, help)); }

template <class T>
Option Verb::add_option(const std::string& name, T& value, const std::string& help) {
  return Option(app_->add_option(name, value, help));
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
