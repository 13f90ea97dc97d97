// Options whose value is a list of names or name patterns.
#pragma once
#include "config/fields.h"

namespace athanor {

using Names = std::vector<std::string>;

template <Names Config::*M>
void read_names(Config& out, const Json& value, const std::string& path, Notices) {
  if (!value.is(Json::Kind::array)) bad_value(value, path, "a list of names");
  (out.*M).clear();
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (!value.items[i].is(Json::Kind::string))
      bad_value(value.items[i], cat(path, "[", i, "]"), "a name, or a pattern of names");
    (out.*M).push_back(value.items[i].text);
  }
}

template <Names Config::*M>
Json write_names(const Config& in) {
  Json list = Json::array();
  for (const std::string& name : in.*M) list.items.push_back(Json::of(name));
  return list;
}

inline Json names_schema() { return schema_from(R"({"type": "array", "items": {"type": "string"}})"); }

template <Names Config::*M>
Custom<Config> names(std::string_view type) {
  return {read_names<M>, write_names<M>, names_schema, type};
}

}  // namespace athanor
