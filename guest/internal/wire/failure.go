package wire

import (
	"encoding/json"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/eqvps/eqvps"
)

// guestCodes are the codes a guest may answer with; it has no say in the
// others.
var guestCodes = map[eqvps.Code]bool{
	eqvps.CodeInvalidRequest: true,
	eqvps.CodeInvalidPath:    true,
	eqvps.CodeFileNotFound:   true,
	eqvps.CodeTooLarge:       true,
	eqvps.CodeInvalidValue:   true,
	eqvps.CodeNotAFile:       true,
	eqvps.CodeNotADirectory:  true,
	eqvps.CodeDiskFull:       true,
	eqvps.CodeFileExists:     true,
	eqvps.CodeNotEmpty:       true,
	eqvps.CodeTaskNotFound:   true,
	eqvps.CodeTaskLimit:      true,
}

// maxMessage bounds the message of a guest's error.
const maxMessage = 512

// ParseFailure turns a guest's failure into an error of the domain. What the
// guest may not say becomes CodeUnreachable with its words as the cause.
func ParseFailure(data []byte) error {
	var f Failure
	if err := json.Unmarshal(data, &f); err != nil {
		return eqvps.WrapError(eqvps.CodeUnreachable, fmt.Errorf("malformed failure %.200q: %w", data, err))
	}
	code := eqvps.Code(f.Code)
	if !guestCodes[code] {
		return eqvps.WrapError(eqvps.CodeUnreachable, fmt.Errorf("the guest agent failed: %.200q: %.500q", f.Code, f.Message))
	}
	if f.Message == "" || len(f.Message) > maxMessage || !plain(f.Message) {
		return eqvps.Errorf(code, "%s", code.Kind().Message)
	}
	return eqvps.Errorf(code, "%s", f.Message)
}

// NewFailure is the form of err on the wire.
func NewFailure(err error) Failure {
	e := eqvps.AsError(err)
	msg := e.Message
	if !guestCodes[e.Code] {
		msg = e.Error()
	}
	return Failure{Code: string(e.Code), Message: msg[:min(len(msg), maxMessage)]}
}

// plain reports whether s is printable text.
func plain(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return true
}
