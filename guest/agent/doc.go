// Package agent is the guest's side of the protocol: it runs commands, moves
// files and takes a machine's identity. cmd/eqvps-guest makes it PID 1.
//
// # The gate
//
// A template is frozen with its agent waiting "at the gate": without a session,
// without variables, and willing to begin a session only with an identity. In
// every clone the first session brings one. The agent credits fresh entropy to
// the kernel and reseeds it, sets the clock, the host name and the machine id,
// and goes on as the same process.
//
// That it goes on is a decision. All clones start with the same memory, so
// they share what Go's runtime keeps as randomness of its own: the seeds of
// maps and of the scheduler. Replacing the agent by a fresh process (execve of
// itself) would end that, and was measured under software emulation in a fresh
// clone: executing an empty static Go program costs 75 ms of processor time
// more than executing /bin/true, executing the agent 190 ms more, and a clone
// that did so took 490 ms from resume to its first answer instead of 150 ms, on
// the same busy host. A Go process without a runtime does not exist, so no
// smaller gate in front of the agent would be cheaper than the 75 ms.
//
// So instead, none of that state may leave the agent. It makes no random
// choice that anybody sees: no package here or in cmd/eqvps-guest imports a
// source of random numbers, names of temporary files are counted, and a test
// holds both rules. Everything random in a sandbox (/dev/urandom, getrandom,
// the seeds every new process is given, boot_id) comes from its kernel, which
// was reseeded before the first process was started.
package agent
