#include <istream>
#include <map>
#include <streambuf>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "common/text/document.h"
#include "common/text/tree_builder.h"

namespace trainyard::text {
namespace {

constexpr char kPlainTag[] = "?";
constexpr char kQuotedTag[] = "!";

Mark mark_of(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

/// yaml-cpp's events of one document into a TreeBuilder.
class Events final : public YAML::EventHandler {
 public:
  explicit Events(const Limits& limits) : builder_(limits) {}

  TreeBuilder& builder() { return builder_; }
  /// Where the document's first value stands; nullopt for an empty document.
  const std::optional<Mark>& first() const { return first_; }
  /// From now on any value is one too many.
  void document_done() { document_done_ = first_.has_value(); }

  void OnDocumentStart(const YAML::Mark& where) override {
    // At a token that starts no value (a comma, say) yaml-cpp 0.7 reports empty documents for ever.
    if (where.pos == document_position_) {
      builder_.stop(mark_of(where), "a character that starts no value", "a YAML value");
    }
    document_position_ = where.pos;
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& where, YAML::anchor_t anchor) override {
    const Mark mark = mark_of(where);
    if (builder_.expects_key()) {
      builder_.stop(mark, "an empty key", "a text key");
    }
    if (builder_.at_root()) return;  // an empty document
    Node node;
    node.line = mark.line;
    node.column = mark.column;
    remember(anchor, builder_.value(std::move(node)), mark);
  }

  void OnAlias(const YAML::Mark& where, YAML::anchor_t anchor) override {
    const Mark mark = mark_of(where);
    start(mark);
    if (builder_.expects_key()) builder_.stop(mark, "an alias as a key", "a text key");
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {
      builder_.stop(mark, "an alias of a value that contains it", "a value that ends");
    }
    TreeSize size = size_of(found->second);
    --size.nodes;  // value() charges the first
    builder_.charge_copy(size, mark);
    builder_.value(found->second);
  }

  void OnScalar(const YAML::Mark& where, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    const Mark mark = mark_of(where);
    start(mark);
    check_tag(tag, mark);
    if (text.find('\0') != std::string::npos) {
      builder_.stop(mark, "the NUL character", "text without the NUL character");
    }
    PlainScalar scalar;
    if (tag == kPlainTag) {
      scalar = resolve_plain(text, mark);
    } else {
      scalar.node.kind = Kind::kString;
      scalar.node.line = mark.line;
      scalar.node.column = mark.column;
      scalar.node.string = text;
    }
    if (builder_.expects_key()) {
      on_key(scalar, mark);
      return;
    }
    if (scalar.node.kind == Kind::kRefused) {
      builder_.problem(mark, describe(scalar.node), std::move(scalar.wanted));
    }
    remember(anchor, builder_.value(std::move(scalar.node)), mark);
  }

  void OnSequenceStart(const YAML::Mark& where, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    begin(mark_of(where), tag, anchor);
    builder_.begin_sequence(mark_of(where));
  }
  void OnSequenceEnd() override { end(); }

  void OnMapStart(const YAML::Mark& where, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    begin(mark_of(where), tag, anchor);
    builder_.begin_mapping(mark_of(where));
  }
  void OnMapEnd() override { end(); }

 private:
  struct OpenAnchor {
    YAML::anchor_t anchor;
    Mark mark;
  };

  void start(Mark mark) {
    if (document_done_) {
      builder_.stop(
          mark, "a second document",
          "one document per file (the first starts on line " + std::to_string(first_->line) + ")");
    }
    if (!first_) first_ = mark;
  }

  void begin(Mark mark, const std::string& tag, YAML::anchor_t anchor) {
    start(mark);
    check_tag(tag, mark);
    if (builder_.expects_key()) {
      builder_.stop(mark, "a collection as a key", "a text key (or is a bracket not closed?)");
    }
    open_anchors_.push_back({anchor, mark});
  }

  void end() {
    const OpenAnchor open = open_anchors_.back();
    open_anchors_.pop_back();
    remember(open.anchor, builder_.end(), open.mark);
  }

  void on_key(const PlainScalar& scalar, Mark mark) {
    if (scalar.node.string == "<<" && scalar.node.kind == Kind::kString) {
      builder_.stop(mark, "the merge key <<", "the members written out");
    }
    builder_.key(scalar.node.string, mark);
    if (scalar.node.kind != Kind::kString) {
      builder_.problem(mark, "the key " + describe(scalar.node), "a text key: put it in quotes");
    }
  }

  void check_tag(const std::string& tag, Mark mark) {
    if (tag.empty() || tag == kPlainTag || tag == kQuotedTag) return;
    builder_.problem(mark, "the tag " + describe(tag), "a value without a tag");
  }

  void remember(YAML::anchor_t anchor, const Node& node, Mark mark) {
    if (anchor == 0) return;
    builder_.charge_copy(size_of(node), mark);  // the copy takes memory too
    anchors_[anchor] = node;
  }

  TreeBuilder builder_;
  std::map<YAML::anchor_t, Node> anchors_;
  std::vector<OpenAnchor> open_anchors_;
  std::optional<Mark> first_;
  bool document_done_ = false;
  int document_position_ = -1;
};

/// Reads a string in place.
class ViewBuffer final : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());  // NOLINT: streambuf's interface; never written
    setg(begin, begin, begin + text.size());
  }
};

}  // namespace

Document parse_yaml(std::string_view text, const Limits& limits) {
  if (auto problem = check_bytes(text, limits)) return {Node{}, {std::move(*problem)}, false};
  ViewBuffer buffer(text);
  std::istream stream(&buffer);
  Events events(limits);
  try {
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(events))
      events.document_done();
    return events.builder().take();
  } catch (const StopReading&) {
    return events.builder().take_incomplete();
  } catch (const YAML::Exception& error) {
    Document document = events.builder().take_incomplete();
    const Mark mark = mark_of(error.mark);
    document.problems.push_back({mark.line, mark.column, "", "", "valid YAML: " + error.msg});
    return document;
  }
}

}  // namespace trainyard::text
