#pragma once

#include <map>
#include <string>
#include <string_view>

namespace trainyard::control::local {

/// `text` with every "$(NAME)" replaced by the variable's value, as kubelets do in command, args
/// and the values of env: what is no variable stays as it is, and "$$" is one "$". Source:
/// kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables
std::string expand_references(std::string_view text,
                              const std::map<std::string, std::string>& variables);

}  // namespace trainyard::control::local
