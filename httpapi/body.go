package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/eqvps/eqvps"
)

// decode reads a JSON body of at most limit bytes into v. Fields that v does
// not have are refused by name: a misspelt one must not be taken for its
// default. No message repeats a value.
func (c *call) decode(v any, limit int64) error {
	if c.body == nil {
		return eqvps.Errorf(eqvps.CodeInvalidRequest, "The body is empty; send a JSON object.")
	}
	c.body.until = time.Now().Add(BodyTimeout)
	if err := checkMediaType(c.r); err != nil {
		return err
	}
	data, err := c.read(limit)
	if err != nil {
		return err
	}
	return decodeJSON(data, v)
}

func checkMediaType(r *http.Request) error {
	ct := r.Header.Get("Content-Type")
	if ct == "" {
		return nil
	}
	mt, params, err := mime.ParseMediaType(ct)
	if cs := params["charset"]; err != nil || mt != "application/json" || cs != "" && !strings.EqualFold(cs, "utf-8") {
		return eqvps.Errorf(eqvps.CodeUnsupportedMedia, "The body has the media type %.100q; this call reads application/json.", ct)
	}
	return nil
}

func (c *call) read(limit int64) ([]byte, error) {
	var buf bytes.Buffer
	if n := c.r.ContentLength; n > 0 && n <= limit {
		buf.Grow(int(n) + bytes.MinRead)
	}
	if c.r.ContentLength <= limit {
		if _, err := io.Copy(&buf, io.LimitReader(c.body, limit+1)); err != nil {
			return nil, err
		}
		if int64(buf.Len()) <= limit {
			return buf.Bytes(), nil
		}
	}
	c.drain()
	return nil, eqvps.Errorf(eqvps.CodeTooLarge, "The body is larger than the %d bytes this call takes; files above 5 MB go through files/raw.", limit)
}

// drain has what is left of a body that is refused read once the answer is
// sent. Many clients read no answer before they have sent everything: closing on
// them would look like a broken connection instead of an error. Those that wait
// for one have it at once.
func (c *call) drain() { c.drainUpTo(maxDraining) }

func (c *call) drainUpTo(limit int64) {
	c.draining = max(c.draining, limit)
	// Otherwise the server itself would read some of it before the answer.
	_ = c.w.rc.EnableFullDuplex() // not every writer in a test has it
}

// drained reads what drain has left to be read.
func (c *call) drained() {
	if c.draining == 0 || c.body == nil || c.body.err != nil || !c.body.begun && c.r.Header.Get("Expect") != "" {
		return // nothing there, nothing comes, or it waits for a word to send
	}
	if c.w.Flush() == nil {
		io.CopyN(io.Discard, c.body, c.draining)
	}
}

func decodeJSON(data []byte, v any) error {
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return eqvps.Errorf(eqvps.CodeInvalidRequest, "The body is empty; send a JSON object.")
	case !utf8.Valid(data):
		return eqvps.Errorf(eqvps.CodeInvalidRequest, "The body is not UTF-8; send bytes that are not text as base64.")
	case loneSurrogate(data):
		return eqvps.Errorf(eqvps.CodeInvalidRequest, "The body holds half a UTF-16 surrogate pair (\\ud800 to \\udfff), which stands for no character; send bytes that are not text as base64.")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return decodeError(err, data)
	}
	if _, err := dec.Token(); err != io.EOF {
		return eqvps.Errorf(eqvps.CodeInvalidRequest, "Something follows the JSON object in the body, at byte %d.", dec.InputOffset())
	}
	return nil
}

// kinds names JSON types for people.
var kinds = map[string]string{"string": "text", "number": "a number", "bool": "true or false", "object": "an object", "array": "a list"}

// wanted names Go types for people.
func wanted(goType string) string {
	switch {
	case goType == "string":
		return "text"
	case goType == "bool":
		return "true or false"
	case strings.HasPrefix(goType, "int"):
		return "a whole number"
	case strings.HasPrefix(goType, "float"):
		return "a number"
	case goType == "[]uint8":
		return "base64 text"
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	}
	return "an object"
}

func decodeError(err error, data []byte) error {
	var own *eqvps.Error
	var typ *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	var corrupt base64.CorruptInputError
	bad := func(format string, args ...any) error { return eqvps.Errorf(eqvps.CodeInvalidRequest, format, args...) }
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &typ):
		got, _, _ := strings.Cut(typ.Value, " ")
		if k, ok := kinds[got]; ok {
			got = k
		}
		want := wanted(typ.Type.String())
		if typ.Field == "" {
			return bad("The body must be a JSON object, not %s.", got)
		}
		if got == want || got == "a number" {
			got = "that number"
		}
		return bad("The field %q must be %s, not %s.", typ.Field, want, got)
	case errors.As(err, &corrupt):
		return bad("The field %q is not valid base64.", corruptField(data))
	case errors.As(err, &syntax):
		return bad("The body is not valid JSON: it goes wrong at byte %d.", syntax.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return bad("The body is not valid JSON: it ends early.")
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return bad("There is no field %.80s.", name)
	}
	return &eqvps.Error{Code: eqvps.CodeInvalidRequest, Message: "The body is not valid JSON.", Cause: err}
}

// corruptField finds the field that is not base64: the decoder does not say.
func corruptField(data []byte) string {
	var fields map[string]json.RawMessage
	json.Unmarshal(data, &fields) // it parsed before
	for name, raw := range fields {
		var b []byte
		var many map[string]json.RawMessage
		if !strings.HasSuffix(name, "_base64") || json.Unmarshal(raw, &b) == nil {
			continue
		}
		if json.Unmarshal(raw, &many) != nil {
			return name
		}
		for key, raw := range many {
			if json.Unmarshal(raw, &b) != nil {
				return fmt.Sprintf("%s.%.80s", name, key)
			}
		}
	}
	return "_base64"
}

// loneSurrogate finds \uD800–\uDFFF without its other half. The decoder would
// put U+FFFD there without a word, and run another command than the one sent.
func loneSurrogate(data []byte) bool {
	for i := 0; ; {
		k := bytes.IndexByte(data[i:], '\\')
		if k < 0 || i+k+1 >= len(data) {
			return false
		}
		i += k
		switch unit := surrogate(data[i:]); {
		case unit == 0:
			i += 2
		case unit >= 0xdc00, surrogate(data[i+6:]) < 0xdc00:
			return true
		default:
			i += 12
		}
	}
}

// surrogate returns the surrogate that data begins with as an escape, or 0.
func surrogate(data []byte) (unit int) {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return 0
	}
	for _, c := range data[2:6] {
		d := strings.IndexByte("0123456789abcdef", c|0x20)
		if d < 0 {
			return 0
		}
		unit = unit<<4 | d
	}
	if unit < 0xd800 || unit > 0xdfff {
		return 0
	}
	return unit
}
