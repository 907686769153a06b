package eqvps

import (
	"errors"
	"fmt"
	"time"
)

// Code is the stable, machine-readable name of an error. REST, MCP and the
// SDKs all speak this one vocabulary.
type Code string

// The vocabulary. Each code has exactly one row in the table below.
const (
	CodeInvalidRequest      Code = "invalid_request"
	CodeInvalidTimeout      Code = "invalid_timeout"
	CodeInvalidPath         Code = "invalid_path"
	CodeUnauthenticated     Code = "unauthenticated"
	CodeInsufficientBalance Code = "insufficient_balance"
	CodeSpendLimitReached   Code = "spend_limit_reached"
	CodeForbidden           Code = "forbidden"
	CodeNotFound            Code = "not_found"
	CodeSandboxNotFound     Code = "sandbox_not_found"
	CodeFileNotFound        Code = "file_not_found"
	CodeTokenNotFound       Code = "token_not_found"
	CodeTaskNotFound        Code = "task_not_found"
	CodeMethodNotAllowed    Code = "method_not_allowed"
	CodeNotRunning          Code = "sandbox_not_running"
	CodePaused              Code = "sandbox_paused"
	CodeWrongMode           Code = "wrong_mode"
	CodeFileExists          Code = "file_exists"
	CodeNotEmpty            Code = "not_empty"
	CodeSecretNotFound      Code = "secret_not_found"
	CodeInvalidLink         Code = "invalid_link"
	CodeInvalidRange        Code = "invalid_range"
	CodeSandboxEnded        Code = "sandbox_ended"
	CodeTooLarge            Code = "too_large"
	CodeUnsupportedMedia    Code = "unsupported_media_type"
	CodeInvalidValue        Code = "invalid_value"
	CodeUnknownTariff       Code = "unknown_tariff"
	CodeUnknownImage        Code = "unknown_image"
	CodeNotAFile            Code = "not_a_file"
	CodeNotADirectory       Code = "not_a_directory"
	CodeRateLimited         Code = "rate_limited"
	CodeSandboxLimit        Code = "sandbox_limit_reached"
	CodeTaskLimit           Code = "task_limit_reached"
	CodeInternal            Code = "internal"
	CodeStartFailed         Code = "start_failed"
	CodeCapacity            Code = "capacity"
	CodeUnreachable         Code = "sandbox_unreachable"
	CodeDiskFull            Code = "disk_full"
)

// ErrorKind is one row of the error table: what a code means to a caller.
type ErrorKind struct {
	Code    Code
	Status  int    // HTTP status
	Message string // safe for everyone to read; used when the error brings none
	Fix     string // what to do
	Next    string // which call helps, as METHOD /path below the API's root
}

// ErrorTable is the one list of errors, in order of status. The OpenAPI
// document, the MCP error texts and the SDKs' exception classes come from it.
var ErrorTable = []ErrorKind{
	{CodeInvalidRequest, 400, "The request is not well formed.", "Correct the field named in the message and send the request again.", "GET /openapi.json"},
	{CodeInvalidTimeout, 400, "The timeout is out of range.", "Use 1 to 55 seconds in the foreground; a background task (\"async\": true) may run as long as its sandbox lives.", "POST /sandboxes/{id}/exec"},
	{CodeInvalidPath, 400, "The path is not usable.", "Use an absolute path below 4096 bytes, without NUL, e.g. /root/task.py.", "GET /sandboxes/{id}/files/list"},
	{CodeUnauthenticated, 401, "The token is missing, unknown, expired or revoked.", "Send the header \"Authorization: Bearer TOKEN\" with a valid token; the administrator's is in DATA/admin-token.", "GET /whoami"},
	{CodeInsufficientBalance, 402, "The balance does not cover this sandbox.", "Top up the balance, then try again.", "GET /balance"},
	{CodeSpendLimitReached, 402, "A spend limit is reached.", "Raise the limit, or wait until it resets.", "GET /limits"},
	{CodeForbidden, 403, "This token may not do that.", "Use a token whose scope allows it.", "GET /whoami"},
	{CodeInvalidLink, 403, "The link is not valid, or its time is over.", "Ask for a new link.", "POST /sandboxes/{id}/files/link"},
	{CodeNotFound, 404, "There is nothing at this address.", "Look the path up in the OpenAPI document.", "GET /openapi.json"},
	{CodeSandboxNotFound, 404, "There is no such sandbox.", "List the sandboxes of this account, or create one.", "GET /sandboxes"},
	{CodeFileNotFound, 404, "There is no such file in the sandbox.", "List the folder to see what is there.", "GET /sandboxes/{id}/files/list"},
	{CodeTokenNotFound, 404, "There is no such token.", "List the tokens of this account.", "GET /tokens"},
	{CodeSecretNotFound, 404, "There is no such secret.", "List the secrets of this account.", "GET /secrets"},
	{CodeTaskNotFound, 404, "There is no such task in the sandbox.", "List the tasks of the sandbox, or start one.", "GET /sandboxes/{id}/tasks"},
	{CodeMethodNotAllowed, 405, "This address does not take that method.", "Look the path up in the OpenAPI document.", "GET /openapi.json"},
	{CodeNotRunning, 409, "The sandbox is not running.", "Wait until its state is \"running\", then try again.", "GET /sandboxes/{id}"},
	{CodePaused, 409, "The sandbox is paused.", "Resume it, then try again.", "POST /sandboxes/{id}/resume"},
	{CodeWrongMode, 409, "This sandbox's mode does not allow that.", "Create the sandbox with mode \"persistent\".", "POST /sandboxes"},
	{CodeFileExists, 409, "There is something at the path already.", "Choose another path, remove what is there, or allow it to be replaced.", "GET /sandboxes/{id}/files/stat"},
	{CodeNotEmpty, 409, "The folder is not empty.", "Remove what is in it first, or set recursive=true.", "GET /sandboxes/{id}/files/list"},
	{CodeSandboxEnded, 410, "The sandbox has ended.", "Create a new one; the reason it ended is in its record.", "POST /sandboxes"},
	{CodeTooLarge, 413, "The request is larger than allowed.", "Send less at once; files above 5 MB go through the raw file calls.", "PUT /sandboxes/{id}/files/raw"},
	{CodeUnsupportedMedia, 415, "The body has a media type this call does not read.", "Send JSON with \"Content-Type: application/json\".", "GET /openapi.json"},
	{CodeInvalidRange, 416, "The range lies beyond the end of the file.", "Ask for the file's size first, or leave the range out.", "GET /sandboxes/{id}/files/stat"},
	{CodeInvalidValue, 422, "A value is not allowed.", "Correct the value named in the message.", "GET /openapi.json"},
	{CodeUnknownTariff, 422, "There is no such tariff.", "Choose one of the tariffs on offer.", "GET /sandboxes/tariffs"},
	{CodeUnknownImage, 422, "There is no such image on this server.", "Leave \"image\" out to use the default, or have the operator build it.", "POST /sandboxes"},
	{CodeNotAFile, 422, "The path names something that is not a regular file.", "Name a regular file; list the folder to see what is there.", "GET /sandboxes/{id}/files/list"},
	{CodeNotADirectory, 422, "The path names something that is not a folder.", "Name a folder, or download the file.", "GET /sandboxes/{id}/files/raw"},
	{CodeRateLimited, 429, "Too many requests.", "Wait as long as Retry-After says, then try again.", ""},
	{CodeSandboxLimit, 429, "The limit of sandboxes running at once is reached.", "Delete a sandbox, or wait until one ends.", "GET /sandboxes"},
	{CodeTaskLimit, 429, "Too many tasks run in the sandbox at once.", "Wait until one ends, or kill one.", "GET /sandboxes/{id}/tasks"},
	{CodeInternal, 500, "Something went wrong on our side.", "Try again; if it stays, report the request id.", ""},
	{CodeStartFailed, 503, "The sandbox could not be started; nothing is charged.", "Try again; if it stays, the operator finds the cause under the request id.", "POST /sandboxes"},
	{CodeCapacity, 503, "There is no room for this sandbox right now.", "Wait as long as Retry-After says, or choose a smaller tariff.", "GET /sandboxes/tariffs"},
	{CodeUnreachable, 503, "The sandbox does not answer.", "Try again; if it stays, delete the sandbox and create a new one.", "GET /sandboxes/{id}"},
	{CodeDiskFull, 507, "The sandbox's disk is full.", "Remove files in the sandbox, or use a larger tariff.", "GET /sandboxes/tariffs"},
}

var kinds = func() map[Code]ErrorKind {
	m := make(map[Code]ErrorKind, len(ErrorTable))
	for _, k := range ErrorTable {
		m[k.Code] = k
	}
	return m
}()

// Kind returns the row of the table for a code. A code outside the vocabulary
// is a fault of ours and answers as CodeInternal.
func (c Code) Kind() ErrorKind {
	if k, ok := kinds[c]; ok {
		return k
	}
	return kinds[CodeInternal]
}

// Error is an error that a caller may see: a code of the vocabulary, a message
// that is safe to show, and a cause that is only logged.
type Error struct {
	Code       Code
	Message    string
	RetryAfter time.Duration // when to try again; zero: no hint
	Cause      error         // never shown to callers
}

// Errorf makes an error with a message that callers will read: no host paths,
// no internals.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// WrapError gives a hidden cause a code and the table's own message.
func WrapError(code Code, cause error) *Error {
	return &Error{Code: code, Message: code.Kind().Message, Cause: cause}
}

// Error is for logs: it includes the cause.
func (e *Error) Error() string {
	msg := e.Message
	if msg == "" {
		msg = e.Code.Kind().Message
	}
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s (%v)", e.Code, msg, e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, msg)
}

// Unwrap returns the hidden cause.
func (e *Error) Unwrap() error { return e.Cause }

// ErrorCode returns the code of err: CodeInternal for an error that carries
// none, and "" for nil.
func ErrorCode(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return CodeInternal
}

// AsError returns err as an *Error. Anything that carries no code becomes
// CodeInternal with the original as its hidden cause.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return WrapError(CodeInternal, err)
}
