package httpapi

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/eqvps/eqvps"
)

// How often an address may come with a token that is none. A token cannot be
// guessed in any number of tries; what is bounded is the work and the lines of
// log that trying makes.
const (
	failuresAtOnce    = 20
	failuresPerMinute = 20
	// maxFailing addresses are remembered; beyond them the one that waits least
	// is forgotten.
	maxFailing = 4096
)

// failures counts failed tokens by address. A valid token is never held up.
type failures struct {
	mu     sync.Mutex
	byAddr map[netip.Prefix]*rate.Limiter
}

// note counts a failure of an address and returns CodeRateLimited when there
// were too many. Callers without an address sit on this machine.
func (f *failures) note(remote string, now time.Time) error {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return nil
	}
	addr := ap.Addr().Unmap()
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64 // what one customer of a network has
	}
	key, err := addr.WithZone("").Prefix(bits)
	if err != nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.byAddr[key]
	if l == nil {
		if f.byAddr == nil {
			f.byAddr = map[netip.Prefix]*rate.Limiter{}
		}
		if len(f.byAddr) >= maxFailing {
			f.forget(now)
		}
		l = rate.NewLimiter(rate.Limit(failuresPerMinute)/60, failuresAtOnce)
		f.byAddr[key] = l
	}
	r := l.ReserveN(now, 1)
	wait := r.DelayFrom(now)
	if wait == 0 {
		return nil
	}
	r.CancelAt(now)
	e := eqvps.Errorf(eqvps.CodeRateLimited, "Too many calls with a token that is not valid came from this address.")
	e.RetryAfter = wait
	return e
}

// forget makes room for another address.
func (f *failures) forget(now time.Time) {
	var least netip.Prefix
	most := -1.0
	for key, l := range f.byAddr {
		tokens := l.TokensAt(now)
		if tokens >= failuresAtOnce {
			delete(f.byAddr, key)
		} else if tokens > most {
			least, most = key, tokens
		}
	}
	if len(f.byAddr) >= maxFailing {
		delete(f.byAddr, least)
	}
}
