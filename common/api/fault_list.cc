#include "common/api/fault_list.h"

#include <algorithm>
#include <numeric>

namespace trainyard::api {
namespace {

constexpr size_t kMaxFaults = 200;     // more help nobody
constexpr size_t kMaxNameBytes = 100;  // longer names are not compared

/// True when `path` is `outer` or below it.
bool is_within(std::string_view path, std::string_view outer) {
  if (outer.empty()) return true;
  if (!path.starts_with(outer)) return false;
  return path.size() == outer.size() || path[outer.size()] == '.' || path[outer.size()] == '[';
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Levenshtein distance, ignoring the case of ASCII letters.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = diagonal + (lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

void FaultList::add(const std::string& path, std::string found, std::string wanted) {
  add_at(line_of(path), path, std::move(found), std::move(wanted));
}

void FaultList::add_at(int line, const std::string& path, std::string found, std::string wanted) {
  if (faults_.size() >= kMaxFaults) return;
  faults_.push_back({file_, line, path, std::move(found), std::move(wanted)});
}

void FaultList::refine(std::string_view path, std::string wanted) {
  const auto found = std::find_if(faults_.begin(), faults_.end(),
                                  [&](const Fault& fault) { return fault.field == path; });
  if (found != faults_.end()) found->wanted = std::move(wanted);
}

bool FaultList::faulted(std::string_view path) const {
  return std::any_of(faults_.begin(), faults_.end(), [&](const Fault& fault) {
    if (fault.field.empty()) return false;
    return is_within(fault.field, path) || is_within(path, fault.field);
  });
}

bool FaultList::has(std::string_view path) const {
  return std::any_of(faults_.begin(), faults_.end(),
                     [&](const Fault& fault) { return fault.field == path && !path.empty(); });
}

std::vector<Fault> FaultList::take() {
  std::stable_sort(faults_.begin(), faults_.end(),
                   [](const Fault& a, const Fault& b) { return a.line < b.line; });
  return std::move(faults_);
}

int FaultList::line_of(std::string_view path) const {
  while (true) {
    const auto found = lines_.find(std::string(path));
    if (found != lines_.end()) return found->second;
    if (path.empty()) return 0;
    const size_t cut = path.find_last_of(".[");
    path = cut == std::string_view::npos ? std::string_view() : path.substr(0, cut);
  }
}

std::string_view nearest_name(std::string_view name,
                              const std::vector<std::string_view>& candidates) {
  if (name.size() > kMaxNameBytes) return {};
  std::string_view nearest;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const size_t distance = edit_distance(name, candidate);
    if (distance >= least || distance >= candidate.size()) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string join_choices(const std::vector<std::string_view>& choices) {
  std::string text;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) text += i + 1 == choices.size() ? " or " : ", ";
    text += choices[i];
  }
  return text;
}

}  // namespace trainyard::api
