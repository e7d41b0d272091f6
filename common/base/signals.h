#pragma once

namespace trainyard {

/// Whether this process ignores the signal. Asked before the process sets anything itself, this is
/// what its parent wanted (nohup, `trap '' HUP`).
bool ignores_signal(int signal_number);

/// Whether a program that stops by this signal is to receive it: one that the parent has made this
/// process ignore stays ignored. SIGINT is an exception: a shell without job control ignores SIGINT
/// and SIGQUIT in every background command, to save them from the terminal's Ctrl-C. Where both are
/// ignored, a SIGINT is received, and takes_signal_of() leaves out those of the terminal.
bool takes_signal(int signal_number);

/// takes_signal() for a signal that has arrived with this si_code.
bool takes_signal_of(int signal_number, int code);

}  // namespace trainyard
