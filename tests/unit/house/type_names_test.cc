#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/unit/house/source_tree.h"

namespace trainyard::house {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

/// Of two definitions each source file is compiled with one.
struct Alternative {
  std::string name;
  std::string why;
};
const Alternative kAlternatives[] = {
    {"trainyard::simt::BFloat16", "nvcc compiles device.h, all others host.h"},
    {"trainyard::kernels::TRAINYARD_ISA_NAMESPACE::BFloat16Input",
     "pairs of elements where an instruction set multiplies pairs"},
    {"trainyard::kernels::TRAINYARD_ISA_NAMESPACE::MatrixUnit", "empty without AMX"},
};

/// By qualified name: the files that define a type. A second one in a namespace is found where it
/// is an error at best, in a file that includes both, and not by linkers.
using Definitions = std::map<std::string, std::vector<std::string>>;

/// Takes `word` and what follows it up to `end` from the front.
bool take(std::string_view& text, std::string_view word, std::string_view end = "") {
  if (!text.starts_with(word)) return false;
  const size_t at = text.find(end, word.size());
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + end.size());
  return true;
}

/// The name of the type that a line defines; empty: none. Definitions in a namespace are not
/// indented, as clang-format has it.
std::string defined_by(std::string_view line) {
  bool is_type = take(line, "enum ");
  for (const char* const word : {"class ", "struct ", "union "})
    is_type = take(line, word) || is_type;
  const bool declares = line.ends_with(';') && line.find('{') == std::string_view::npos;
  if (!is_type || declares) return "";
  take(line, "alignas(", ") ");
  take(line, "[[", "]] ");
  for (const char* const end : {" final", " :", " {"})
    line = line.substr(0, line.find(end));
  return std::string(line);
}

/// Adds those of all namespaces with a name.
void add_definitions(const SourceFile& file, Definitions& definitions) {
  std::vector<std::string> namespaces = {""};
  std::istringstream lines(file.text);
  int within = 0;  // lines of the innermost namespace
  for (std::string line; std::getline(lines, line); ++within) {
    std::string_view rest = line;
    // clang-format writes no comment where a namespace has one line.
    const bool ends = rest.starts_with("}  // namespace") || (rest == "}" && within == 1);
    if (ends && namespaces.size() > 1) namespaces.pop_back();
    take(rest, "inline ");
    if (take(rest, "namespace ") && rest.ends_with('{')) {
      rest = rest.substr(0, rest.find_last_not_of(" {") + 1);
      const std::string& outer = namespaces.back();
      namespaces.push_back(rest.empty() || outer == "-" ? "-" : outer + std::string(rest) + "::");
      within = -1;
    }
    const std::string name = defined_by(line);
    if (!name.empty() && namespaces.back() != "-")
      definitions[namespaces.back() + name].push_back(file.path);
  }
  if (namespaces.size() > 1) definitions["a namespace without an end"] = {file.path, file.path};
}

/// The names with several definitions, and where these are.
Definitions repeated(const std::vector<SourceFile>& files) {
  Definitions definitions;
  for (const SourceFile& file : files)
    add_definitions(file, definitions);
  std::erase_if(definitions, [](const auto& of_name) { return of_name.second.size() < 2; });
  return definitions;
}

/// The types of `header` that a namespace within theirs defines again, which hides them there. By
/// qualified name of the second definition.
Definitions hidden(const std::string& header, const std::vector<SourceFile>& files) {
  Definitions definitions;
  for (const SourceFile& file : files)
    add_definitions(file, definitions);
  Definitions found;
  for (const auto& [name, in_files] : definitions) {
    if (std::ranges::find(in_files, header) == in_files.end()) continue;
    const size_t at = name.rfind("::") + 2;
    for (const auto& [other, where] : definitions) {
      if (other.size() > name.size() && other.starts_with(name.substr(0, at)) &&
          other.ends_with("::" + name.substr(at))) {
        found[other] = where;
      }
    }
  }
  return found;
}

std::vector<SourceFile> product_files() {
  std::vector<SourceFile> product = read_source_tree(testing_support::source_folder());
  std::erase_if(product, [](const SourceFile& file) {
    return !is_code(file.path) || file.path.starts_with("tests/");
  });
  return product;
}

TEST(TypeNamesTest, NoOperationIsDefinedAgainForADevice) {
  EXPECT_THAT(hidden("kernels/kernel_set.h", product_files()), IsEmpty())
      << "let the launcher take the operation and further arguments, or rename the struct";
}

TEST(TypeNamesTest, ATypeIsHiddenWithinItsNamespaceAlone) {
  const std::vector<SourceFile> files = {
      {"a.h", "namespace n {\nstruct Op {};\nstruct Other {};\n}  // namespace n\n"},
      {"b.h", "namespace n::m {\nstruct Op {\n};\nstruct NoOp {};\n}  // namespace n::m\n"},
      {"c.h", "namespace o {\nstruct Op {};\n}  // namespace o\n"}};
  EXPECT_THAT(hidden("a.h", files), ElementsAre(Pair("n::m::Op", ElementsAre("b.h"))));
  EXPECT_THAT(hidden("b.h", files), IsEmpty());
}

TEST(TypeNamesTest, NoTypeIsDefinedTwiceInANamespace) {
  Definitions found = repeated(product_files());
  for (const Alternative& alternative : kAlternatives)
    EXPECT_EQ(found.erase(alternative.name), 1U) << alternative.name << ", " << alternative.why;
  EXPECT_THAT(found, IsEmpty()) << "rename one of the two";
}

TEST(TypeNamesTest, ASecondDefinitionIsFoundAndADeclarationIsNone) {
  const SourceFile first{"a.h",
                         "namespace n {\n"
                         "class Declared;\n"
                         "}\n"
                         "namespace n::m {\n"
                         "enum class Way : uint8_t { kIn };\n"
                         "class Declared;\n"
                         "struct Way;\n"
                         "template <>\n"
                         "struct hash<Way> {\n"
                         "  struct Nested {};\n"
                         "};\n"
                         "void f() {\n"
                         "}\n"
                         "}  // namespace n::m\n"};
  EXPECT_THAT(repeated({first}), IsEmpty());
  const auto with = [&](const std::string& space, const std::string& text) {
    return repeated({first,
                     {"b.cc", "namespace " + space + " {\n" + text +
                                  "\n}  // namespace\n}  // namespace " + space + "\n"}});
  };
  const std::string unnamed = "namespace {\n";
  const auto twice = ElementsAre(Pair("n::m::Way", ElementsAre("a.h", "b.cc")));
  EXPECT_THAT(with("n::m", "class alignas(64) Way final\n    : public Base {\n};\n" + unnamed),
              twice);
  EXPECT_THAT(with("n", "inline namespace m {\nstruct [[nodiscard]] Way {};"), twice);
  EXPECT_THAT(with("n::m", unnamed + "}  // namespace\nunion Way {\n};\n" + unnamed), twice);
  EXPECT_THAT(with("n::m", unnamed + "class Way {};\nnamespace o {\nclass Way {};\n}"), IsEmpty());
  EXPECT_THAT(with("n", unnamed + "}  // namespace\nclass Way {};\n" + unnamed), IsEmpty());
  EXPECT_THAT(with("n::m", unnamed + "}  // namespace\nstruct hash<Other> {};\n" + unnamed),
              IsEmpty());
  EXPECT_THAT(repeated({{"c.h", "namespace n {\nclass A {};\nclass B {};\n"}}),
              ElementsAre(Pair("a namespace without an end", ElementsAre("c.h", "c.h"))));
}

}  // namespace
}  // namespace trainyard::house
