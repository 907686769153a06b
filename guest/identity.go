package guest

import (
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest/internal/wire"
)

// EntropyBytes is how much fresh randomness a machine gets.
const EntropyBytes = 64

// Identity is what makes a restored machine one of its own. The guest credits
// the entropy to its kernel and reseeds it, sets clock, host name and machine
// id, and keeps the variables in memory for the commands to come. Clock and
// entropy are added at the last moment.
type Identity struct {
	Hostname  string // of letters, digits and hyphens, at most 63
	MachineID string // 32 lower-case hex digits; "" makes a random one
	Env       eqvps.Env
	// KeepEnv leaves the variables as they are; Env is not looked at. For a
	// machine that goes on after Suspend.
	KeepEnv bool
}

func (id *Identity) validate() error {
	if err := eqvps.ValidateEnv(id.Env); err != nil {
		return err
	}
	if id.Hostname == "" || len(id.Hostname) > 63 || strings.Trim(id.Hostname, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return errors.New("a guest's host name consists of 1 to 63 lower-case letters, digits and hyphens")
	}
	if id.MachineID != "" && (len(id.MachineID) != 32 || strings.Trim(id.MachineID, "0123456789abcdef") != "") {
		return errors.New("a machine id has 32 lower-case hex digits")
	}
	return nil
}

func (id *Identity) hello(now time.Time) []byte {
	seed := make([]byte, EntropyBytes)
	rand.Read(seed)
	machine := id.MachineID
	if machine == "" {
		machine = newMachineID()
	}
	return wire.Identity{
		Entropy: seed, UnixNano: now.UnixNano(), Hostname: id.Hostname,
		MachineID: machine, Env: wire.EnvList(id.Env), KeepEnv: id.KeepEnv,
	}.Encode()
}

func newMachineID() string {
	const hex = "0123456789abcdef"
	var b [32]byte
	rand.Read(b[:])
	for i := range b {
		b[i] = hex[b[i]&15]
	}
	return string(b[:])
}
