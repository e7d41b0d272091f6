#include "worker/device/peak_flops.h"

#include <algorithm>
#include <array>
#include <string>

namespace trainyard::engine {
namespace {

struct Peak {
  std::string_view words;  ///< of the name, in this order and next to each other
  double teraflops;
};

/// The first entry that matches a name counts.
constexpr std::array kPeaks = {
    Peak{"GB200", 2500},      Peak{"B200", 2250},       Peak{"GH200", 989.4},
    Peak{"H200 NVL", 835.5},  Peak{"H200", 989.4},      Peak{"H100 NVL", 835.5},
    Peak{"H100 PCIe", 756.5}, Peak{"H100", 989.4},      Peak{"H800 PCIe", 756.5},
    Peak{"H800", 989.4},      Peak{"H20", 148},         Peak{"A100", 312},
    Peak{"A800", 312},        Peak{"A30", 165},         Peak{"A40", 149.7},
    Peak{"A10", 125},         Peak{"L40S", 362},        Peak{"L40", 181},
    Peak{"L4", 121},          Peak{"RTX A6000", 154.8}, Peak{"RTX 6000 Ada", 364.2},
    Peak{"RTX 4090", 165.2},  Peak{"RTX 3090", 71},
};

/// Whole words: an A10G is no A10. What comes after a dash is a card's form and memory, as in
/// "A100-SXM4-80GB".
bool has_words(std::string_view name, std::string_view words) {
  std::string spaced = " " + std::string(name) + " ";
  std::replace(spaced.begin(), spaced.end(), '-', ' ');
  return spaced.find(" " + std::string(words) + " ") != std::string::npos;
}

/// A part of a GPU that a virtual machine has, as "A100-10C".
bool is_virtual(std::string_view name) {
  const size_t dash = name.rfind('-');
  if (dash == std::string_view::npos) return false;
  const std::string_view form = name.substr(dash + 1);
  const size_t digits = std::min(form.find_first_not_of("0123456789"), form.size());
  return digits > 0 && digits + 1 == form.size() &&
         std::string_view("ABCQ").find(form.back()) != std::string_view::npos;
}

/// A GPU, or part of one, that is not as fast as the one with the plain name.
bool is_another_form(std::string_view name) {
  if (is_virtual(name)) return true;
  constexpr std::array<std::string_view, 4> kForms = {"Laptop GPU", "MIG", "Ti", "D"};
  return std::any_of(kForms.begin(), kForms.end(),
                     [&](std::string_view form) { return has_words(name, form); });
}

}  // namespace

double peak_bf16_flops(std::string_view gpu) {
  if (is_another_form(gpu)) return 0;
  const auto* const found = std::find_if(
      kPeaks.begin(), kPeaks.end(), [&](const Peak& peak) { return has_words(gpu, peak.words); });
  return found != kPeaks.end() ? found->teraflops * 1e12 : 0;
}

}  // namespace trainyard::engine
