#include "common/base/program_help.h"

#include <iostream>
#include <sysexits.h>

namespace trainyard {

std::optional<int> answer_about_itself(int argc, char** argv, const ProgramAbout& about) {
  const std::string_view asked = argc > 1 ? argv[1] : "";
  if (asked == "--help" || asked == "-h") {
    std::cout << about.help << std::flush;
  } else if (asked == "--version") {
    std::cout << about.name << ' ' << about.version << std::endl;
  } else {
    return std::nullopt;
  }
  return std::cout ? EX_OK : EX_IOERR;
}

}  // namespace trainyard
