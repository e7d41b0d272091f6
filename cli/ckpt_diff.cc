#include <iomanip>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cli/checkpoint_path.h"
#include "cli/ckpt_subcommands.h"
#include "cli/commands.h"
#include "common/text/json_writer.h"
#include "worker/checkpoint/compare.h"

namespace trainyard::cli {
namespace {

namespace ckpt = checkpoint;
using Outcome = ckpt::TensorComparison::Outcome;

constexpr char kFooter[] =
    R"(Compares parameters, moments and scalars. Ranks, generation and configuration do not affect
the result. If the configurations differ, the output says so.

Examples:
  trainyard ckpt diff runs/a/pvc/ckpt runs/b/pvc/ckpt
  trainyard ckpt diff -o json runs/a/pvc/ckpt/g1-step-0000000100 runs/a/pvc/ckpt/latest

Exit codes: 0 equal states; 1 different states; 65 a checkpoint is damaged or missing; 75 input or
output failed.)";

constexpr int kIndent = 2;
constexpr int kDifferent = 1;

struct DiffOptions {
  std::string a;
  std::string b;
  std::string output = "text";
};

const char* name_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::kEqual:
      return "equal";
    case Outcome::kDifferent:
      return "different";
    case Outcome::kOnlyInA:
      return "onlyInA";
    case Outcome::kOnlyInB:
      return "onlyInB";
    case Outcome::kOtherForm:
      return "otherForm";
  }
  return "?";
}

std::string number_text(const std::optional<double>& value) {
  return value ? text::shortest(*value) : "-";
}

std::string tensor_text(const ckpt::TensorComparison& tensor) {
  switch (tensor.outcome) {
    case Outcome::kEqual:
      return "equal";
    case Outcome::kOnlyInA:
      return "only in A";
    case Outcome::kOnlyInB:
      return "only in B";
    case Outcome::kOtherForm:
      return "A has " + tensor.form_a + ", B has " + tensor.form_b;
    case Outcome::kDifferent:
      break;
  }
  std::string text = std::to_string(tensor.elements_different) + " of " +
                     std::to_string(tensor.elements) + " differ, max |a-b| " +
                     number_text(tensor.absolute_max) + ", relative " +
                     number_text(tensor.relative_max);
  if (tensor.not_finite > 0) {
    text += ", " + std::to_string(tensor.not_finite) + " not finite in A or B";
  }
  return text;
}

void print_comparison(const ckpt::CheckpointReader& a, const ckpt::CheckpointReader& b,
                      const ckpt::Comparison& comparison, std::ostream& out) {
  out << "A " << printable(a.directory().string()) << "\nB " << printable(b.directory().string())
      << '\n';
  for (const ckpt::ScalarComparison& scalar : comparison.scalars) {
    if (scalar.equal()) continue;
    out << "  " << std::left << std::setw(42) << printable(scalar.name) << "A has "
        << (scalar.a.empty() ? "none" : printable(scalar.a)) << ", B has "
        << (scalar.b.empty() ? "none" : printable(scalar.b)) << '\n';
  }
  int64_t equal = 0;
  for (const ckpt::TensorComparison& tensor : comparison.tensors) {
    if (tensor.outcome == Outcome::kEqual) {
      ++equal;
      continue;
    }
    out << "  " << std::left << std::setw(32) << printable(tensor.name) << std::setw(10)
        << ckpt::name_of(tensor.kind) << tensor_text(tensor) << '\n';
  }
  if (!comparison.same_config) out << "  (the configurations differ)\n";
  out << equal << " of " << comparison.tensors.size()
      << " tensors equal: " << (comparison.equal() ? "the same state" : "different") << '\n';
}

void write_tensor(const ckpt::TensorComparison& tensor, text::JsonWriter& json) {
  const auto number = [&](const char* name, const std::optional<double>& value) {
    json.key(name);
    json.number(value);
  };
  json.begin_object();
  json.key("name");
  json.string(tensor.name);
  json.key("kind");
  json.string(ckpt::name_of(tensor.kind));
  json.key("result");
  json.string(name_of(tensor.outcome));
  json.key("elements");
  json.integer(tensor.elements);
  if (tensor.outcome == Outcome::kDifferent) {
    json.key("elementsDifferent");
    json.integer(tensor.elements_different);
    json.key("notFinite");
    json.integer(tensor.not_finite);
    number("absoluteMax", tensor.absolute_max);
    number("relativeMax", tensor.relative_max);
  }
  if (tensor.outcome == Outcome::kOtherForm) {
    json.key("a");
    json.string(tensor.form_a);
    json.key("b");
    json.string(tensor.form_b);
  }
  json.end_object();
}

std::string comparison_as_json(const ckpt::CheckpointReader& a, const ckpt::CheckpointReader& b,
                               const ckpt::Comparison& comparison) {
  text::JsonWriter json(kIndent);
  json.begin_object();
  json.key("a");
  json.string(a.directory().string());
  json.key("b");
  json.string(b.directory().string());
  json.key("equal");
  json.boolean(comparison.equal());
  json.key("sameConfig");
  json.boolean(comparison.same_config);
  json.key("scalars");
  json.begin_array();
  for (const ckpt::ScalarComparison& scalar : comparison.scalars) {
    json.begin_object();
    json.key("name");
    json.string(scalar.name);
    json.key("equal");
    json.boolean(scalar.equal());
    for (const auto& [side, value] : {std::pair("a", &scalar.a), std::pair("b", &scalar.b)}) {
      json.key(side);
      if (value->empty()) {
        json.null();
      } else {
        json.raw(*value);
      }
    }
    json.end_object();
  }
  json.end_array();
  json.key("tensors");
  json.begin_array();
  for (const ckpt::TensorComparison& tensor : comparison.tensors)
    write_tensor(tensor, json);
  json.end_array();
  json.end_object();
  return json.take();
}

Status run_diff(const DiffOptions& options, CommandContext& context) {
  ckpt::PosixFileSystem files;
  PassedOver passed_over(context.err);
  ckpt::Comparison comparison;
  std::unique_ptr<ckpt::CheckpointReader> b;
  // Whichever side a damaged shard is on, that side steps back.
  const auto read = [&](ckpt::CheckpointReader& reader_a) -> Status {
    const auto compare = [&](ckpt::CheckpointReader& reader_b) -> Status {
      TRAINYARD_ASSIGN(comparison, ckpt::compare(reader_a, reader_b));
      return {};
    };
    TRAINYARD_ASSIGN(b, read_checkpoint(files, options.b, compare, passed_over));
    return {};
  };
  TRAINYARD_ASSIGN(const auto a, read_checkpoint(files, options.a, read, passed_over));
  if (options.output == "json") {
    context.out << comparison_as_json(*a, *b, comparison) << '\n';
  } else {
    print_comparison(*a, *b, comparison, context.out);
  }
  if (!comparison.equal()) context.exit_code = kDifferent;
  return {};
}

}  // namespace

void register_ckpt_diff(const Command& parent, CommandContext& context) {
  const Command command = parent.command("diff", "Compares two checkpoints tensor by tensor.");
  command.footer(kFooter);
  auto options = std::make_shared<DiffOptions>();
  constexpr char kPath[] =
      "A checkpoint, or a job's checkpoint or run directory (its newest good checkpoint)";
  command.option("A", options->a, kPath).required();
  command.option("B", options->b, kPath).required();
  command.output(options->output);
  command.runs(
      [options, &context] { finish(run_diff(*options, context), "trainyard ckpt", context); });
}

}  // namespace trainyard::cli
