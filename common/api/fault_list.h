#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/api/fault.h"

namespace trainyard::api {

/// Collects the faults of one document and knows where its fields stand. Not thread-safe.
class FaultList {
 public:
  explicit FaultList(std::string file) : file_(std::move(file)) {}

  /// Says where a field stands; add() looks lines up by it.
  void set_line(std::string path, int line) { lines_.emplace(std::move(path), line); }

  /// Adds a fault at the field's line, or at that of the nearest field around it.
  void add(const std::string& path, std::string found, std::string wanted);
  void add_at(int line, const std::string& path, std::string found, std::string wanted);

  /// Says better what the field's first fault wants; nothing happens where it has none.
  void refine(std::string_view path, std::string wanted);

  /// True when the field, a part of it or something around it has a fault already: rules that
  /// build on it would only repeat that.
  bool faulted(std::string_view path) const;
  /// True when exactly this field has a fault.
  bool has(std::string_view path) const;

  bool empty() const { return faults_.empty(); }
  /// In line order; those of one line in the order added.
  std::vector<Fault> take();

 private:
  int line_of(std::string_view path) const;

  std::string file_;
  std::unordered_map<std::string, int> lines_;
  std::vector<Fault> faults_;
};

/// The candidate that a misspelt name most likely means: least edit distance ignoring case, at most
/// a third of its length; empty where none is near.
std::string_view nearest_name(std::string_view name,
                              const std::vector<std::string_view>& candidates);

/// "a, b or c".
std::string join_choices(const std::vector<std::string_view>& choices);

}  // namespace trainyard::api
