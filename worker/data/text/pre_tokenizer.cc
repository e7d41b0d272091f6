#include "worker/data/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

namespace trainyard::data {
namespace {

// encoder.py of GPT-2.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

Result<SplitPattern> pattern_of(const TextSplit& rule) {
  if (rule.kind == TextSplit::Kind::kDigits) {
    SplitExpression digits;
    digits.sets.push_back(digits_set());
    ExpressionNode one;
    one.kind = ExpressionNode::Kind::kSet;
    digits.root.kind = ExpressionNode::Kind::kRepeat;
    if (!rule.one_digit) digits.root.most = ExpressionNode::kUnbounded;
    digits.root.children.push_back(std::move(one));
    return SplitPattern::create(digits);
  }
  TRAINYARD_ASSIGN(const SplitExpression expression, rule.kind == TextSplit::Kind::kRegex
                                                         ? parse_split_expression(rule.pattern)
                                                         : literal_expression(rule.pattern));
  return SplitPattern::create(expression);
}

}  // namespace

Result<PreTokenizer> PreTokenizer::create(const PreTokenization& how) {
  PreTokenizer made;
  for (size_t i = 0; i < how.splits.size(); ++i) {
    const TextSplit& rule = how.splits[i];
    Result<SplitPattern> pattern = pattern_of(rule);
    if (!pattern) return pattern.error();
    made.steps_.push_back({rule.pattern, *std::move(pattern), rule.behaviour, rule.invert});
  }
  made.prefix_step_ = made.steps_.size();
  made.prefix_space_ = how.prefix_space;
  if (how.gpt2_words) {
    TRAINYARD_ASSIGN(SplitPattern pattern,
                     pattern_of({TextSplit::Kind::kRegex, std::string(kGpt2Pattern)}));
    made.steps_.push_back({std::string(kGpt2Pattern), std::move(pattern)});
  }
  return made;
}

Status PreTokenizer::cut(std::string_view text, LeftOut& left_out, const TakePiece& take) {
  return text.empty() ? Status() : cut_from(0, text, left_out, take);
}

bool PreTokenizer::may_leave_out() const {
  return std::ranges::any_of(
      steps_, [](const Step& step) { return step.behaviour == SplitBehaviour::kRemoved; });
}

Status PreTokenizer::cut_from(size_t step, std::string_view text, LeftOut& left_out,
                              const TakePiece& take) {
  std::string prefixed;
  if (step == prefix_step_ && prefix_space_ && !text.starts_with(' ')) {
    prefixed.append(" ").append(text);
    text = prefixed;
  }
  if (step == steps_.size()) {
    take(text);
    return {};
  }
  Step& now = steps_[step];
  const bool is_last = step + 1 == steps_.size() && (!prefix_space_ || step >= prefix_step_);
  const auto too_slow = [&](const Error& error) {
    return Error{error.code, "the tokenizer's expression '" + now.expression +
                                 "' takes too long on this text: " + error.message +
                                 "; write a simpler expression"};
  };
  if (now.behaviour == SplitBehaviour::kIsolated) {
    Status later;
    const Status found =
        now.pattern.for_each(text, [&](size_t begin, size_t end, bool /*is_match*/) {
          const std::string_view piece = text.substr(begin, end - begin);
          if (is_last) {
            take(piece);
          } else if (later) {
            later = cut_from(step + 1, piece, left_out, take);
          }
        });
    if (!found) return too_slow(found.error());
    return later;
  }
  std::vector<Part> parts;
  const Status found = now.pattern.for_each(text, [&](size_t begin, size_t end, bool is_match) {
    parts.push_back({begin, end, is_match != now.invert});
  });
  if (!found) return too_slow(found.error());
  const auto text_of = [&](const Part& part) {
    return text.substr(part.begin, part.end - part.begin);
  };
  if (now.behaviour == SplitBehaviour::kRemoved) {
    for (const Part& part : parts) {
      if (part.is_match) left_out.add(std::ssize(text_of(part)), text, part.begin);
    }
  }
  for (const Part& part : merged(std::move(parts), now.behaviour))
    TRAINYARD_TRY(cut_from(step + 1, text_of(part), left_out, take));
  return {};
}

std::vector<PreTokenizer::Part> PreTokenizer::merged(std::vector<Part> parts,
                                                     SplitBehaviour behaviour) {
  if (behaviour == SplitBehaviour::kRemoved) {
    std::erase_if(parts, [](const Part& part) { return part.is_match; });
    return parts;
  }
  const bool backwards = behaviour == SplitBehaviour::kMergedWithNext;
  if (backwards) std::ranges::reverse(parts);
  std::vector<Part> pieces;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool after_match = i > 0 && parts[i - 1].is_match;
    const bool joins =
        i > 0 && (behaviour == SplitBehaviour::kContiguous ? parts[i].is_match == after_match
                                                           : parts[i].is_match && !after_match);
    if (joins) {
      pieces.back().begin = std::min(pieces.back().begin, parts[i].begin);
      pieces.back().end = std::max(pieces.back().end, parts[i].end);
    } else {
      pieces.push_back(parts[i]);
    }
  }
  if (backwards) std::ranges::reverse(pieces);
  return pieces;
}

bool PreTokenizer::may_cut(char32_t before, char space) const {
  if (prefix_space_ && space != ' ') return false;
  bool is_certain = false;
  for (const Step& step : steps_) {
    if (step.behaviour != SplitBehaviour::kIsolated || !step.pattern.may_cut(before, space))
      return false;
    is_certain = is_certain || step.pattern.always_matches(space);
  }
  return is_certain;
}

}  // namespace trainyard::data
