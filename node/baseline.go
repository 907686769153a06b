package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/eqvps/eqvps"
	"github.com/eqvps/eqvps/guest"
)

// Baseline measures what a start cannot be faster than: the monitor restores
// the same template and the guest runs one command over its channel, with
// folder, cgroup, slot and disk made before the clock starts. `eqvps bench`
// holds real starts against it. It leaves nothing behind.
func (n *Node) Baseline(ctx context.Context, id string, tariff eqvps.Tariff, command string) (took time.Duration, err error) {
	t, err := n.template(ctx, "", tariff)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, n.Destroy(context.WithoutCancel(ctx), id)) }()
	p, err := n.place(ctx, &record{Name: id, Image: t.image.ID}, tariff)
	if err != nil {
		return 0, err
	}
	spec, err := n.restoreSpec(p, t)
	if err != nil {
		return 0, err
	}
	defer spec.State.Close()

	began := time.Now()
	vm, err := n.monitor.Restore(ctx, spec)
	if err != nil {
		return 0, err
	}
	defer vm.Close()
	c, err := guest.Renew(ctx, vm.DialGuest, guest.Identity{Hostname: hostName(id)})
	if err != nil {
		return 0, err
	}
	defer c.Close()
	st, err := c.Exec(ctx, eqvps.ExecRequest{Command: command, Timeout: time.Minute}, func(eqvps.Stream, []byte) error { return nil })
	took = time.Since(began)
	if err == nil && st.Code != 0 {
		err = fmt.Errorf("the command exits with %d", st.Code)
	}
	return took, err
}

// MonitorPID is the process of a machine's monitor, for measuring.
func (n *Node) MonitorPID(id string) (int, error) {
	r, err := readRecord(n.machineDir(id))
	if err != nil {
		return 0, err
	}
	if r == nil || r.Handle == nil {
		return 0, fmt.Errorf("no monitor of %s is recorded", id)
	}
	return r.Handle.PID, nil
}
