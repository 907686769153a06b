// Package eqvps is the domain of the EQVPS sandbox service: what a sandbox, a
// command, a file, a tariff, a token and an error are, which values are valid,
// and what things cost.
//
// One noun lives in one file. The package imports no driver and no transport:
// packages beside it adapt the domain to what they are named for (a monitor, a
// store, HTTP), and cmd/ joins them. ARCHITECTURE.md is the map.
package eqvps

import "time"

// Version is the version of this build. The release build sets it with
// -ldflags "-X github.com/eqvps/eqvps.Version=…".
var Version = "0.1.0-dev"

// Limits that every surface shares. The OpenAPI document, the MCP schemas and
// the SDKs quote them from here.
const (
	// DefaultExecTimeout is the time a foreground command gets when none is named.
	DefaultExecTimeout = 30 * time.Second
	// MaxExecTimeout is the longest a foreground command may run. HTTP and MCP
	// clients give up after about 60 s; the rest is a background task.
	MaxExecTimeout = 55 * time.Second
	// MaxCommandBytes bounds a command or a piece of code.
	MaxCommandBytes = 2 << 20
	// MaxStdinBytes bounds what a command is given on standard input inline.
	MaxStdinBytes = 5 << 20
	// MaxOutputBytes is kept of each stream of a foreground command: the first
	// and the last half of it.
	MaxOutputBytes = 1 << 20
	// MaxInlineFileBytes bounds a file carried inside a JSON message.
	MaxInlineFileBytes = 5_000_000
	// MaxFileBytes bounds one file transfer.
	MaxFileBytes = 2_000_000_000
	// MaxPartBytes bounds one part of a file that is uploaded in parts, and a
	// whole one that is uploaded through a link at once.
	MaxPartBytes = 95_000_000
	// DefaultLinkTTL, MinLinkTTL and MaxLinkTTL are how long a signed link lives.
	DefaultLinkTTL = 15 * time.Minute
	MinLinkTTL     = time.Minute
	MaxLinkTTL     = time.Hour
	// MaxPathBytes is Linux's PATH_MAX less its terminating zero.
	MaxPathBytes = 4095
	// MaxEnvVars and MaxEnvBytes bound the environment of a sandbox or a call;
	// bytes count names and values. Linux takes 128 KiB for one variable.
	MaxEnvVars       = 64
	MaxEnvValueBytes = 64 << 10 // of one variable
	MaxEnvBytes      = 256 << 10
	// MaxSecrets is how many secrets an account may keep.
	MaxSecrets = 64

	// DefaultIdleTimeout ends an ephemeral sandbox nobody uses.
	DefaultIdleTimeout = 300 * time.Second
	// MinIdleTimeout and MaxIdleTimeout bound what a caller may ask for.
	MinIdleTimeout = 10 * time.Second
	MaxIdleTimeout = 24 * time.Hour
	// MaxEphemeralTTL and MaxPersistentTTL are the longest lives.
	MaxEphemeralTTL  = 24 * time.Hour
	MaxPersistentTTL = 30 * 24 * time.Hour
	// MinTTL is the shortest life that can be asked for.
	MinTTL = 10 * time.Second
)
