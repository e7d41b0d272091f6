#include <array>
#include <utility>

#include "common/io/file.h"
#include "common/io/input.h"
#include "common/text/document.h"
#include "operator/kube/base64.h"
#include "operator/kube/config.h"
#include "operator/kube/server_url.h"

namespace trainyard::kube {
namespace {

namespace fs = std::filesystem;
using text::Node;

constexpr int64_t kPemBytesMax = 1 << 20;
constexpr int64_t kKubeconfigBytesMax = 1 << 20;

Error invalid(std::string message) { return {ErrorCode::kInvalidConfig, std::move(message)}; }

/// One cluster, user or context: its mapping and how messages call it.
struct Entry {
  const Node* body = nullptr;
  std::string title;
  const fs::path& directory;

  /// A string member; empty where there is none.
  Result<std::string> word(std::string_view key) const {
    const Node* node = body->find(key);
    if (node == nullptr || node->kind == text::Kind::kNull) return std::string();
    if (node->kind == text::Kind::kString) return node->string;
    return invalid(title + ": " + std::string(key) + ": found " + describe(*node) +
                   ", wanted a string");
  }

  /// Errors where the member is there and is neither empty nor false.
  Status refuse(std::string_view key, std::string_view why) const {
    const Node* node = body->find(key);
    if (node == nullptr || node->kind == text::Kind::kNull) return {};
    if (node->kind == text::Kind::kBool && !node->boolean) return {};
    if (node->kind == text::Kind::kString && node->string.empty()) return {};
    if (node->kind == text::Kind::kSequence && node->items.empty()) return {};
    if (node->kind == text::Kind::kMapping && node->members.empty()) return {};
    return invalid(title + ": " + std::string(key) + ": " + std::string(why));
  }

  /// KEY-data, or the file that KEY names; empty where there is neither.
  Result<Pem> pem(const std::string& key) const {
    TRAINYARD_ASSIGN(const std::string data, word(key + "-data"));
    if (!data.empty()) {
      Result<std::string> decoded = decode_base64(data);
      if (!decoded) return decoded.error().with_context(title + ": " + key + "-data");
      return Pem{*std::move(decoded), key + "-data of " + title, {}};
    }
    TRAINYARD_ASSIGN(const std::string name, word(key));
    if (name.empty()) return Pem{};
    const fs::path file = directory / name;
    Result<std::string> content = read_file(file, kPemBytesMax);
    if (!content) return content.error().with_context(title + ": " + key);
    return Pem{*std::move(content), file.string(), file};
  }
};

/// The names in a list of entries, for messages.
std::string names_in(const Node* entries) {
  std::string names;
  if (entries == nullptr) return "there are none";
  for (const Node& entry : entries->items) {
    const Node* name = entry.find("name");
    if (name == nullptr || names.size() > 200) continue;
    names += (names.empty() ? "" : ", ") + describe(*name);
  }
  return names.empty() ? "there are none" : names;
}

/// The first entry of that name; nullptr where there is none.
const Node* entry_called(const Node* entries, const std::string& name) {
  if (entries == nullptr) return nullptr;
  for (const Node& entry : entries->items) {
    const Node* found = entry.find("name");
    if (found != nullptr && found->kind == text::Kind::kString && found->string == name) {
      return &entry;
    }
  }
  return nullptr;
}

/// The entry called `name` of the list `list`, whose bodies are members `key`.
Result<Entry> find_entry(const Node& root, std::string_view list, const char* key,
                         const std::string& name, const fs::path& directory) {
  const std::string title = std::string(key) + " " + text::describe(name);
  const Node* entries = root.find(list);
  const Node* entry = entry_called(entries, name);
  if (entry == nullptr) {
    return invalid(title + " is not among " + std::string(list) + " (" + names_in(entries) + ")");
  }
  const Node* body = entry->find(key);
  if (body == nullptr || body->kind != text::Kind::kMapping) {
    return invalid(title + ": no mapping \"" + key + "\" in it");
  }
  return Entry{body, title, directory};
}

Status read_cluster(const Entry& cluster, ServerConfig& config) {
  TRAINYARD_TRY(cluster.refuse("insecure-skip-tls-verify",
                               "a server that is not verified gets no credentials; name its CA in "
                               "certificate-authority"));
  TRAINYARD_TRY(cluster.refuse("proxy-url",
                               "proxies are not supported; name a server that can be "
                               "reached without"));
  TRAINYARD_ASSIGN(config.server, cluster.word("server"));
  const Result<ServerUrl> url = parse_server_url(config.server);
  if (!url) return url.error().with_context(cluster.title + ": server");
  TRAINYARD_ASSIGN(config.tls_server_name, cluster.word("tls-server-name"));
  TRAINYARD_ASSIGN(config.authority, cluster.pem("certificate-authority"));
  return {};
}

struct Refused {
  std::string_view key;
  std::string_view why;
};

constexpr std::string_view kNoPlugin =
    "credential plugins are not run; use a client certificate, token or tokenFile (a "
    "ServiceAccount's "
    "token, for example)";
constexpr std::string_view kNoPassword =
    "API servers take no passwords since Kubernetes 1.19; use a client certificate or token";
constexpr std::string_view kNoImpersonation =
    "impersonation is not supported; use the credentials of the identity itself";

constexpr std::array<Refused, 8> kRefusedOfUsers = {{{"exec", kNoPlugin},
                                                     {"auth-provider", kNoPlugin},
                                                     {"username", kNoPassword},
                                                     {"password", kNoPassword},
                                                     {"as", kNoImpersonation},
                                                     {"as-uid", kNoImpersonation},
                                                     {"as-groups", kNoImpersonation},
                                                     {"as-user-extra", kNoImpersonation}}};

Status read_user(const Entry& user, ServerConfig& config) {
  for (const Refused& refused : kRefusedOfUsers)
    TRAINYARD_TRY(user.refuse(refused.key, refused.why));
  TRAINYARD_ASSIGN(config.client_certificate, user.pem("client-certificate"));
  TRAINYARD_ASSIGN(config.client_key, user.pem("client-key"));
  if (config.client_certificate.empty() != config.client_key.empty()) {
    return invalid(user.title + ": of client-certificate and client-key one is missing");
  }
  TRAINYARD_ASSIGN(config.token, user.word("token"));
  TRAINYARD_ASSIGN(const std::string file, user.word("tokenFile"));
  if (!file.empty()) config.token_file = user.directory / file;
  return {};
}

Status check_plain_text(const ServerConfig& config) {
  const bool identity =
      !config.token.empty() || !config.token_file.empty() || !config.client_certificate.empty();
  if (config.server.starts_with("http://") && identity) {
    return invalid("server " + text::describe(config.server) +
                   ": credentials do not go over plain http; wanted https://");
  }
  return {};
}

/// The whole document, which must be a mapping.
Result<Node> read_root(std::string_view text) {
  text::Document document = text::parse(text, {.bytes = kKubeconfigBytesMax});
  if (!document.problems.empty()) {
    const text::Problem& problem = document.problems.front();
    return invalid("line " + std::to_string(problem.line) + ": " +
                   (problem.path.empty() ? "" : problem.path + ": ") +
                   (problem.found.empty() ? "" : "found " + problem.found + ", ") + "wanted " +
                   problem.wanted);
  }
  if (!document.complete || document.root.kind != text::Kind::kMapping) {
    return invalid("found " + describe(document.root) +
                   ", wanted a kubeconfig (a mapping with clusters, users and contexts)");
  }
  return std::move(document.root);
}

Status read_identity(const Node& root, const std::string& name, const fs::path& directory,
                     ServerConfig& config) {
  if (!name.empty()) {
    TRAINYARD_ASSIGN(const Entry user, find_entry(root, "users", "user", name, directory));
    TRAINYARD_TRY(read_user(user, config));
  }
  return check_plain_text(config);
}

}  // namespace

Result<ServerConfig> parse_kubeconfig(std::string_view text, const fs::path& directory,
                                      std::string_view context) {
  TRAINYARD_ASSIGN(const Node root, read_root(text));
  std::string chosen(context);
  if (chosen.empty()) {
    TRAINYARD_ASSIGN(chosen, (Entry{&root, "kubeconfig", directory}.word("current-context")));
  }
  if (chosen.empty()) return invalid("current-context is empty; name a context");
  TRAINYARD_ASSIGN(const Entry entry, find_entry(root, "contexts", "context", chosen, directory));
  TRAINYARD_ASSIGN(const std::string cluster_name, entry.word("cluster"));
  TRAINYARD_ASSIGN(const std::string user_name, entry.word("user"));
  ServerConfig config;
  TRAINYARD_ASSIGN(const Entry cluster,
                   find_entry(root, "clusters", "cluster", cluster_name, directory));
  TRAINYARD_TRY(read_cluster(cluster, config));
  TRAINYARD_TRY(read_identity(root, user_name, directory, config));
  TRAINYARD_ASSIGN(config.ns, entry.word("namespace"));
  if (config.ns.empty()) config.ns = "default";
  return config;
}

Result<ServerConfig> load_kubeconfig(const fs::path& path, std::string_view context) {
  Result<std::string> text = read_input(path, kKubeconfigBytesMax);
  if (!text) return text.error().with_context("kubeconfig");
  Result<ServerConfig> config = parse_kubeconfig(*text, fs::absolute(path).parent_path(), context);
  if (!config) return config.error().with_context("kubeconfig " + path.string());
  return config;
}

}  // namespace trainyard::kube
