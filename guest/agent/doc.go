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
// itself) would end that. What it costs was measured under software emulation
// (QEMU 7.2, TCG, 1 GiB, three fresh clones each, processor time on a busy
// two-core host): after two runs of /bin/true, which take 30 to 50 ms once warm,
// the first run of an empty static Go program takes 103 to 123 ms and that of
// the agent, which does nothing there but say so and leave, 214 to 263 ms. The
// budget was 25 ms. Since an empty Go program exceeds it already, a smaller gate
// in front of the agent would not help.
//
// So instead, none of that state may leave the agent. It makes no random
// choice that anybody sees: no package here or in cmd/eqvps-guest imports a
// source of random numbers, names of temporary files are counted, and a test
// holds both rules. Everything random in a sandbox (/dev/urandom, getrandom,
// the seeds every new process is given, boot_id) comes from its kernel, which
// was reseeded before the first process was started.
//
// # Pauses
//
// A machine that is to be paused goes to the gate as well, but with all it has:
// foreground commands are ended, every other process is frozen (cgroup v2
// freezer), variables, tasks and their output stay. The identity that the next
// session brings is put in force before anything thaws, so no process sees old
// time, or randomness that an earlier life of the same memory has seen.
// Timeouts of tasks run on the monotonic clock, which stands still meanwhile.
package agent
