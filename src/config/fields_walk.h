// The generic walks over tables of options: reading, writing, describing, JSON schema.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "config/fields.h"

namespace athanor {

template <class... F>
struct Overload : F... {
  using F::operator()...;
};
template <class... F>
Overload(F...) -> Overload<F...>;

template <class T>
bool answers_to(const Field<T>& field, std::string_view key) {
  if (field.key == key) return true;
  for (auto name : field.aliases) {
    if (name == key) return true;
  }
  for (auto name : field.synonyms) {
    if (name == key) return true;
  }
  return false;
}

template <class T>
const Field<T>* find_field(const std::vector<Field<T>>& fields, std::string_view key) {
  for (const auto& field : fields) {
    if (answers_to(field, key)) return &field;
  }
  return nullptr;
}

template <class T>
std::vector<std::string_view> known_keys(const std::vector<Field<T>>& fields) {
  std::vector<std::string_view> keys;
  for (const auto& field : fields) {
    keys.push_back(field.key);
    keys.insert(keys.end(), field.aliases.begin(), field.aliases.end());
    keys.insert(keys.end(), field.synonyms.begin(), field.synonyms.end());
  }
  return keys;
}

template <class T>
void read_field(const Field<T>& field, const Json& value, const std::string& path, T& out, Notices notices) {
  std::visit(Overload{
                 [&](bool T::*m) { out.*m = read_bool(value, path); },
                 [&](int64_t T::*m) { out.*m = read_integer(value, path, field.range, field.word); },
                 [&](double T::*m) { out.*m = read_real(value, path, field.range, field.word); },
                 [&](std::string T::*m) { out.*m = field.is_path ? read_path(value, path) : read_string(value, path); },
                 [&](const Choice<T>& c) { c.set(out, read_choice(value, path, c.names)); },
                 [&](const Custom<T>& c) { c.read(out, value, path, notices); },
             },
             field.member);
}

// Reads an object into `out`; members without a key keep their value. Every key must match exactly one row.
template <class T>
void read_fields(const std::vector<Field<T>>& fields, const Json& object, const std::string& prefix, T& out,
                 Notices notices) {
  require_object(object, prefix);
  std::vector<std::string_view> given(fields.size());
  for (size_t i = 0; i < object.keys.size(); ++i) {
    const std::string& key = object.keys[i];
    const Field<T>* field = find_field(fields, key);
    if (!field && skips_removed_key(object.items[i], prefix, key, notices)) continue;
    if (!field) unknown_key(object.items[i], prefix, key, known_keys(fields));
    std::string_view& before = given[size_t(field - fields.data())];
    const std::string path = dotted(prefix, key);
    if (!before.empty()) {
      throw Error(cat(object.items[i].where, ": ", path, " and ", before, " are one option; keep ", field->key),
                  Exit::usage);
    }
    before = key;
    read_field(*field, object.items[i], path, out, notices);
    const bool is_alias = std::find(field->aliases.begin(), field->aliases.end(), key) != field->aliases.end();
    if (is_alias && notices) {
      notices->push_back(cat(object.items[i].where, ": ", path, " is read as ", dotted(prefix, field->key)));
    }
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    if (!fields[i].is_required || !given[i].empty()) continue;
    throw Error(cat(object.where, ": ", dotted(prefix, fields[i].key), " is required (", fields[i].help, ")"),
                Exit::usage);
  }
}

template <class T>
Json write_field(const Field<T>& field, const T& in) {
  return std::visit(Overload{
                        [&](bool T::*m) { return Json::of(in.*m); },
                        [&](int64_t T::*m) {
                          const Word& word = field.word;
                          if (word.text.empty() || in.*m != word.value) return Json::of(in.*m);
                          return word.text == "null" ? Json() : Json::of(word.text);
                        },
                        [&](double T::*m) { return Json::of(in.*m); },
                        [&](std::string T::*m) { return Json::of(std::string_view(in.*m)); },
                        [&](const Choice<T>& c) { return Json::of(c.names[size_t(c.get(in))]); },
                        [&](const Custom<T>& c) { return c.write(in); },
                    },
                    field.member);
}

// Every option with its value; developer options only where they are not at their defaults.
template <class T>
Json write_fields(const std::vector<Field<T>>& fields, const T& in) {
  const T blank{};
  Json object = Json::object();
  for (const auto& field : fields) {
    Json value = write_field(field, in);
    if (field.is_developer && to_line(value) == to_line(write_field(field, blank))) continue;
    object.set(std::string(field.key), std::move(value));
  }
  return object;
}

// JSON schema of one number, or of the word or null that stands for one.
Json number_schema(std::string_view type, const Range&, const Word&);
Json choice_schema(std::span<const std::string_view> names);

template <class T>
FieldDoc describe(const Field<T>& field, const T& blank = T{}) {
  FieldDoc doc{.key = std::string(field.key),
               .type = "",
               .default_value = to_line(write_field(field, blank)),
               .range = to_text(field.range),
               .unit = std::string(field.unit),
               .rule = std::string(name_of(field.rule)),
               .help = std::string(field.help),
               .group = std::string(field.group),
               .aliases = {field.aliases.begin(), field.aliases.end()},
               .required = field.is_required,
               .schema = Json::object()};
  doc.aliases.insert(doc.aliases.end(), field.synonyms.begin(), field.synonyms.end());
  if (!field.word_for_default.empty()) doc.default_value = field.word_for_default;
  std::visit(
      Overload{
          [&](bool T::*) { doc.type = "true or false", doc.schema.set("type", Json::of("boolean")); },
          [&](int64_t T::*) { doc.type = "integer", doc.schema = number_schema("integer", field.range, field.word); },
          [&](double T::*) { doc.type = "number", doc.schema = number_schema("number", field.range, field.word); },
          [&](std::string T::*) { doc.type = "string", doc.schema.set("type", Json::of("string")); },
          [&](const Choice<T>& c) { doc.type = joined(c.names, ", "), doc.schema = choice_schema(c.names); },
          [&](const Custom<T>& c) { doc.type = c.type, doc.schema = c.schema(); },
      },
      field.member);
  if (!field.word.text.empty()) doc.type += cat(" or ", field.word.text);
  return doc;
}

// The schema of an object with exactly these keys. A row that has other names cannot be required by schema alone.
template <class T>
Json schema_of(const std::vector<Field<T>>& fields) {
  Json properties = Json::object(), required = Json::array(), object = Json::object();
  for (const auto& field : fields) {
    if (field.is_developer) continue;
    FieldDoc doc = describe(field);
    doc.schema.set("description", Json::of(std::string_view(doc.help)));
    for (const auto& name : doc.aliases) {
      Json other = doc.schema;
      other.set("description", Json::of(cat("the same as ", doc.key)));
      properties.set(name, std::move(other));
    }
    if (doc.required && doc.aliases.empty()) required.items.push_back(Json::of(field.key));
    if (!doc.required && field.word_for_default.empty()) doc.schema.set("default", write_field(field, T{}));
    properties.set(doc.key, std::move(doc.schema));
  }
  object.set("type", Json::of("object"));
  object.set("properties", std::move(properties));
  if (!required.items.empty()) object.set("required", std::move(required));
  object.set("additionalProperties", Json::of(false));
  return object;
}

// A text as a template argument.
template <size_t N>
struct FixedText {
  char text[N];
  constexpr FixedText(const char (&from)[N]) { std::copy_n(from, N, text); }  // NOLINT(google-explicit-constructor)
};

// A member of Config that is a list of objects, each with the fields of fields_of(). type: its name in help and errors.
template <auto M, auto fields_of, FixedText type>
Custom<Config> list_of_objects() {
  return {[](Config& out, const Json& value, const std::string& path, Notices notices) {
            if (!value.is(Json::Kind::array)) bad_value(value, path, cat("a ", type.text));
            (out.*M).clear();
            for (size_t i = 0; i < value.items.size(); ++i)
              read_fields(fields_of(), value.items[i], cat(path, "[", i, "]"), (out.*M).emplace_back(), notices);
          },
          [](const Config& in) {
            Json list = Json::array();
            for (const auto& each : in.*M) list.items.push_back(write_fields(fields_of(), each));
            return list;
          },
          [] {
            Json list = Json::object();
            list.set("type", Json::of("array"));
            list.set("items", schema_of(fields_of()));
            return list;
          },
          type.text};
}

}  // namespace athanor
