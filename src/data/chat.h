// Conversations for fine-tuning: lines of JSON in the shapes in use, and the texts that a chat template makes of them,
// each with whether it is learnt. Knows no tokens.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

struct ChatMessage {
  enum class Role : uint8_t { system, user, assistant };
  Role role = Role::user;
  std::string content;
  bool operator==(const ChatMessage&) const = default;
};
using Conversation = std::vector<ChatMessage>;

// Shapes of a line: {"messages": [{"role", "content"}]}; {"prompt", "completion"}; {"instruction", "input", "output"};
// {"conversations": [{"from", "value"}]}.
enum class ChatShape : uint8_t { messages, prompt, alpaca, sharegpt };
std::optional<ChatShape> chat_shape_named(std::string_view name);
std::vector<std::string> chat_shape_names();

// shape: absent: by the members of the line. Anything else throws an Error(usage) that says what was expected.
Conversation parse_chat(std::string_view line, std::optional<ChatShape> shape = {});

// Published templates; plain has none: texts as they are, and the end-of-document token after each answer.
enum class ChatTemplate : uint8_t { chatml, llama3, llama2, mistral, gemma, plain };
std::optional<ChatTemplate> chat_template_named(std::string_view name);
std::vector<std::string> chat_template_names();

// A part of a conversation, tokenized by itself.
struct ChatSegment {
  enum class Kind : uint8_t {
    text,
    special,  // the text of one special token
    mark,     // likewise, or ordinary text where the tokenizer has no such token
    end       // the end-of-document token; no text
  };
  std::string text;
  Kind kind = Kind::text;
  bool learnt = false;  // an answer, or the token that ends one
  bool operator==(const ChatSegment&) const = default;
};
// An Error(usage) for what the template has no place for: turns out of order, a system message in the middle.
std::vector<ChatSegment> apply_template(ChatTemplate, const Conversation&);

}  // namespace athanor
