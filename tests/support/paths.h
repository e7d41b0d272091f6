#pragma once

#include <string>

/// Where the repository and its build lie. One generated file knows it (tests/CMakeLists.txt): were
/// it in every command line, two checkouts would share nothing of what ccache holds.
namespace trainyard::testing_support {

std::string source_folder();
/// `relative` to the repository: "manifests/crd.yaml".
std::string source_path(const std::string& relative);

/// `relative` to the build's folder: "dashboards".
std::string build_path(const std::string& relative);
/// Of a program that a user runs or that stands in for one: "trainyard-agent".
std::string program_path(const std::string& name);
/// Of a program that only tests run: "comm_rank".
std::string test_program_path(const std::string& name);

}  // namespace trainyard::testing_support
