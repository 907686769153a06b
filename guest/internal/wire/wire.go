// Package wire holds what the host and the guest agent say to each other over
// HTTP: paths, bodies and bounds. Everything here is part of the numbered
// protocol: a change of a field is a change of guest.Version.
//
// Bytes of the sandbox (paths, commands, variables) need not be UTF-8. Where
// they travel in JSON they are base64 ([]byte), never JSON strings.
package wire

import (
	"encoding/base64"
	"io/fs"
	"time"

	"github.com/eqvps/eqvps"
)

// The calls. A body is JSON, or where the type has an Encode, that.
const (
	PathPing     = "/ping"     // GET: Pong
	PathClock    = "/clock"    // POST Clock
	PathFreeze   = "/freeze"   // POST: go to the gate when this session ends
	PathSync     = "/sync"     // POST: write dirty pages to disk
	PathShutdown = "/shutdown" // POST: sync and power off
	PathExec     = "/exec"     // POST head + stdin: frames of output
	PathFile     = "/file"     // PUT content: Entry; GET: content, Entry in HeaderEntry
	PathStat     = "/stat"     // GET: Entry
	PathList     = "/list"     // GET: Listing

	// Since version 2.
	PathTask         = "/task"          // POST TaskStart + stdin: Task; GET: TaskOutput; DELETE: Task
	PathTasks        = "/tasks"         // GET: Tasks
	PathTaskActivity = "/task-activity" // GET: TaskActivity

	// Since version 3.
	PathSuspend = "/suspend" // POST: freeze all, and go to the gate when this session ends

	// Since version 5.
	PathEnv = "/env" // PATCH EnvChange

	// Since version 6; so are DELETE of PathFile (Removal) and its range.
	PathPart = "/part" // PUT content: Progress
	PathDir  = "/dir"  // POST: Entry
	PathMove = "/move" // POST: Entry
)

// The parameters of the task calls.
const (
	ParamTask   = "task"
	ParamStdout = "stdout" // offset
	ParamStderr = "stderr" // offset
	ParamMax    = "max"    // bytes of each stream
)

// The parameters of the file calls.
const (
	ParamPath  = "path"  // base64url
	ParamAfter = "after" // base64url
	ParamLimit = "limit"
	ParamMode  = "mode" // octal

	// Since version 6.
	ParamTo        = "to" // base64url
	ParamOverwrite = "overwrite"
	ParamRecursive = "recursive"
	ParamOffset    = "offset"
	ParamLength    = "length"
	ParamUpload    = "upload"
	ParamTotal     = "total"
	ParamKeep      = "keep" // seconds

	HeaderEntry = "Eqvps-Entry" // JSON of an Entry
)

// Bounds.
const (
	// MaxHead bounds the head of an exec: a command, its environment, and what
	// tells where each argument ends.
	MaxHead = 3*eqvps.MaxCommandBytes + 2*eqvps.MaxEnvBytes
	// MaxReply bounds a reply of the guest.
	MaxReply = 64 << 10
	// MaxListing bounds the JSON of one page of a folder.
	MaxListing = 16 << 20
	// MaxEntries bounds the entries of one page.
	MaxEntries = 1000
	// MaxNameBytes is the longest name of a file that Linux has.
	MaxNameBytes = 255
	// MaxTaskOutput bounds a TaskOutput.
	MaxTaskOutput = 2*eqvps.MaxTaskReadBytes + maxTask + 64
	// MaxTaskList bounds the list of a sandbox's tasks.
	MaxTaskList = eqvps.MaxTasks * (maxTask + 4)
	// MaxEnvChange bounds an EnvChange: variables with what tells where each
	// ends, and names.
	MaxEnvChange = 2 * eqvps.MaxEnvBytes
	// maxTask bounds a Task.
	maxTask = 1 << 10
)

// Identity is the hello of a session that makes a machine its own.
type Identity struct {
	Entropy   []byte
	UnixNano  int64
	Hostname  string
	MachineID string
	Env       [][]byte // NAME=VALUE
	KeepEnv   bool     // since version 3: the variables stay as they are
}

// EnvChange changes the sandbox's variables for the commands to come.
type EnvChange struct {
	Set    [][]byte // NAME=VALUE
	Remove [][]byte // names
}

// Pong answers a ping.
type Pong struct {
	Version  int
	UptimeNS int64
	UnixNano int64
}

// Clock sets the time.
type Clock struct {
	UnixNano int64
}

// ExecHead starts the body of an exec: its length as 4 bytes, big endian, then
// itself, then standard input to the end of the body.
type ExecHead struct {
	Command   []byte
	Argv      [][]byte
	Cwd       []byte
	Env       [][]byte // NAME=VALUE
	TimeoutNS int64
}

// Result is how a command ended.
type Result struct {
	Code       int
	Signal     string
	TimedOut   bool
	OOM        bool
	DurationNS int64
}

// Entry describes a file. In a Listing, Name is the name inside the folder;
// elsewhere it is the path.
type Entry struct {
	Name   []byte
	Type   string
	Size   int64
	Mode   uint32
	MtimeN int64
	Target []byte
}

// Listing is a page of a folder.
type Listing struct {
	Entries []Entry
	More    bool
}

// Progress tells how far an upload in parts is.
type Progress struct {
	Received int64
	Done     *Entry // the file, once it is complete
}

// Removal tells what a removal has done.
type Removal struct {
	Entries  int64
	Complete bool
}

// Failure is the body of an answer that is not 200.
type Failure struct {
	Code    string
	Message string
}

// EncodeBytes and DecodeBytes carry bytes in a URL.
func EncodeBytes(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// DecodeBytes is the inverse of EncodeBytes.
func DecodeBytes(s string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	return string(b), err
}

// EnvList is the form of variables on the wire.
func EnvList(env map[string]string) [][]byte {
	list := make([][]byte, 0, len(env))
	for _, k := range eqvps.EnvKeys(env) {
		list = append(list, []byte(k+"="+env[k]))
	}
	return list
}

// FileInfo is the domain's form of an entry.
func (e Entry) FileInfo(path string) eqvps.FileInfo {
	return eqvps.FileInfo{
		Path: path, Type: eqvps.FileType(e.Type), Size: e.Size,
		Mode: fs.FileMode(e.Mode) & 0o7777, ModTime: time.Unix(0, e.MtimeN), Target: string(e.Target),
	}
}
