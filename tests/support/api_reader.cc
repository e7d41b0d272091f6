#include "tests/support/api_reader.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "operator/kube/config.h"
#include "operator/kube/http_transport.h"

namespace trainyard::testing_support {
namespace {

using nlohmann::json;

constexpr kube::Resource kServiceAccounts{"", "v1", "serviceaccounts", "ServiceAccount"};

/// The names that tests use, as kubectl takes them.
constexpr std::array kKinds = {
    std::pair{std::string_view("tj"), &kube::kTrainingJobs},
    std::pair{std::string_view("pod"), &kube::kPods},
    std::pair{std::string_view("pods"), &kube::kPods},
    std::pair{std::string_view("node"), &kube::kNodes},
    std::pair{std::string_view("service"), &kube::kServices},
    std::pair{std::string_view("configmap"), &kube::kConfigMaps},
    std::pair{std::string_view("pdb"), &kube::kPodDisruptionBudgets},
    std::pair{std::string_view("secret"), &kube::kSecrets},
    std::pair{std::string_view("serviceaccount"), &kServiceAccounts},
};

const kube::Resource* kind_of(const std::string& word) {
  const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const auto& entry) { return entry.first == word; });
  return found == kKinds.end() ? nullptr : found->second;
}

bool is_option(const std::string& word) { return word.starts_with("-"); }

}  // namespace

ApiReader::ApiReader(const std::filesystem::path& kubeconfig) {
  const auto config = kube::load_kubeconfig(kubeconfig, "");
  if (!config) throw std::runtime_error(config.error().message);
  auto transport = kube::make_http_transport(*config, clock_, "trainyard-test");
  if (!transport) throw std::runtime_error(transport.error().message);
  transport_ = *std::move(transport);
  client_ = std::make_unique<kube::Client>(*transport_, clock_, kube::Client::Options());
}

bool ApiReader::knows(const std::vector<std::string>& words) {
  if (words.empty() || kind_of(words[0]) == nullptr) return false;
  if (words.size() == 3) return words[1] == "-l";
  return words.size() == 1 || (words.size() == 2 && !is_option(words[1]));
}

json ApiReader::get(const std::string& name_space, const std::vector<std::string>& words) const {
  const kube::Resource& resource = *kind_of(words.at(0));
  const std::string ns = resource.scope == kube::Scope::kNamespaced ? name_space : "";
  if (words.size() != 2) return list(resource, ns, words.size() == 3 ? words[2] : "");
  auto object = client_->get(resource, {ns, words[1]});
  return object ? *std::move(object) : json();
}

json ApiReader::list(const kube::Resource& resource, const std::string& name_space,
                     const std::string& selector) const {
  kube::ListOptions options;
  options.label_selector = selector;
  json items = json::array();
  do {
    auto page = client_->list(resource, name_space, options);
    if (!page) return nullptr;
    for (json& item : page->items) {
      // A list says of what it is once for all; kubectl says it of each.
      item["apiVersion"] = kube::api_version(resource);
      item["kind"] = resource.kind;
      items.push_back(std::move(item));
    }
    options.next = page->next;
  } while (!options.next.empty());
  return {{"apiVersion", "v1"}, {"kind", "List"}, {"items", std::move(items)}};
}

}  // namespace trainyard::testing_support
