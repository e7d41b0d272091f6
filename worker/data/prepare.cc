#include "worker/data/prepare.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "common/hash/hash.h"
#include "worker/data/baseline.h"
#include "worker/data/copies.h"
#include "worker/data/dataset_folder.h"
#include "worker/data/text/text_check.h"
#include "worker/data/text/tokenizer.h"
#include "worker/data/token_file.h"
#include "worker/data/token_writer.h"

namespace trainyard::data {
namespace {

namespace fs = std::filesystem;

// The most text held back because no place to cut it was seen.
constexpr size_t kUncutBytesMax = size_t{256} << 20;
constexpr char kTrain[] = "train";
constexpr char kLeftOut[] =
    "the tokenizer leaves out bytes without a token and what a Split removes, as the tokenizers "
    "library does; to keep them, use a tokenizer with a token for each byte and without such a "
    "Split";

Error without_cut(size_t bytes) {
  return {ErrorCode::kInvalidData,
          "found " + std::to_string(bytes >> 20) +
              " MiB without a place to cut, wanted at most 256 MiB between white spaces that "
              "separate words and that no added token touches; where a Split of the tokenizer has "
              "another behavior than Isolated there is none, and a file may have 256 MiB"};
}

// Four decimals: enough to read, few enough that another libm's last bit does not show.
double rounded(double bits) { return std::round(bits * 1e4) / 1e4; }

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

/// One preparation: what its steps share.
class Preparation {
 public:
  Preparation(const PrepareOptions& options, std::unique_ptr<Tokenizer> tokenizer, Sources sources)
      : options_(options), tokenizer_(std::move(tokenizer)), sources_(std::move(sources.files)) {
    manifest_.passed_over = std::move(sources.passed_over);
    if (tokenizer_->may_leave_out()) manifest_.left_out.emplace();
    for (const Source& source : sources_)
      bytes_total_ += source.bytes;
    DatasetManifest::Recipe& recipe = manifest_.recipe;
    recipe.tokenizer = tokenizer_->name();
    recipe.tokenizer_hash = to_hex(tokenizer_->identity());
    recipe.vocabulary = tokenizer_->vocabulary();
    recipe.end_of_text = tokenizer_->end_of_text();
    recipe.token_bytes = options.token_bytes != 0     ? options.token_bytes
                         : recipe.vocabulary <= 65536 ? 2
                                                      : 4;
    recipe.shard_tokens = options.shard_tokens;
    recipe.rules = options.splits;
    for (const Source& source : sources_)
      recipe.sources.push_back({source.name, source.split, source.bytes, ""});
  }

  // Whether the data set at the output is of these files and options and its shards are there.
  // One that can be replaced is encoded again where an earlier version did not count left_out.
  Result<bool> is_unchanged(bool replaceable);
  // Encodes everything into `folder`.
  Status encode_splits(const fs::path& folder);
  PrepareOutcome take_outcome(bool unchanged) && {
    for (const PassedOver& group : manifest_.left_out.value_or(std::vector<PassedOver>()))
      remarks_.push_back(group);
    std::vector<std::string> notes = tokenizer_->notes();
    const Result<TokenizerFiles> files = find_tokenizer(options_.tokenizer);
    for (const fs::path& unread : files ? files->unread : std::vector<fs::path>()) {
      notes.push_back(files->vocabulary.string() + " is used, " + unread.filename().string() +
                      " next to it is not read");
    }
    return {std::move(manifest_), unchanged, std::move(remarks_), std::move(notes)};
  }
  const DatasetManifest& manifest() const { return manifest_; }

 private:
  Result<SplitRecord> encode_split(const fs::path& folder, const std::string& split);
  Status encode_source(size_t index, TokenWriter& writer);
  Baselines finish_baselines(const SplitRecord& split);
  void remark_on(size_t index, std::string_view beginning) {
    if (!is_json_lines(beginning)) return;
    pass_over(remarks_,
              "JSON lines are read as one document, with keys and braces; to train on their texts "
              "alone, write each to a file",
              sources_[index].name);
  }
  void measure(std::string_view text) {
    (split_pairs_ ? *split_pairs_ : train_pairs_).add(text);
    if (split_gzip_) split_gzip_->add(text);
  }
  void report(std::string_view doing, size_t index, size_t bytes) {
    bytes_done_ += static_cast<int64_t>(bytes);
    if (options_.progress) {
      options_.progress({doing, sources_[index].name, bytes_done_, bytes_total_});
    }
  }

  const PrepareOptions& options_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Source> sources_;
  DatasetManifest manifest_;
  std::vector<PassedOver> remarks_;
  int64_t bytes_total_ = 0;
  int64_t bytes_done_ = 0;
  ByteBigram train_pairs_;
  // Of the split being encoded, when it is held out.
  std::optional<ByteBigram> split_pairs_;
  std::optional<GzipSize> split_gzip_;
  bool split_lost_text_ = false;  // of the split being encoded
};

Result<bool> Preparation::is_unchanged(bool replaceable) {
  const Result<DatasetManifest> there = read_manifest(options_.output);
  if (!there) return false;
  DatasetManifest::Recipe recipe = manifest_.recipe;
  recipe.sources = there->recipe.sources;
  if (recipe != there->recipe || there->recipe.sources.size() != sources_.size()) return false;
  const bool is_counted = !manifest_.left_out || there->left_out;
  if (!is_counted && replaceable && options_.existing == Existing::kReplace) return false;
  for (size_t i = 0; i < sources_.size(); ++i) {
    SourceRecord record = manifest_.recipe.sources[i];
    Sha256Stream hash;
    int64_t bytes = 0;
    TRAINYARD_TRY(read_pieces(sources_[i].path, [&](std::string_view piece) -> Status {
      if (bytes == 0) remark_on(i, piece);
      bytes += static_cast<int64_t>(piece.size());
      hash.update(bytes_of(piece));
      report("hashing", i, piece.size());
      return {};
    }));
    record.sha256 = to_hex(hash.digest());
    if (record != there->recipe.sources[i]) {
      bytes_done_ = 0;
      remarks_.clear();
      return false;
    }
  }
  bytes_done_ = 0;
  for (const SplitRecord& split : there->splits) {
    for (const ShardRecord& shard : split.shards) {
      const Result<TokenFile> file = TokenFile::open(options_.output / shard.file);
      // Read whole, as the texts were: who prepares again because a shard is damaged must not be
      // told that nothing has changed.
      if (!file || to_hex(file->info().content_hash) != shard.content_hash || !file->verify()) {
        remarks_.clear();
        return false;
      }
    }
  }
  for (const Source& source : is_counted ? std::vector<Source>() : sources_) {
    pass_over(remarks_,
              std::string("an earlier version prepared this data set and did not count what the "
                          "tokenizer leaves out; ") +
                  (replaceable ? "--force counts it"
                               : "it cannot be replaced here: to count it, prepare another --out"),
              source.name);
  }
  manifest_.left_out = there->left_out;
  // What was passed over decides no byte; that of today is for the caller to tell.
  manifest_.recipe = there->recipe;
  manifest_.splits = there->splits;
  return true;
}

Status Preparation::encode_splits(const fs::path& folder) {
  // Training first: the held-out splits are measured with its byte pairs.
  TRAINYARD_ASSIGN(SplitRecord train, encode_split(folder, kTrain));
  manifest_.splits.push_back(std::move(train));
  for (const SplitRule& rule : options_.splits) {
    TRAINYARD_ASSIGN(SplitRecord split, encode_split(folder, rule.name));
    manifest_.splits.push_back(std::move(split));
  }
  return {};
}

Result<SplitRecord> Preparation::encode_split(const fs::path& folder, const std::string& split) {
  const bool held_out = split != kTrain;
  split_pairs_.reset();
  split_gzip_.reset();
  split_lost_text_ = false;
  if (held_out) {
    split_pairs_.emplace();
    split_gzip_.emplace();
  }
  TokenWriterOptions writer_options;
  writer_options.token_bytes = static_cast<int>(manifest_.recipe.token_bytes);
  writer_options.vocabulary = tokenizer_->vocabulary();
  writer_options.tokenizer = tokenizer_->name();
  writer_options.tokenizer_hash = tokenizer_->identity();
  writer_options.end_of_text = tokenizer_->end_of_text();
  writer_options.shard_tokens = options_.shard_tokens;
  writer_options.token_lengths = tokenizer_->token_lengths();
  TRAINYARD_ASSIGN(TokenWriter writer, TokenWriter::create(folder / split, writer_options));
  for (size_t i = 0; i < sources_.size(); ++i) {
    if (sources_[i].split != split) continue;
    Status status = encode_source(i, writer);
    if (!status) return status.error().with_context(sources_[i].path.string());
  }
  TRAINYARD_ASSIGN(const std::vector<WrittenShard> shards, writer.finish());
  SplitRecord record;
  record.name = split;
  for (const WrittenShard& shard : shards) {
    record.documents += shard.info.documents;
    record.tokens += shard.info.tokens;
    record.text_bytes += shard.info.text_bytes;
    record.shards.push_back({split + "/" + shard.file_name, shard.info.tokens, shard.file_bytes,
                             to_hex(shard.info.content_hash)});
  }
  if (record.text_bytes == 0) {
    return Error{ErrorCode::kInvalidData,
                 "split " + split +
                     (split_lost_text_ ? ": the tokenizer leaves out all of its text, which has no "
                                         "byte with a token, or which a Split removes"
                                       : ": its files hold no text")};
  }
  if (held_out) record.baselines = finish_baselines(record);
  return record;
}

Status Preparation::encode_source(size_t index, TokenWriter& writer) {
  (split_pairs_ ? *split_pairs_ : train_pairs_).begin_document();
  // Baselines are those of the text that the model sees.
  const bool measures_tokens = !tokenizer_->keeps_texts();
  LeftOut left_out;
  Sha256Stream hash;
  int64_t bytes = 0;
  std::string text;   // read and not yet encoded
  size_t wanted = 1;  // look for a place to cut only when so much is there
  std::vector<int32_t> ids;
  TextCheck check;
  TRAINYARD_TRY(writer.append(tokenizer_->before_record()));
  const auto encode = [&](size_t size) -> Status {
    if (size > kUncutBytesMax) return without_cut(size);
    ids.clear();
    const std::string_view now = std::string_view(text).substr(0, size);
    TRAINYARD_TRY(tokenizer_->encode(now, ids));
    if (measures_tokens) {
      const LeftOut lost = tokenizer_->take_left_out();
      if (lost.bytes > 0) left_out.add(lost.bytes, lost.example, 0);
      constexpr size_t kSlice = 65536;
      for (std::span<const int32_t> rest = ids; !rest.empty();) {
        const size_t count = std::min(rest.size(), kSlice);
        TRAINYARD_ASSIGN(const std::string kept, tokenizer_->decode(rest.first(count)));
        measure(kept);
        rest = rest.subspan(count);
      }
    }
    text.erase(0, size);
    return writer.append(ids);
  };
  TRAINYARD_TRY(read_pieces(sources_[index].path, [&](std::string_view piece) -> Status {
    if (Status good = check.add(piece); !good) return good;
    if (bytes == 0) remark_on(index, piece);
    hash.update(bytes_of(piece));
    bytes += static_cast<int64_t>(piece.size());
    if (!measures_tokens) measure(piece);
    text += piece;
    report("encoding", index, piece.size());
    if (text.size() < wanted) return {};
    const size_t cut = tokenizer_->safe_cut(text);
    // Twice as much before the next look, so that looking stays linear in all.
    wanted = cut > 0 ? 1 : std::min(text.size() * 2, kUncutBytesMax + 1);
    if (cut == 0 && text.size() > kUncutBytesMax) return without_cut(text.size());
    return encode(cut);
  }));
  TRAINYARD_TRY(encode(text.size()));
  if (bytes != sources_[index].bytes) {
    return Error{ErrorCode::kInvalidData, "found " + std::to_string(bytes) + " bytes, wanted " +
                                              std::to_string(sources_[index].bytes) +
                                              ": it changed while it was read, try again"};
  }
  manifest_.recipe.sources[index].sha256 = to_hex(hash.digest());
  if (left_out.bytes > 0) {
    split_lost_text_ = true;
    pass_over(*manifest_.left_out, kLeftOut,
              sources_[index].name + ": " + std::to_string(left_out.bytes) + " of " +
                  std::to_string(bytes) + " bytes, as in '" +
                  readable_name(on_one_line(left_out.example)) + "'");
  }
  std::span<const int32_t> after = tokenizer_->after_record();
  // The document's end is written once.
  if (!after.empty() && after.back() == tokenizer_->end_of_text())
    after = after.first(after.size() - 1);
  TRAINYARD_TRY(writer.append(after));
  return writer.end_document();
}

Baselines Preparation::finish_baselines(const SplitRecord& split) {
  Baselines baselines;
  baselines.gzip9_bytes = split_gzip_->finish();
  baselines.gzip9_bits_per_byte = rounded(static_cast<double>(baselines.gzip9_bytes) * 8 /
                                          static_cast<double>(split.text_bytes));
  baselines.byte_bigram_bits_per_byte = rounded(train_pairs_.bits_per_byte(*split_pairs_));
  return baselines;
}

Status check(const PrepareOptions& options) {
  const auto wrong = [](const char* option, const std::string& found, const char* wanted) {
    return Error{ErrorCode::kInvalidConfig,
                 std::string(option) + ": found " + found + ", wanted " + wanted};
  };
  if (options.inputs.empty()) return wrong("inputs", "none", "at least one file or folder");
  if (options.shard_tokens < 1024 || options.shard_tokens > int64_t{1} << 40) {
    return wrong("shard tokens", std::to_string(options.shard_tokens), "1024..2^40");
  }
  if (options.token_bytes != 0 && options.token_bytes != 2 && options.token_bytes != 4) {
    return wrong("token bytes", std::to_string(options.token_bytes), "0 (auto), 2 or 4");
  }
  return {};
}

Error copies_error(const std::vector<Copy>& copies, const std::vector<Source>& files) {
  constexpr size_t kShown = 5;
  int64_t bytes = 0;
  for (const Copy& copy : copies)
    bytes += files[copy.file].bytes;
  std::string shown;
  for (size_t i = 0; i < std::min(copies.size(), kShown); ++i) {
    const Source& file = files[copies[i].file];
    const Source& of = files[copies[i].of];
    shown += (i > 0 ? ", " : "") + file.name + " (" + file.split + ") = " + of.name + " (" +
             of.split + ")";
  }
  if (copies.size() > kShown) shown += " and " + std::to_string(copies.size() - kShown) + " more";
  return {ErrorCode::kInvalidConfig,
          "inputs: found copies of files of another split (" + std::to_string(copies.size()) +
              ", " + std::to_string(bytes) + " bytes): " + shown +
              "; wanted each text in one split: text that is trained on cannot be held out. Leave "
              "the copies out of the inputs, or drop them by --drop-copies, which keeps the "
              "held-out files"};
}

/// Refuses text that two splits would have, or leaves it to the one that is held out.
Status settle_copies(const PrepareOptions& options, Sources& sources) {
  const int64_t total = bytes_to_compare(sources.files);
  int64_t done = 0;
  const auto report = [&](std::string_view file, int64_t bytes) {
    done += bytes;
    if (options.progress) options.progress({"comparing", file, done, total});
  };
  TRAINYARD_ASSIGN(const std::vector<Copy> copies,
                   find_copies(sources.files, options.splits, report));
  if (copies.empty()) return {};
  if (options.copies == Copies::kRefuse) return copies_error(copies, sources.files);
  for (const Copy& copy : copies) {
    pass_over(sources.passed_over, "a copy of a file of another split, which keeps the text",
              sources.files[copy.file].name + " = " + sources.files[copy.of].name);
  }
  size_t index = 0;
  std::erase_if(sources.files, [&](const Source&) {
    return std::ranges::binary_search(copies, index++, {}, &Copy::file);
  });
  return {};
}

}  // namespace

Result<PrepareOutcome> prepare(const PrepareOptions& options) {
  TRAINYARD_TRY(check(options));
  TRAINYARD_ASSIGN(std::unique_ptr<Tokenizer> tokenizer, open_tokenizer(options.tokenizer));
  TRAINYARD_TRY(tokenizer->check_end_of_text());
  TRAINYARD_ASSIGN(Sources sources,
                   collect_sources(options.inputs, options.include, options.splits));
  TRAINYARD_TRY(settle_copies(options, sources));
  const Result<DatasetFolder> folder = DatasetFolder::lock(options.output);
  // Where nothing can be written nothing changes meanwhile, and what is there may be what is
  // wanted.
  if (!folder && folder.error().code != ErrorCode::kIo) return folder.error();
  Preparation preparation(options, std::move(tokenizer), std::move(sources));
  TRAINYARD_ASSIGN(const bool unchanged,
                   preparation.is_unchanged(folder && folder->check_replaceable()));
  if (unchanged) return std::move(preparation).take_outcome(true);
  if (!folder) return folder.error();
  TRAINYARD_TRY(folder->check_replaceable());
  if (options.existing == Existing::kRefuse && read_manifest(options.output)) {
    return Error{ErrorCode::kInvalidConfig,
                 options.output.string() +
                     ": holds a data set made from other files or options, or a damaged one; "
                     "--force replaces it, another --out leaves it"};
  }
  TRAINYARD_ASSIGN(const fs::path partial, folder->begin());
  if (const Status encoded = preparation.encode_splits(partial); !encoded) {
    folder->discard();
    return encoded.error();
  }
  TRAINYARD_TRY(folder->commit(preparation.manifest()));
  return std::move(preparation).take_outcome(false);
}

}  // namespace trainyard::data
