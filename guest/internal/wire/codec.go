package wire

import (
	"encoding/binary"
	"errors"
)

// What is on the path of every start and every command is not JSON: a guest
// fresh from its snapshot runs everything for the first time, and under
// software emulation the first use of encoding/json alone costs it some 20 ms.
// The form is the fields of a struct in their order; integers are varints,
// byte strings and lists begin with their length.

type encoder []byte

func (e *encoder) int(n int64) { *e = binary.AppendVarint(*e, n) }

func (e *encoder) bool(b bool) {
	n := int64(0)
	if b {
		n = 1
	}
	e.int(n)
}

func (e *encoder) bytes(b []byte) {
	e.int(int64(len(b)))
	*e = append(*e, b...)
}

func (e *encoder) list(l [][]byte) {
	e.int(int64(len(l)))
	for _, b := range l {
		e.bytes(b)
	}
}

var errMalformed = errors.New("malformed message")

// decoder reads what an encoder has written. After an error it returns zeros.
// It allocates nothing that is not there: byte strings lie in the input.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) int() int64 {
	n, size := binary.Varint(d.b)
	if size <= 0 {
		d.err, d.b = errMalformed, nil
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) bool() bool { return d.int() == 1 }

// length reads a length of at most what is left.
func (d *decoder) length() int {
	n := d.int()
	if n < 0 || n > int64(len(d.b)) {
		d.err, d.b = errMalformed, nil
		return 0
	}
	return int(n)
}

func (d *decoder) bytes() []byte {
	n := d.length()
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) list() [][]byte {
	n := d.length() // each entry takes a byte at least
	if n == 0 {
		return nil
	}
	l := make([][]byte, 0, min(n, 1024))
	for range n {
		l = append(l, d.bytes())
		if d.err != nil {
			return nil
		}
	}
	return l
}

// end reports an error if anything failed or was left over.
func (d *decoder) end() error {
	if d.err == nil && len(d.b) > 0 {
		d.err = errMalformed
	}
	return d.err
}

// Encode returns the wire form.
func (v Identity) Encode() []byte {
	var e encoder
	e.bytes(v.Entropy)
	e.int(v.UnixNano)
	e.bytes([]byte(v.Hostname))
	e.bytes([]byte(v.MachineID))
	e.list(v.Env)
	if v.KeepEnv { // else it is as it was before there was such a field
		e.bool(true)
	}
	return e
}

// Decode reads the wire form.
func (v *Identity) Decode(b []byte) error {
	d := decoder{b: b}
	v.Entropy = d.bytes()
	v.UnixNano = d.int()
	v.Hostname = string(d.bytes())
	v.MachineID = string(d.bytes())
	v.Env = d.list()
	v.KeepEnv = len(d.b) > 0 && d.bool()
	return d.end()
}

// Encode returns the wire form.
func (v EnvChange) Encode() []byte {
	var e encoder
	e.list(v.Set)
	e.list(v.Remove)
	return e
}

// Decode reads the wire form.
func (v *EnvChange) Decode(b []byte) error {
	d := decoder{b: b}
	v.Set = d.list()
	v.Remove = d.list()
	return d.end()
}

// Encode returns the wire form.
func (v Pong) Encode() []byte {
	var e encoder
	e.int(int64(v.Version))
	e.int(v.UptimeNS)
	e.int(v.UnixNano)
	return e
}

// Decode reads the wire form.
func (v *Pong) Decode(b []byte) error {
	d := decoder{b: b}
	v.Version = int(d.int())
	v.UptimeNS = d.int()
	v.UnixNano = d.int()
	return d.end()
}

// Encode returns the wire form.
func (v ExecHead) Encode() []byte {
	var e encoder
	e.bytes(v.Command)
	e.list(v.Argv)
	e.bytes(v.Cwd)
	e.list(v.Env)
	e.int(v.TimeoutNS)
	return e
}

// Decode reads the wire form.
func (v *ExecHead) Decode(b []byte) error {
	d := decoder{b: b}
	v.Command = d.bytes()
	v.Argv = d.list()
	v.Cwd = d.bytes()
	v.Env = d.list()
	v.TimeoutNS = d.int()
	return d.end()
}

// Encode returns the wire form.
func (v Result) Encode() []byte {
	var e encoder
	e.int(int64(v.Code))
	e.bytes([]byte(v.Signal))
	e.bool(v.TimedOut)
	e.bool(v.OOM)
	e.int(v.DurationNS)
	return e
}

// Decode reads the wire form.
func (v *Result) Decode(b []byte) error {
	d := decoder{b: b}
	v.Code = int(d.int())
	v.Signal = string(d.bytes())
	v.TimedOut = d.bool()
	v.OOM = d.bool()
	v.DurationNS = d.int()
	return d.end()
}
