// Recursive descent through the pattern: alternatives, sequences, atoms with quantifiers, sets. Writes only syntax that
// is known to mean the same in PCRE2.
#include "base/format.h"
#include "tokenizer/regex.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace athanor {
namespace {

constexpr int kMostGroups = 100;        // nesting depth
constexpr int64_t kMostRepeats = 1000;  // maximum n, m in {n,m}
constexpr const char* kAnyCharacter = "(?s:.)";
constexpr const char* kNoLineEnd = "[^\\x{a}]";
// Contents of sets. Word characters are those of Unicode's annex 18; white space is White_Space.
constexpr const char* kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Outside of sets, Oniguruma uses a table for characters below 256, in which superscripts and fractions are word
// characters.
constexpr const char* kMoreWord = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr const char* kRustWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}";
constexpr const char* kWhiteSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr const char* kHexDigit = "0-9a-fA-F";

constexpr std::string_view kCategories[] = {
    "L",  "LU", "LL", "LT", "LM", "LO", "M",  "MN", "MC", "ME", "N",  "ND", "NL", "NO", "P",  "PC", "PD", "PS", "PE",
    "PI", "PF", "PO", "S",  "SM", "SC", "SK", "SO", "Z",  "ZS", "ZL", "ZP", "C",  "CC", "CF", "CN", "CO", "CS"};
// Other property names, as PCRE2 names them or as sets.
constexpr std::pair<std::string_view, std::string_view> kProperties[] = {
    {"LETTER", "\\p{L}"},
    {"LOWERCASELETTER", "\\p{Ll}"},
    {"UPPERCASELETTER", "\\p{Lu}"},
    {"TITLECASELETTER", "\\p{Lt}"},
    {"MODIFIERLETTER", "\\p{Lm}"},
    {"OTHERLETTER", "\\p{Lo}"},
    {"MARK", "\\p{M}"},
    {"NUMBER", "\\p{N}"},
    {"DECIMALNUMBER", "\\p{Nd}"},
    {"LETTERNUMBER", "\\p{Nl}"},
    {"OTHERNUMBER", "\\p{No}"},
    {"PUNCTUATION", "\\p{P}"},
    {"SYMBOL", "\\p{S}"},
    {"SEPARATOR", "\\p{Z}"},
    {"OTHER", "\\p{C}"},
    {"ALPHABETIC", "\\p{Alphabetic}"},
    {"ALPHA", "\\p{Alphabetic}"},
    {"UPPERCASE", "\\p{Uppercase}"},
    {"UPPER", "\\p{Uppercase}"},
    {"LOWERCASE", "\\p{Lowercase}"},
    {"LOWER", "\\p{Lowercase}"},
    {"IDEOGRAPHIC", "\\p{Ideographic}"},
    {"EMOJI", "\\p{Emoji}"},
    {"EXTENDEDPICTOGRAPHIC", "\\p{Extended_Pictographic}"},
    {"DIGIT", "\\p{Nd}"},
    {"ALNUM", "\\p{Alphabetic}\\p{Nd}"},
    {"XDIGIT", kHexDigit},
    {"SPACE", kWhiteSpace},
    {"WHITESPACE", kWhiteSpace},
};

std::string code_text(uint32_t code) { return format_text("\\x{%x}", unsigned(code)); }

// A pattern that matches one character: the content of a set, or alternatives where a set cannot express it.
struct OneOf {
  std::string inside;                // text after "[" or "[^"
  std::vector<std::string> further;  // alternatives to `inside`, each matching one character

  void add(const OneOf& other) {
    inside += other.inside;
    further.insert(further.end(), other.further.begin(), other.further.end());
  }
  std::string text() const {
    if (further.empty()) return "[" + inside + "]";
    std::string all = "(?:";
    if (!inside.empty()) all += "[" + inside + "]|";
    for (size_t i = 0; i < further.size(); ++i) all += (i > 0 ? "|" : "") + further[i];
    return all + ")";
  }
  std::string negated() const {
    if (further.empty()) return inside.empty() ? kAnyCharacter : "[^" + inside + "]";
    return cat("(?:(?!", text(), ")", kAnyCharacter, ")");
  }
};
OneOf none_of(const OneOf& set) { return {.inside = "", .further = {set.negated()}}; }

class Translator {
 public:
  Translator(std::string_view pattern, RegexDialect dialect, const NewerCharacters& newer)
      : pattern_(pattern), dialect_(dialect), newer_(newer) {}

  std::string all() {
    std::string out = alternatives({});
    if (at_ < pattern_.size()) refuse("\")\" without \"(\"");
    return out;
  }

 private:
  struct Mode {
    bool any_case = false, dot_is_all = false, many_lines = false;
  };

  template <class... A>
  [[noreturn]] void refuse(const A&... what) const {
    throw Error(
        cat("split pattern ", pattern_, ": ", what..., " at character ", at_,
            " is not supported: it would split texts differently from the program that this pattern was written for"),
        Exit::usage);
  }
  bool onig() const { return dialect_ == RegexDialect::oniguruma; }
  bool ended() const { return at_ >= pattern_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t character() {
    if (ended()) refuse("an end of the pattern");
    const Char c = char_at(pattern_, at_);
    if (c.code & kInvalidByte) refuse("a byte that is no UTF-8");
    at_ += c.bytes;
    return c.code;
  }
  uint32_t hex(size_t least, size_t most) {
    const size_t begin = at_;
    while (at_ < begin + most && std::isxdigit(uint8_t(peek()))) ++at_;
    uint32_t code = 0;
    std::from_chars(pattern_.data() + begin, pattern_.data() + at_, code, 16);
    if (at_ < begin + least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) refuse("a number of a character");
    return code;
  }

  // before: the literal character in front of a group without alternatives; the group's first character may form a
  // case-insensitive pair with it.
  std::string alternatives(Mode mode, uint32_t before = 0) {
    if (++depth_ > kMostGroups) refuse("nesting deeper than ", kMostGroups, " groups");
    options(mode);
    std::string out;
    bool several = false;
    for (;; several = true) {
      literal_ = several ? 0 : before;
      out += sequence(mode);
      if (!take("|")) break;
      out += "|";
    }
    if (several) literal_ = 0;
    --depth_;
    return out;
  }

  // Parses (?i) and similar options at the start of the pattern or of a group, where all engines agree on their scope.
  void options(Mode& mode) {
    while (peek() == '(' && peek(1) == '?' && (std::isalpha(uint8_t(peek(2))) || peek(2) == '-')) {
      const size_t before = at_;
      at_ += 2;
      const Mode changed = flags(mode);
      if (!take(")")) {
        at_ = before;
        return;
      }
      mode = changed;
    }
  }
  Mode flags(Mode mode) {
    for (bool on = true;; ++at_) {
      const char c = peek();
      if (c == '-')
        on = false;
      else if (c == 'i')
        mode.any_case = on;
      else if (c == (onig() ? 'm' : 's'))
        mode.dot_is_all = on;
      else if (c == 'm')
        mode.many_lines = on;
      else if (c == ':' || c == ')')
        return mode;
      else
        refuse("the option \"", std::string(1, c), "\"");
    }
  }

  std::string sequence(Mode mode) {
    std::string out;
    while (!ended() && peek() != '|' && peek() != ')') out += quantified(atom(mode));
    return out;
  }

  std::string atom(Mode mode) {
    const uint32_t before = std::exchange(literal_, 0);
    const char c = peek();
    if (c == '(') return group(mode, before);
    if (c == '[') {
      if (mode.any_case) return any_case_set();
      ++at_;
      return set().text();
    }
    if (take(".")) return mode.dot_is_all ? kAnyCharacter : kNoLineEnd;
    if (take("^")) return onig() || mode.many_lines ? "(?m:^)" : "\\A";
    if (take("$")) return onig() || mode.many_lines ? "(?m:$)" : "\\z";
    if (c == '*' || c == '+' || c == '?') refuse("a quantifier without anything before it");
    if (c == '\\') return escape(mode, before);
    if (c == '{' && !onig()) refuse("\"{\"");
    return literal(character(), mode, before);
  }

  // Refuses a case-insensitive pair of literals `before`, `code` that can fold to a single character (ss, fi).
  std::string literal(uint32_t code, Mode mode, uint32_t before) {
    if (!mode.any_case) return code_text(code);
    if (code >= 0x80) refuse("a character beyond ASCII without regard to case");
    const auto low = [](uint32_t c) { return c < 0x80 ? char(std::tolower(int(c))) : '\0'; };
    for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl"})
      if (low(before) == pair[0] && low(code) == pair[1]) refuse("\"", pair, "\" without regard to case");
    literal_ = code;
    return cat("(?i:", code_text(code), ")");
  }

  // Oniguruma joins the characters of (?:s)s into one text, but not those of other kinds of groups.
  std::string group(Mode mode, uint32_t before) {
    take("(");
    std::string open = "(?:";
    bool joined = false;
    if (take("?")) {
      if (take(":")) {
        joined = true;
      } else if (take("=") || take("!") || take(">")) {
        open = cat("(?", pattern_[at_ - 1]);
      } else if (take("<=") || take("<!")) {
        open = cat("(?<", pattern_[at_ - 1]);
      } else if (take("<") || (!onig() && take("P<"))) {  // a group name, which matters only for backreferences
        while (std::isalnum(uint8_t(peek())) || peek() == '_') ++at_;
        if (!take(">")) refuse("a group of this kind");
      } else {
        mode = flags(mode);
        if (!take(":")) refuse("an option in the middle of a group");
      }
    }
    const std::string inner = alternatives(mode, joined ? before : 0);
    if (!take(")")) refuse("\"(\" without \")\"");
    if (!joined) literal_ = 0;
    return open + inner + ")";
  }

  struct Interval {
    int64_t low = 0, high = -1;  // high: negative: unbounded
    bool fixed = false;          // written as {n}
  };
  // Parses {n}, {n,}, {n,m} or {,m} at the brace. Returns false and consumes nothing if the brace is a literal
  // character.
  bool interval(Interval& out) {
    const size_t before = at_;
    const auto number = [&](int64_t& value) {
      const size_t begin = at_;
      while (std::isdigit(uint8_t(peek()))) ++at_;
      return begin < at_ && std::from_chars(pattern_.data() + begin, pattern_.data() + at_, value).ec == std::errc();
    };
    take("{");
    const bool has_low = number(out.low), comma = take(","), has_high = comma && number(out.high);
    if (!take("}") || (!has_low && !has_high)) {
      at_ = before;
      return false;
    }
    out.fixed = !comma;
    if (out.fixed) out.high = out.low;
    if (!has_low && !onig()) refuse("{,", out.high, "}");
    if (out.low > kMostRepeats || out.high > kMostRepeats) refuse("more than ", kMostRepeats, " repetitions");
    if (out.high >= 0 && out.high < out.low) refuse("an interval that ends before it begins");
    return true;
  }

  std::string quantified(std::string one) {
    for (bool again = false;; again = true) {
      Interval range;
      const bool simple = peek() == '*' || peek() == '+' || peek() == '?';
      if (!simple && (peek() != '{' || !interval(range))) return one;
      if (again && !onig()) refuse("a quantifier behind a quantifier");
      std::string how(1, simple ? pattern_[at_++] : '\0');
      if (!simple) how = cat("{", range.low, ",", range.high < 0 ? "" : cat(range.high), "}");
      literal_ = 0;
      one = cat("(?:", one, ")", how);
      // In Oniguruma, + after {n,m} is another quantifier, and so is ? after {n}.
      const bool lazy = peek() == '?' && (simple || !onig() || !range.fixed);
      const bool possessive = peek() == '+' && (simple || !onig());
      if (lazy || possessive) one += pattern_[at_++];
    }
  }

  std::string escape(Mode mode, uint32_t before) {
    OneOf set;
    if (escaped_set(set)) {
      if (mode.any_case) refuse("a class of characters without regard to case");
      return set.text();
    }
    const char c = peek(1);
    const std::string word = "[" + word_set().inside + "]";
    switch (c) {
      case 'A':
      case 'z':
        at_ += 2;
        return std::string("\\") + c;
      case 'Z':
        if (!onig()) break;
        at_ += 2;
        return "(?=\\x{a}?\\z)";
      case 'b':
        at_ += 2;
        return cat("(?:(?<=", word, ")(?!", word, ")|(?<!", word, ")(?=", word, "))");
      case 'B':
        at_ += 2;
        return cat("(?:(?<=", word, ")(?=", word, ")|(?<!", word, ")(?!", word, "))");
      case 'R':
        if (!onig()) break;
        at_ += 2;
        return "(?>\\x{d}\\x{a}|[\\x{a}-\\x{d}\\x{85}\\x{2028}\\x{2029}])";
      case 'N':
      case 'O':
        if (!onig()) break;
        at_ += 2;
        return c == 'N' ? kNoLineEnd : kAnyCharacter;
      default:
        break;
    }
    return literal(escaped_character(), mode, before);
  }

  OneOf word_set() const {
    return {.inside = cat(onig() ? kWord : kRustWord, newer_.letters(), newer_.marks(), newer_.digit,
                          onig() && !in_set_ ? kMoreWord : ""),
            .further = {}};
  }
  std::string newer_of(std::string_view text) const {  // newer characters for an entry of kProperties
    if (text == "\\p{Uppercase}") return newer_.upper;
    if (text == "\\p{Lowercase}") return newer_.lower;
    if (text == "\\p{Alphabetic}") return newer_.letters();
    if (text == "\\p{Alphabetic}\\p{Nd}") return newer_.letters() + newer_.digit;
    for (const std::string_view category : {"L", "LU", "LL", "LM", "LO", "M", "N", "ND", "NO"})
      if (text == of_category(category)) return newer_in(category);
    return "";
  }
  // Characters to add to a category of PCRE2.
  std::string newer_in(std::string_view category) const {
    if (category == "L") return newer_.letters();
    if (category == "LU") return newer_.upper;
    if (category == "LL") return newer_.lower;
    if (category == "LM") return newer_.modifier;
    if (category == "LO") return newer_.other_letter;
    if (category == "M") return newer_.marks();
    if (category == "MN") return newer_.nonspacing_mark;
    if (category == "MC") return newer_.spacing_mark;
    if (category == "N") return newer_.digit + newer_.other_number;
    return category == "ND" ? newer_.digit : category == "NO" ? newer_.other_number : "";
  }
  // The category as PCRE2 names it.
  static std::string of_category(std::string_view name) {
    std::string category(name);
    if (category.size() == 2) category[1] = char(std::tolower(uint8_t(category[1])));
    return cat("\\p{", category, "}");
  }

  // Parses \d, \w, \s, \h, \p{...} and their complements, inside or outside of a set.
  bool escaped_set(OneOf& out) {
    const char c = peek(1);
    const auto set = [&](const OneOf& found, bool opposite) {
      at_ += 2;
      out = opposite ? none_of(found) : found;
      return true;
    };
    if (c == 'd' || c == 'D') return set({.inside = "\\p{Nd}" + newer_in("ND"), .further = {}}, c == 'D');
    if (c == 'w' || c == 'W') return set(word_set(), c == 'W');
    if (c == 's' || c == 'S') return set({.inside = kWhiteSpace, .further = {}}, c == 'S');
    if (c == 'h' || c == 'H') return set({.inside = kHexDigit, .further = {}}, c == 'H');
    if (c == 'p' || c == 'P') return property(c == 'P', out);
    return false;
  }

  bool property(bool opposite, OneOf& out) {
    const size_t before = at_;
    at_ += 2;
    std::string name;
    if (take("{")) {
      if (take("^")) opposite = !opposite;
      const size_t end = pattern_.find('}', at_);
      if (end == pattern_.npos) refuse("\"{\" without \"}\"");
      for (const char c : pattern_.substr(at_, end - at_)) {
        if (c == ' ' || c == '_' || c == '-') continue;
        if (!std::isalnum(uint8_t(c))) refuse("the property ", pattern_.substr(before, end + 1 - before));
        name += char(std::toupper(uint8_t(c)));
      }
      at_ = end + 1;
    } else {
      if (onig()) refuse("a property without braces");
      name = std::string(1, char(std::toupper(uint8_t(peek()))));
      ++at_;
    }
    const std::string given(pattern_.substr(before, at_ - before));
    const OneOf found = property_named(name, given);
    // The complement of a single PCRE2 property can be written inside a set.
    const bool single = found.inside.starts_with("\\p{") && found.inside.find('\\', 1) == std::string::npos;
    if (opposite && single) {
      out = found;
      out.inside[1] = 'P';
    } else {
      out = opposite ? none_of(found) : found;
    }
    return true;
  }

  OneOf property_named(const std::string& name, const std::string& given) const {
    if (std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories))
      return {.inside = of_category(name) + newer_in(name), .further = {}};
    if (name == "WORD") return word_set();
    for (const auto& [key, text] : kProperties)
      if (name == key) return {.inside = std::string(text) + newer_of(text), .further = {}};
    if (name.empty() || name.starts_with("IN") || name.starts_with("POSIX") ||
        std::any_of(name.begin(), name.end(), [](char c) { return std::isdigit(uint8_t(c)); }))
      refuse("the property ", given);
    return {.inside = cat("\\p{sc:", name, "}"), .further = {}};  // a script; PCRE2 reports unknown names
  }

  // Parses a single character written with a backslash.
  uint32_t escaped_character() {
    take("\\");
    const char c = peek();
    constexpr std::string_view kNames = "tnrfaev";
    constexpr std::string_view kCodes = "\t\n\r\f\a\x1b\v";
    if (const size_t i = kNames.find(c); c != '\0' && i != kNames.npos) {
      ++at_;
      if (c == 'e' && !onig()) refuse("\\e");
      return uint8_t(kCodes[i]);
    }
    if (take("x{") || (!onig() && take("u{"))) {
      const uint32_t code = hex(1, 8);
      if (!take("}")) refuse("\\x{");
      return code;
    }
    if (take("x")) {
      const uint32_t code = hex(onig() ? 1 : 2, 2);
      if (onig() && code >= 0x80) refuse("\\x of a single byte");
      return code;
    }
    if (take("u")) return hex(4, 4);
    if (ended() || std::isalnum(uint8_t(c)) || uint8_t(c) >= 0x80)
      refuse("\\", ended() ? std::string("") : std::string(1, uint8_t(c) >= 0x80 ? '.' : c));
    return character();
  }

  // Parses a set after its "[", including the closing "]".
  OneOf set() {
    if (++depth_ > kMostGroups) refuse("nesting deeper than ", kMostGroups, " sets");
    const bool was_in_set = std::exchange(in_set_, true);
    const bool opposite = take("^");
    OneOf all = one_side(true);
    bool several = false;
    std::string both = all.text();
    while (take("&&")) {
      const OneOf next = one_side(false);
      both = cat("(?=", both, ")", next.text());
      several = true;
    }
    if (!take("]")) refuse("\"[\" without \"]\"");
    in_set_ = was_in_set;
    --depth_;
    if (several) all = {.inside = "", .further = {cat("(?:", both, ")")}};
    return opposite ? none_of(all) : all;
  }

  // Parses the members of a set up to "&&" or "]".
  OneOf one_side(bool first) {
    OneOf all;
    for (bool begin = true;; begin = false) {
      if (ended()) refuse("\"[\" without \"]\"");
      if (peek() == ']' && !(begin && first)) break;
      if (pattern_.substr(at_).starts_with("&&")) break;
      if ((peek() == '-' && peek(1) == '-') || (!onig() && peek() == '~' && peek(1) == '~'))
        refuse("\"", pattern_.substr(at_, 2), "\" in a set");
      member(all);
    }
    if (all.inside.empty() && all.further.empty()) refuse("an empty set");
    return all;
  }

  void member(OneOf& all) {
    OneOf found;
    if (pattern_.substr(at_).starts_with("[:")) return all.add(posix_set());
    if (take("[")) return all.add(set());
    if (peek() == '\\' && escaped_set(found)) {
      if (peek() == '-' && peek(1) != ']') refuse("a range from a class of characters");
      return all.add(found);
    }
    const uint32_t low = set_character();
    if (peek() != '-' || peek(1) == ']' || peek(1) == '\0') {
      all.inside += code_text(low);
      return;
    }
    take("-");
    if (peek() == '[' || (peek() == '\\' && escaped_set(found))) refuse("a range to a class of characters");
    const uint32_t high = set_character();
    if (high < low) refuse("a range that ends before it begins");
    all.inside += cat(code_text(low), "-", code_text(high));
  }
  uint32_t set_character() {
    if (peek() != '\\') return character();
    if (peek(1) != 'b') return escaped_character();
    at_ += 2;
    return 8;  // inside a set, \b is backspace
  }

  OneOf posix_set() {
    const size_t end = pattern_.find(":]", at_ + 2);
    if (end == pattern_.npos) refuse("\"[:\" in a set");
    std::string name;
    for (const char c : pattern_.substr(at_ + 2, end - at_ - 2)) name += char(std::toupper(uint8_t(c)));
    const bool opposite = name.starts_with("^");
    if (opposite) name.erase(0, 1);
    constexpr std::string_view kKnown[] = {"ALPHA", "UPPER", "LOWER", "DIGIT", "ALNUM", "XDIGIT", "SPACE", "WORD"};
    if (!onig() || std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown))
      refuse(pattern_.substr(at_, end + 2 - at_));
    const OneOf found = property_named(name, name);
    at_ = end + 2;
    return opposite ? none_of(found) : found;
  }

  // Translates a case-insensitive set; only ASCII characters are supported.
  std::string any_case_set() {
    const size_t begin = at_++;
    const OneOf found = set();
    const std::string_view text = pattern_.substr(begin, at_ - begin);
    const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return uint8_t(c) < 0x80; });
    // With a class such as [:upper:], Oniguruma also matches the other case, even beyond ASCII.
    const bool has_class = text.find('\\') != text.npos || text.find("[:") != text.npos;
    if (!ascii || has_class || !found.further.empty() || text.starts_with("[^"))
      refuse("the set ", text, " without regard to case");
    return cat("(?i:", found.text(), ")");
  }

  std::string_view pattern_;
  RegexDialect dialect_;
  const NewerCharacters& newer_;
  size_t at_ = 0;
  int depth_ = 0;
  bool in_set_ = false;
  uint32_t literal_ = 0;  // previous literal, if it may be the first of a case-insensitive pair
};

}  // namespace

std::string to_pcre2(std::string_view pattern, RegexDialect dialect, const NewerCharacters& newer) {
  return Translator(pattern, dialect, newer).all();
}

}  // namespace athanor
