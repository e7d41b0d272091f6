#include "operator/kube/server_url.h"

#include <algorithm>
#include <charconv>

#include "common/text/document.h"

namespace trainyard::kube {
namespace {

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}

bool is_ipv6_character(char c) {
  return (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || (c >= '0' && c <= '9') || c == ':' ||
         c == '.';
}

bool is_path_character(char c) {
  return is_host_character(c) || c == '/' || c == '~' || c == ':' || c == '%';
}

bool all_of(std::string_view text, bool (*is)(char)) {
  return std::all_of(text.begin(), text.end(), is);
}

}  // namespace

std::string ServerUrl::text() const {
  const bool v6 = host.find(':') != std::string::npos;
  return std::string(scheme == Scheme::kHttps ? "https://" : "http://") +
         (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port) + prefix;
}

Result<ServerUrl> parse_server_url(std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return Error{ErrorCode::kInvalidConfig, text::describe(text) + ": " + std::string(why) +
                                                "; wanted https://HOST[:PORT][/PATH]"};
  };
  ServerUrl url;
  std::string_view rest = text;
  if (rest.starts_with("https://")) {
    rest.remove_prefix(8);
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
    url.scheme = Scheme::kHttp;
    url.port = 80;
  } else {
    return bad("no https:// at its beginning");
  }
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  std::string_view prefix = rest.substr(slash);
  while (prefix.ends_with('/'))
    prefix.remove_suffix(1);
  if (!all_of(prefix, is_path_character) || prefix.find("..") != std::string_view::npos) {
    return bad("a path of letters, digits and -._~:%/ is wanted");
  }
  url.prefix = prefix;
  std::string_view port;
  if (authority.starts_with('[')) {
    const size_t close = authority.find(']');
    if (close == std::string_view::npos) return bad("'[' without ']'");
    url.host = authority.substr(1, close - 1);
    if (!all_of(url.host, is_ipv6_character)) return bad("no IPv6 address in brackets");
    port = authority.substr(close + 1);
  } else {
    const size_t colon = std::min(authority.find(':'), authority.size());
    url.host = authority.substr(0, colon);
    if (!all_of(url.host, is_host_character)) return bad("no host name or address");
    port = authority.substr(colon);
  }
  if (url.host.empty()) return bad("no host");
  if (port.empty()) return url;
  const auto [end, error] = std::from_chars(port.data() + 1, port.data() + port.size(), url.port);
  if (port[0] != ':' || error != std::errc() || end != port.data() + port.size() || url.port == 0) {
    return bad("no port from 1 to 65535");
  }
  return url;
}

}  // namespace trainyard::kube
