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

// The other keys of an option; all of them are outside of sections.
template <class T>
std::vector<std::string_view> other_keys(const Field<T>& field) {
  std::vector<std::string_view> keys = field.aliases;
  keys.insert(keys.end(), field.synonyms.begin(), field.synonyms.end());
  keys.insert(keys.end(), field.former.begin(), field.former.end());
  return keys;
}

// True if `key` in the object of the section ("": in no section) is the option.
template <class T>
bool answers_to(const Field<T>& field, std::string_view key, std::string_view section) {
  if (section_of(field.key) == section && name_in_section(field.key) == key) return true;
  return section.empty() && std::ranges::count(other_keys(field), key) > 0;
}

template <class T>
const Field<T>* find_field(const std::vector<Field<T>>& fields, std::string_view key, std::string_view section = "") {
  for (const auto& field : fields) {
    if (answers_to(field, key, section)) return &field;
  }
  return nullptr;
}

template <class T>
bool is_section(const std::vector<Field<T>>& fields, std::string_view key) {
  return !key.empty() && std::ranges::any_of(fields, [&](const Field<T>& f) { return section_of(f.key) == key; });
}

// The key that was most likely meant by an unknown one: the same name elsewhere, else the nearest name in the object.
template <class T>
std::string intended_key(const std::vector<Field<T>>& fields, std::string_view key, std::string_view section) {
  std::vector<std::string_view> same, here;
  for (const auto& field : fields) {
    const auto others = other_keys(field);
    const std::string_view name = name_in_section(field.key), own = section_of(field.key);
    if (name == key || std::ranges::count(others, key) > 0) same.push_back(field.key);
    if (own == section) here.push_back(name);
    if (own == section || section.empty()) here.insert(here.end(), others.begin(), others.end());
    if (section.empty() && !own.empty()) here.push_back(own);
  }
  if (!same.empty()) return joined(same, "\" or \"");
  const std::string near = nearest(key, here);
  const Field<T>* field = find_field(fields, near, section);
  if (!field) field = find_field(fields, near);
  return near.empty() || !field ? near : std::string(field->key);
}

// The object that has the key's option: `root` or its section; null if there is none.
template <class J>
J* holder_of(J& root, std::string_view key) {
  const std::string_view section = section_of(key);
  return section.empty() ? &root : root.find(section);
}
// Sets an option in `root` or its section, which is created if it is missing.
inline void set_option(Json& root, std::string_view key, Json value) {
  Json* holder = holder_of(root, key);
  if (!holder) holder = &root.set(std::string(section_of(key)), Json::object());
  holder->set(std::string(name_in_section(key)), std::move(value));
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

// Reads an object, and the objects of its sections.
template <class T>
class FieldReader {
 public:
  FieldReader(const std::vector<Field<T>>& fields, const std::string& prefix, T& out, Notices notices)
      : fields_(fields), prefix_(prefix), out_(out), notices_(notices), given_(fields.size()) {}

  void read(const Json& object, const std::string& section = "") {
    const std::string path = section.empty() ? prefix_ : dotted(prefix_, section);
    for (size_t i = 0; i < object.keys.size(); ++i) {
      const std::string& key = object.keys[i];
      const Json& value = object.items[i];
      const Field<T>* field = find_field(fields_, key, section);
      if (field) {
        read_option(*field, value, key, dotted(path, key));
      } else if (section.empty() && is_section(fields_, key)) {
        require_section(value, key);
        read(value, key);
      } else if (!skips_removed_key(value, path, key, notices_)) {
        unknown_key(value, path, key, intended_key(fields_, key, section));
      }
    }
  }

  void check_required(const std::string& where) const {
    for (size_t i = 0; i < fields_.size(); ++i) {
      if (!fields_[i].is_required || !given_[i].empty()) continue;
      throw Error(cat(where, ": ", dotted(prefix_, fields_[i].key), " is required (", fields_[i].help, ")"),
                  Exit::usage);
    }
  }

 private:
  void read_option(const Field<T>& field, const Json& value, const std::string& key, const std::string& path) {
    std::string& before = given_[size_t(&field - fields_.data())];
    if (!before.empty())
      throw Error(cat(value.where, ": ", path, " and ", before, " are one option; keep ", field.key), Exit::usage);
    before = prefix_.empty() ? path : key;
    read_field(field, value, path, out_, notices_);
    const bool is_alias = std::ranges::count(field.aliases, key) > 0 || std::ranges::count(field.former, key) > 0;
    if (is_alias && path != field.key && notices_)
      notices_->push_back(cat(value.where, ": ", path, " is read as ", dotted(prefix_, field.key)));
  }

  void require_section(const Json& value, const std::string& section) const {
    if (value.is(Json::Kind::object)) return;
    const auto first = std::ranges::find_if(fields_, [&](const Field<T>& f) { return section_of(f.key) == section; });
    Json example = Json::object();
    example.set(std::string(name_in_section(first->key)), write_field(*first, T{}));
    bad_value(value, dotted(prefix_, section), cat("an object such as ", to_line(example)));
  }

  const std::vector<Field<T>>& fields_;
  const std::string& prefix_;
  T& out_;
  Notices notices_;
  std::vector<std::string> given_;  // the path or key that gave each field; "": none
};

// Reads an object into `out`; members without a key keep their value. Every key must match exactly one row.
template <class T>
void read_fields(const std::vector<Field<T>>& fields, const Json& object, const std::string& prefix, T& out,
                 Notices notices) {
  require_object(object, prefix);
  FieldReader<T> reader(fields, prefix, out, notices);
  reader.read(object);
  reader.check_required(object.where);
}

// Every option with its value; developer options only where they are not at their defaults.
template <class T>
Json write_fields(const std::vector<Field<T>>& fields, const T& in) {
  const T blank{};
  Json object = Json::object();
  for (const auto& field : fields) {
    Json value = write_field(field, in);
    if (field.is_developer && to_line(value) == to_line(write_field(field, blank))) continue;
    set_option(object, field.key, std::move(value));
  }
  return object;
}

// JSON schema of one number, or of the word or null that replaces one.
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

// The rows of the section, with their names in it.
template <class T>
std::vector<Field<T>> rows_of_section(const std::vector<Field<T>>& fields, std::string_view section) {
  std::vector<Field<T>> rows;
  for (Field<T> field : fields) {
    if (section_of(field.key) != section) continue;
    field.key = name_in_section(field.key), field.aliases = {};
    rows.push_back(std::move(field));
  }
  return rows;
}

// The schema of an object with exactly these keys. A row that has other names cannot be required by schema alone.
template <class T>
Json schema_of(const std::vector<Field<T>>& fields, std::span<const Section> sections = {}) {
  Json properties = Json::object(), required = Json::array(), object = Json::object();
  for (const Section& section : sections) {
    Json inner = schema_of(rows_of_section(fields, section.key));
    if (inner.find("properties")->keys.empty()) continue;  // keys of another group, or developer options alone
    inner.set("title", Json::of(section.title));
    inner.set("description", Json::of(section.help));
    properties.set(std::string(section.key), std::move(inner));
  }
  for (const auto& field : fields) {
    if (field.is_developer) continue;
    FieldDoc doc = describe(field);
    doc.schema.set("description", Json::of(std::string_view(doc.help)));
    for (const auto& name : doc.aliases) {
      Json other = doc.schema;
      other.set("description", Json::of(cat("the same as ", doc.key)));
      properties.set(name, std::move(other));
    }
    if (!section_of(field.key).empty()) continue;
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
