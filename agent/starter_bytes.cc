#include "agent/starter_bytes.h"

// CMakeLists.txt names the file and has it built first.
asm(".pushsection .rodata\n"
    "trainyard_starter_begin:\n"
    ".incbin \"" TRAINYARD_STARTER
    "\"\n"
    "trainyard_starter_end:\n"
    ".popsection\n");

extern "C" const char trainyard_starter_begin[];
extern "C" const char trainyard_starter_end[];

namespace trainyard::agent {

std::string_view starter_bytes() { return {trainyard_starter_begin, trainyard_starter_end}; }

}  // namespace trainyard::agent
