// Stands in for a library that an image has every program load and that the agent cannot bear.
#include <unistd.h>

namespace {

[[gnu::constructor]] void end_program() { ::_exit(99); }

}  // namespace
