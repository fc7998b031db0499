// SPDX-License-Identifier: Apache-2.0
#include "core/ops/text/regex.h"

#include <algorithm>

#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/ops/text/unicode.h"

namespace caesura {
namespace {

bool Contains(const CodePointSet& set, char32_t c) {
  auto after = std::upper_bound(set.begin(), set.end(), c,
                                [](char32_t v, const auto& r) { return v < r.first; });
  return after != set.begin() && c <= std::prev(after)->second;
}

bool IsWord(char32_t c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

// Stands for "nothing" before the first and after the last code point.
constexpr char32_t kEdge = 0x110001;

bool Holds(RegexNode::Assertion assertion, char32_t before, char32_t after) {
  using A = RegexNode::Assertion;
  switch (assertion) {
    case A::kTextBegin: return before == kEdge;
    case A::kTextEnd: return after == kEdge;
    case A::kLineBegin: return before == kEdge || before == '\n';
    case A::kLineEnd: return after == kEdge || after == '\n';
    case A::kWordBoundary: return IsWord(before) != IsWord(after);
    case A::kNotWordBoundary: return IsWord(before) == IsWord(after);
  }
  return false;
}

}  // namespace

// Emits the automaton from its end to its start: each piece is given the instruction that follows
// it.
class Regex::Compiler {
 public:
  Compiler(const RegexTree& tree, Regex* out)
      : tree_(tree), out_(*out), set_of_node_(tree.nodes.size(), -1) {}

  Status Run() {
    const int match = Emit({.op = Instruction::Op::kMatch});
    out_.start_ = Compile(tree_.root, match);
    if (too_large_) return InvalidArgument("the pattern is too large");
    return {};
  }

 private:
  int Emit(Instruction instruction) {
    if (out_.program_.size() >= kMaxInstructions) too_large_ = true;
    if (too_large_) return 0;
    out_.program_.push_back(instruction);
    return static_cast<int>(out_.program_.size()) - 1;
  }

  // Returns the first instruction of node `id` followed by `next`.
  int Compile(int id, int next) {
    if (too_large_) return next;
    const RegexNode& node = tree_.nodes[id];
    switch (node.kind) {
      case RegexNode::Kind::kEmpty: return next;
      case RegexNode::Kind::kSet:
        return Emit({.op = Instruction::Op::kSet, .set = SetOf(id), .next = next});
      case RegexNode::Kind::kAssert:
        return Emit({.op = Instruction::Op::kAssert, .assertion = node.assertion, .next = next});
      case RegexNode::Kind::kConcat:
        for (size_t i = node.children.size(); i-- > 0;) next = Compile(node.children[i], next);
        return next;
      case RegexNode::Kind::kAlternate: {
        int first = Compile(node.children.back(), next);
        for (int i = static_cast<int>(node.children.size()) - 2; i >= 0; --i) {
          const int branch = Compile(node.children[i], next);
          first = Emit({.op = Instruction::Op::kSplit, .next = branch, .alternative = first});
        }
        return first;
      }
      case RegexNode::Kind::kRepeat: return CompileRepeat(node, next);
    }
    return next;
  }

  int CompileRepeat(const RegexNode& node, int next) {
    const int child = node.children[0];
    if (node.max == RegexNode::kUnbounded) {
      const int loop = Emit({.op = Instruction::Op::kSplit, .alternative = next});
      const int body = Compile(child, loop);
      if (!too_large_) out_.program_[loop].next = body;
      next = loop;
    } else {
      const int end = next;
      for (int i = node.min; i < node.max && !too_large_; ++i) {
        const int body = Compile(child, next);
        next = Emit({.op = Instruction::Op::kSplit, .next = body, .alternative = end});
      }
    }
    for (int i = 0; i < node.min && !too_large_; ++i) next = Compile(child, next);
    return next;
  }

  // A node inside of a repeat is compiled often; its set is stored once.
  int SetOf(int id) {
    if (set_of_node_[id] < 0) {
      set_of_node_[id] = static_cast<int>(out_.sets_.size());
      out_.sets_.push_back(tree_.nodes[id].set);
    }
    return set_of_node_[id];
  }

  const RegexTree& tree_;
  Regex& out_;
  std::vector<int> set_of_node_;
  bool too_large_ = false;
};

// The set of states that the automaton can be in.
class Regex::Matcher {
 public:
  explicit Matcher(const Regex& regex) : regex_(regex), mark_(regex.program_.size(), 0) {}

  bool Run(std::string_view text) {
    char32_t before = kEdge;
    size_t position = 0;
    char32_t after = Next(text, &position);
    StartRound();
    Add(regex_.start_, before, after);
    while (after != kEdge) {
      const char32_t current = after;
      std::swap(states_, previous_);
      StartRound();
      after = Next(text, &position);
      for (int id : previous_) {
        const Instruction& instruction = regex_.program_[id];
        if (instruction.op == Instruction::Op::kSet &&
            Contains(regex_.sets_[instruction.set], current)) {
          Add(instruction.next, current, after);
        }
      }
      if (states_.empty()) return false;
    }
    return std::any_of(states_.begin(), states_.end(),
                       [&](int id) { return regex_.program_[id].op == Instruction::Op::kMatch; });
  }

 private:
  static char32_t Next(std::string_view text, size_t* position) {
    return *position < text.size() ? NextCodePoint(text, position) : kEdge;
  }
  void StartRound() {
    states_.clear();
    ++round_;
  }
  // Adds a state and all that it reaches without reading.
  void Add(int first, char32_t before, char32_t after) {
    pending_.push_back(first);
    while (!pending_.empty()) {
      const int id = pending_.back();
      pending_.pop_back();
      if (mark_[id] == round_) continue;
      mark_[id] = round_;
      const Instruction& instruction = regex_.program_[id];
      if (instruction.op == Instruction::Op::kSplit) {
        pending_.push_back(instruction.alternative);
        pending_.push_back(instruction.next);
      } else if (instruction.op == Instruction::Op::kAssert) {
        if (Holds(instruction.assertion, before, after)) pending_.push_back(instruction.next);
      } else {
        states_.push_back(id);
      }
    }
  }

  const Regex& regex_;
  std::vector<int> states_, previous_, pending_;
  std::vector<uint64_t> mark_;  // the round in which a state was added last
  uint64_t round_ = 0;
};

Result<Regex> Regex::Compile(const std::string& pattern) {
  ASSIGN_OR_RETURN(const RegexTree tree, ParseRegex(pattern));
  Regex out;
  RETURN_IF_ERROR(Compiler(tree, &out).Run());
  return out;
}

bool Regex::FullMatch(std::string_view text) const { return Matcher(*this).Run(text); }

}  // namespace caesura
