// A pass over the text with a handler that stores nothing but the keys of the open objects.
#include "checkpoint/strict_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/printable.h"

namespace athanor {
namespace {

class StrictHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  StrictHandler(const std::string& where, int max_depth) : where_(where), max_depth_(max_depth) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) throw Error(cat(where_, ": the key ", printable(name), " appears twice"));
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& e) override {
    throw Error(cat(where_, ": not valid JSON at byte ", position, ": ", json_problem(e.what())));
  }

 private:
  bool open() {
    if (int(keys_.size()) >= max_depth_) throw Error(cat(where_, ": JSON nested deeper than ", max_depth_, " levels"));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& where_;
  int max_depth_;
  std::vector<std::set<std::string>> keys_;  // keys of every open object, outermost first; empty for arrays
};

}  // namespace

void refuse_nul_bytes(std::string_view text, const std::string& where) {
  const size_t at = text.find('\0');
  if (at != text.npos) throw Error(cat(where, ": not valid JSON at byte ", at, ": a zero byte"));
}

void require_strict_json(std::string_view text, const std::string& where, int max_depth) {
  refuse_nul_bytes(text, where);
  StrictHandler handler(where, max_depth);
  nlohmann::json::sax_parse(text, &handler);
}

}  // namespace athanor
