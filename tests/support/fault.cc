#include "tests/support/fault.h"

#include <sstream>
#include <vector>

namespace trainyard::testing_support {
namespace {

/// The segments of a path after the API's group and version and after a namespace.
std::vector<std::string> resource_segments(const std::string& path) {
  std::vector<std::string> segments;
  std::stringstream rest(path);
  for (std::string segment; std::getline(rest, segment, '/');)
    if (!segment.empty()) segments.push_back(segment);
  const size_t prefix = path.starts_with("/api/") ? 2 : path.starts_with("/apis/") ? 3 : 0;
  if (prefix == 0 || segments.size() < prefix) return {};
  segments.erase(segments.begin(), segments.begin() + static_cast<std::ptrdiff_t>(prefix));
  if (segments.size() > 2 && segments[0] == "namespaces")
    segments.erase(segments.begin(), segments.begin() + 2);
  return segments;
}

}  // namespace

ProxiedRequest parse_request_line(const std::string& line) {
  ProxiedRequest request;
  std::stringstream words(line);
  std::string target;
  words >> request.method >> target;
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  const std::vector<std::string> segments = resource_segments(request.path);
  if (!segments.empty()) request.resource = segments[0];
  if (segments.size() > 2) request.resource += "/" + segments[2];
  const bool reads = request.method == "GET";
  const bool watches = reads && request.query.find("watch=true") != std::string::npos;
  request.watch = watches ? 1 : 0;
  request.list = reads && !watches && segments.size() == 1 ? 1 : 0;
  request.write = reads || request.query.find("dryRun=All") != std::string::npos ? 0 : 1;
  return request;
}

}  // namespace trainyard::testing_support
