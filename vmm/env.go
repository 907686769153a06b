package vmm

// DirVariable is set in the environment of every monitor's process to its
// Spec.Dir. It finds a monitor whose starter died before it could write down
// the process id.
const DirVariable = "EQVPS_MACHINE_DIR"
