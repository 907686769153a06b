package guest

// Version is the number of the protocol that this build speaks. Guests live on
// inside snapshots, so a host speaks to every version it has ever shipped.
// Each change gets a number and a line:
//
//	1: 2026-11-30: the first: handshake, identity, commands, files, clock
//	2: 2026-11-30: background tasks: start, read, list, kill, activity
//	3: 2026-12-01: suspend; an identity may leave the variables as they are
//	4: 2026-12-01: frames of output of up to 252 KiB
//	5: 2026-12-01: variables that are changed later; the environment may have 256 KiB
//	6: 2026-12-01: files: ranges, uploads in parts, make a folder, move, remove
const Version = 6

// oldest is the oldest version of a guest that this host can talk to.
const oldest = 1
