#include "common/io/build_id.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <elf.h>
#include <fstream>
#include <link.h>
#include <optional>
#include <string_view>
#include <vector>

namespace trainyard {
namespace {

/// Far more than linkers write.
constexpr uint64_t kMaxHeaders = 1024;
constexpr uint64_t kMaxNoteBytes = 1 << 16;

template <class T>
std::optional<T> read_at(std::ifstream& file, uint64_t offset) {
  T value;
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(reinterpret_cast<char*>(&value), sizeof value);
  return file ? std::optional<T>(value) : std::nullopt;
}

std::string hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    const auto value = static_cast<uint8_t>(byte);
    text += kDigits[value >> 4U];
    text += kDigits[value & 15U];
  }
  return text;
}

/// Of a segment of notes: each a header, a name and a text, both filled up to four bytes.
std::string id_among(std::string_view notes) {
  const auto padded = [](uint64_t bytes) { return (bytes + 3) / 4 * 4; };
  Elf64_Nhdr note{};
  while (notes.size() >= sizeof note) {
    std::memcpy(&note, notes.data(), sizeof note);
    notes.remove_prefix(sizeof note);
    const uint64_t name_bytes = padded(note.n_namesz);
    const uint64_t text_bytes = padded(note.n_descsz);
    if (name_bytes + text_bytes > notes.size()) return {};
    const std::string_view name = notes.substr(0, note.n_namesz);
    if (note.n_type == NT_GNU_BUILD_ID && name == std::string_view(ELF_NOTE_GNU, 4))
      return hex(notes.substr(name_bytes, note.n_descsz));
    notes.remove_prefix(name_bytes + text_bytes);
  }
  return {};
}

/// Called with each loaded object; the program is the first (dl_iterate_phdr(3)).
int note_id(dl_phdr_info* object, size_t /*bytes*/, void* id) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto address = object->dlpi_addr + segment.p_vaddr;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): as the loader says it
    const auto* const notes = reinterpret_cast<const char*>(address);
    auto& found = *static_cast<std::string*>(id);
    found = id_among({notes, segment.p_memsz});
    if (!found.empty()) break;
  }
  return 1;  // no further object
}

}  // namespace

std::string own_build_id() {
  std::string id;
  ::dl_iterate_phdr(note_id, &id);
  return id;
}

std::string build_id_of(const std::filesystem::path& program) {
  std::ifstream file(program, std::ios::binary);
  const auto header = read_at<Elf64_Ehdr>(file, 0);
  constexpr auto kData = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
      header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != kData ||
      header->e_phentsize != sizeof(Elf64_Phdr)) {
    return {};
  }
  const uint64_t count = std::min<uint64_t>(header->e_phnum, kMaxHeaders);
  for (uint64_t i = 0; i < count; ++i) {
    const auto segment = read_at<Elf64_Phdr>(file, header->e_phoff + i * sizeof(Elf64_Phdr));
    if (!segment) return {};
    if (segment->p_type != PT_NOTE || segment->p_filesz > kMaxNoteBytes) continue;
    std::vector<char> notes(segment->p_filesz);
    file.seekg(static_cast<std::streamoff>(segment->p_offset));
    file.read(notes.data(), static_cast<std::streamsize>(notes.size()));
    if (!file) return {};
    std::string id = id_among({notes.data(), notes.size()});
    if (!id.empty()) return id;
  }
  return {};
}

}  // namespace trainyard
